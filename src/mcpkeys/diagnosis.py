"""What `mcpkeys doctor` finds: checks that passed, findings that did not, and the exit code they amount to.

`diagnose` asks the real KEKs and the real store under this identity, as an operator (makes keys, writes the keyset)
or as a server (opens keys, reports). Nothing of the keyset changes. What a check leaves behind: nothing, or a
withdrawn report where this identity may not delete what it may write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from mcpkeys.errors import McpkeysError, PluginError
from mcpkeys.findings import Finding, Level

T = TypeVar("T")
Role = Literal["operator", "server"]
CALL_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was tried. `result`: `pass`, `fail` (a finding tells more) or `skipped` (and why)."""

    subject: str
    check: str
    result: Literal["pass", "fail", "skipped"]
    detail: str = ""


@dataclass(slots=True)
class Diagnosis:
    """Everything that was seen.

    Attributes:
        codes: the exit codes that the findings at level `refused` amount to.
    """

    role: Role
    checks: list[Check] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    codes: set[int] = field(default_factory=set)

    @property
    def exit_code(self) -> int:
        """The largest of: 2 something is wrong, 4 somebody does not answer, 7 something is denied. Else 0."""
        return max(self.codes, default=0)

    def passed(self, subject: str, check: str, detail: str = "") -> None:
        """A check that succeeded."""
        self.checks.append(Check(subject, check, "pass", detail))

    def skipped(self, subject: str, check: str, detail: str) -> None:
        """A check that could not be made, and why that is no finding."""
        self.checks.append(Check(subject, check, "skipped", detail))

    def found(
        self, subject: str, check: str, level: Level, code: str, what: str, why: str, then: str, *, exit_code: int = 2
    ) -> None:
        """A check that failed."""
        self.checks.append(Check(subject, check, "fail", what))
        self.findings.append(Finding(code, level, subject, what, why, then))
        if level == "refused":
            self.codes.add(exit_code)

    def failed(self, subject: str, check: str, error: McpkeysError, *, level: Level = "refused") -> None:
        """A check that ended with an error; its exit code counts."""
        code = error.exit_code if error.exit_code in (2, 4, 7) else 2
        self.found(
            subject, check, level, error.code, error.what, error.why, error.next or "mcpkeys help uris", exit_code=code
        )

    def attempt(self, subject: str, check: str, work: Callable[[], T]) -> T | None:
        """Try it; an error becomes a finding, and None is returned."""
        try:
            return guarded(subject, work)
        except McpkeysError as exc:
            self.failed(subject, check, exc)
            return None


def guarded(subject: str, work: Callable[[], T]) -> T:
    """What `work` returns. A third-party plugin's own mistake becomes a `PluginError` and carries nothing of it."""
    try:
        return work()
    except McpkeysError:
        raise
    except Exception as exc:
        raise PluginError(
            f"the plugin of {subject} failed",
            why=f"{type(exc).__name__}: not an error that a plugin may raise",
            next="upgrade or uninstall that plugin",
            code="plugin-broken",
        ) from None


def hook(plugin: Any, name: str) -> Callable[..., Any] | None:
    """An optional method of a plugin: `credentials`, `excess_rights`, `self_test`, `resolve`; None without it."""
    method = getattr(plugin, name, None)
    return method if callable(method) else None


def listed(items: Sequence[str], most: int = 6) -> str:
    """A short list for a sentence."""
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return ", ".join(items[:most]) + more
