"""Carrying out a purge: the document first, then the reports."""

from __future__ import annotations

from collections.abc import Callable

from mcpkeys import purging
from mcpkeys.authoring import Author
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
        found = author.store.reports(deadline=author.deadline())
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
