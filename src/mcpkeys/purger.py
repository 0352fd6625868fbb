"""Carrying out a purge: the document first, then the reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from mcpkeys import listing, purging
from mcpkeys.authoring import Author
from mcpkeys.errors import Denied, Unreachable
from mcpkeys.keyset import Keyset
from mcpkeys.purging import Purge, Request
from mcpkeys.revising import Revised, Revision, revise
from mcpkeys.stepping import Observed


def purge(
    author: Author,
    request: Request,
    *,
    agreed: Callable[[Revision, Observed], None] = lambda revision, observed: None,
    dry: bool = False,
) -> tuple[Revised, Purge, int]:
    """What was written, what was to go, and how many reports are gone. Raises as `revising.revise`.

    Killed between the document and the reports, the same command deletes the rest.
    """
    last: list[Purge] = []

    def decide(observed: Observed) -> Revision:
        found = listing.listed(author.store, deadline=author.deadline())
        stamps = {entry.name: entry.modified_at for entry in found}
        last.append(purging.decide(observed, stamps, request))
        return last[-1].revision

    revised = revise(author, decide, agreed=agreed, dry=dry)
    plan = last[-1] if last else Purge(revised.revision)
    revision = revised.revision
    if dry or revision.verdict != "do":
        return revised, plan, 0
    if revision.document is None:
        agreed(revision, revised.observed)
    for instance in plan.reports:
        author.store.delete_report(instance, deadline=author.deadline())
    return revised, plan, len(plan.reports)


def drop_withdrawn(author: Author, observed: Observed, written: Keyset) -> int:
    """How many reports went after `written` renewed the report key: those that a purge would have deleted before.

    A farewell under the old key can no longer be read, and what cannot be read never counts as gone: every rotation to
    come would wait for instances that left long ago. A failing store is no error: the step is written, and an instance
    that left may be named by --allow-missing.

    Args:
        observed: what the step was planned from, its farewells believed under the old report key.
    """
    dropped = 0
    with suppress(Unreachable, Denied):
        for instance in purging.withdrawn(written, observed.gathered.received, observed.now):
            author.store.delete_report(instance, deadline=author.deadline())
            dropped += 1
    return dropped
