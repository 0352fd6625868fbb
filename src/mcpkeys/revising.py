"""Changing a keyset outside a rotation: a revision, who stands in its way, and the edge that writes it once.

`rewrap`, `set`, `restore` and `purge` decide by pure functions that answer with a `Revision`; `revise` observes,
decides, asks, decides again on what is stored right before the write, signs and writes by compare-and-swap.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys import transitions
from mcpkeys.authoring import Author
from mcpkeys.clock import Clock
from mcpkeys.encoding import to_ms
from mcpkeys.errors import ConfigurationError, Conflict
from mcpkeys.keyset import Keyset
from mcpkeys.preconditions import restored
from mcpkeys.reports import ReceivedReport
from mcpkeys.standing import silent_after
from mcpkeys.stepping import Observed, last_write, observe
from mcpkeys.steps import Blocking, Step

Verdict = Literal["do", "done", "unsafe"]


@dataclass(frozen=True, slots=True)
class Revision:
    """What comes of a change. Nothing has been written.

    Attributes:
        verdict: `do`: write `document`. `done`: it is so already. `unsafe`: something must be done first.
        why: one or two sentences for the operator.
        next: the command, or what else comes next.
        document: the unsigned keyset to write, or None.
        code: a stable word for scripts.
        effects: what the change does to running servers and to rounds in flight, one sentence each.
        blocking: the instances in the way.
    """

    verdict: Verdict
    why: str
    next: str
    document: Keyset | None = None
    code: str = ""
    effects: tuple[str, ...] = ()
    blocking: tuple[Blocking, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 do (once written) or done, 5 unsafe."""
        return 5 if self.verdict == "unsafe" else 0


@dataclass(frozen=True, slots=True)
class Revised:
    """What became of a change.

    Attributes:
        revision: the last decision; where it says `do` it was written (but for a dry run).
        observed: what it was made from.
        written: the keyset that was written, or None.
    """

    revision: Revision
    observed: Observed
    written: Keyset | None = None


def unsafe(code: str, why: str, next: str, blocking: Iterable[Blocking] = ()) -> Revision:
    """Something must be done first."""
    return Revision("unsafe", why, next, None, code, (), tuple(blocking))


def done(why: str, next: str = "mcpkeys status") -> Revision:
    """It is so already."""
    return Revision("done", why, next, None, "done")


def succeed(
    keyset: Keyset, now: float, what: str, *, who: str, reason: str, overrides: Collection[str] = (), **fields: object
) -> Keyset:
    """The unsigned document after `keyset` with `fields` changed: generation + 1, linked, one more entry of history."""
    step = Step("auto", who=who, reason=reason)
    at = transitions.stamp(keyset, to_ms(now))
    document = transitions.succeed(keyset, step, at, what, overrides=overrides)
    return replace(document, **fields)  # type: ignore[arg-type]


def restored_backup(observed: Observed) -> Revision | None:
    """The refusal of a stored document that is older than what instances hold; None where it is not."""
    received = {entry.report.instance: entry for entry in observed.gathered.received}
    old = restored(observed.stored.keyset, received)
    return None if old is None else unsafe("gate-restored", old[1], "mcpkeys restore FILE")


@dataclass(frozen=True, slots=True)
class Fleet:
    """Who counts when a change needs the fleet's consent: whoever reports and has not said farewell.

    Silence proves nothing: a silent instance may serve on. Only the operator's word (`missing`) takes one out, and a
    report from after that word, or one that is not silent, voids it.

    Attributes:
        live: instances that count, by id.
        silent: of these, those without a report for over three refreshes.
        unreadable: ids of reports that cannot be believed, and why.
        contradicting: named as stopped, but reporting.
    """

    live: tuple[ReceivedReport, ...]
    silent: frozenset[str]
    unreadable: tuple[tuple[str, str], ...]
    contradicting: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, observed: Observed, missing: Collection[str] = ()) -> Fleet:
        """The fleet as it was observed. Raises `ConfigurationError` for a `missing` that nobody is."""
        gathered, now = observed.gathered, to_ms(observed.now)
        known = {entry.report.instance for entry in gathered.received} | {id for id, _ in gathered.rejected}
        unknown = sorted(set(missing) - known)
        if unknown:
            raise ConfigurationError(
                f"no instance is called {', '.join(unknown[:5])}",
                why="--allow-missing takes the id of an instance with a report",
                next="mcpkeys status shows every instance's id",
            )
        limit = silent_after(observed.stored.keyset)
        present = [entry for entry in gathered.received if entry.report.state != "farewell"]
        silent = {e.report.instance for e in present if now - to_ms(e.modified_at) > limit}
        live = [e for e in present if e.report.instance not in missing or e.report.instance not in silent]
        return cls(
            tuple(live),
            frozenset(silent & {e.report.instance for e in live}),
            tuple(entry for entry in gathered.rejected if entry[0] not in missing),
            frozenset(e.report.instance for e in live if e.report.instance in missing),
        )

    @property
    def empty(self) -> bool:
        """Whether nobody is known to run."""
        return not self.live and not self.unreadable


def revise(
    author: Author,
    decide: Callable[[Observed], Revision],
    *,
    prepare: Callable[[Revision, Observed], Keyset] | None = None,
    agreed: Callable[[Revision, Observed], None] = lambda revision, observed: None,
    private: Callable[[Keyset], Ed25519PrivateKey] | None = None,
    dry: bool = False,
    clock: Clock | None = None,
) -> Revised:
    """Carry out one change.

    Args:
        prepare: makes the document whole (KMS calls); called between the two looks, given the first decision.
        agreed: called with the first decision that would be written; raises what stops it (a person says no).
        private: opens what signs the document, given the stored keyset; by default that keyset's signer.
        dry: only decide.

    Raises:
        Conflict: the keyset changed meanwhile; nothing was written, and the error names who and what.
        McpkeysError: what the store and the KEKs answer. Nothing is half written, ever.
    """
    observed = observe(author, clock=clock)
    revision = restored_backup(observed) or decide(observed)
    if revision.document is None or dry:
        return Revised(revision, observed)
    agreed(revision, observed)
    key = (private or author.signer)(observed.stored.keyset)
    document = revision.document if prepare is None else prepare(revision, observed)
    # Preparing took KMS calls, agreeing took a person's minutes: the fleet is looked at again right before the write.
    again = observe(author, clock=clock)
    if again.stored.version != observed.stored.version:
        raise conflict(again.stored.keyset)
    revision = restored_backup(again) or decide(again)
    if revision.document is None:
        return Revised(revision, again)
    if prepare is None:
        document = revision.document
    try:
        written, _ = author.write(document, again.stored.version, key)
    except Conflict:
        raise conflict(author.read().keyset) from None
    return Revised(revision, again, written)


def conflict(keyset: Keyset) -> Conflict:
    """The error for a keyset that changed under an operator's hands."""
    return Conflict(
        "the keyset changed meanwhile; nothing was written",
        why=last_write(keyset),
        next="run the same command again if it is still wanted",
    )


def named(instances: Sequence[ReceivedReport], most: int = 5) -> str:
    """A short list of labels for a sentence."""
    labels = [entry.report.label or entry.report.instance for entry in instances]
    more = f" and {len(labels) - most} more" if len(labels) > most else ""
    return ", ".join(labels[:most]) + more
