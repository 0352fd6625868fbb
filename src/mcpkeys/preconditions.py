"""Before any step: does it make sense, is the document the newest, is it the rotation that is meant. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from mcpkeys.answers import STATUS, unsafe
from mcpkeys.encoding import format_ms
from mcpkeys.errors import ConfigurationError
from mcpkeys.glimpse import glimpse
from mcpkeys.keyset import Keyset, digest
from mcpkeys.reports import ReceivedReport
from mcpkeys.steps import Plan, Step


def check_step(keyset: Keyset, step: Step) -> None:
    """Raises `ConfigurationError` for a step that no fleet could make sense of."""
    if step.to not in (1, 2, 3, "rollback", "emergency", "auto"):
        raise ConfigurationError(
            f"there is no step {step.to!r}", next="--phase 1, 2 or 3; --rollback; --emergency", code="usage"
        )
    if step.expect is not None and not 0 <= step.expect <= 1_000_000:
        raise ConfigurationError("--expect takes a number of instances", next="--expect 4", code="usage")
    if step.attest is not None and not step.attest.strip():
        raise ConfigurationError("--attest is empty", next='--attest "deploy 4711 finished"', code="usage")
    if step.to != "emergency":
        return
    if not step.kid:
        raise ConfigurationError(
            "--emergency burns one key, and none is named", next="add --kid K (mcpkeys status)", code="kid-missing"
        )
    if keyset.key(step.kid) is None:
        kids = ", ".join(key.kid for key in keyset.live)
        raise ConfigurationError(
            f"this keyset has no key {glimpse(step.kid)}",
            why=f"its live keys are {kids}",
            next=STATUS,
            code="kid-unknown",
        )
    if not (step.reason or "").strip():
        raise ConfigurationError(
            "an emergency has a reason", next="add --reason R; it is kept in the history", code="reason-missing"
        )


def restored(keyset: Keyset, reports: Mapping[str, ReceivedReport]) -> tuple[str, str] | None:
    """(an instance that says so, why) where this document is an old one put back, or None."""
    newest = max((entry.report for entry in reports.values()), key=lambda report: report.generation, default=None)
    if newest is not None and newest.generation > keyset.generation:
        return newest.instance, (
            f"the stored keyset is generation {keyset.generation}, but {newest.label or newest.instance} holds "
            f"{newest.generation}: a backup was restored"
        )
    own = digest(keyset)
    for entry in reports.values():
        report = entry.report
        if report.generation == keyset.generation and report.digest and report.digest != own:
            return report.instance, (
                f"{report.label or report.instance} holds another document of generation {keyset.generation}: "
                "a backup was restored and written on"
            )
    return None


def other_rotation(keyset: Keyset, step: Step) -> Plan | None:
    """The refusal where the step names another rotation than the one there is, or None."""
    if step.rotation is None:
        return None
    current = keyset.rotation
    if current is not None and current.id == step.rotation:
        return None
    if step.to == 1 and keyset.running is None:
        return None
    running = f"rotation {current.id}{last_write(keyset)} is there instead" if current is not None else "there is none"
    why = f"the step names rotation {step.rotation}, but {running}"
    return unsafe(step, "gate-other-rotation", why, STATUS)


def last_write(keyset: Keyset) -> str:
    """Who wrote last and what, in brackets: an operator who comes second wants to know."""
    last = keyset.history[-1] if keyset.history else None
    return f" ({last.who or 'someone'} at {format_ms(last.at)}: {last.what})" if last is not None else ""
