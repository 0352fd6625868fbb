"""Carrying out a rewrap: ask the KEKs, make every wrap, write once.

Where the KMS renews its own wraps no key is seen here. Elsewhere a key is briefly in this process, each new wrap is
unwrapped once and compared, and nothing is written unless every live key has all of its wraps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcpkeys import rewrapping
from mcpkeys.authoring import Author
from mcpkeys.errors import Denied, KekUnusable, KeysetMismatch, KmsUnreachable, McpkeysError, UnwrapRefused
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.keyset import Keyset
from mcpkeys.kms import KekState, Kms, Wrap, identity
from mcpkeys.patience import CALL_SECONDS
from mcpkeys.revising import Fleet, Revised, Revision, revise
from mcpkeys.rewrapping import Item, Layout, Request
from mcpkeys.stepping import Observed


@dataclass(frozen=True, slots=True)
class Rewrapped:
    """What became of a rewrap.

    Attributes:
        layout: what each wrapped key got or would get.
        left: (kid, why) of retired keys that kept the wraps they had.
        notes: what could not be told, one sentence each.
    """

    revised: Revised
    layout: Layout
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]


def rewrap(
    author: Author,
    request: Request,
    *,
    agreed: Callable[[Revision, Observed, Layout], None] = lambda revision, observed, layout: None,
    dry: bool = False,
) -> Rewrapped:
    """Rewrap what is due. Raises as `revising.revise`, and `KekUnusable` for a target that cannot wrap."""
    states: dict[str, KekState] = {}
    notes: list[str] = []
    left: list[tuple[str, str]] = []
    layouts: list[Layout] = []

    def decide(observed: Observed) -> Revision:
        keyset = observed.stored.keyset
        if not states:
            _ask(author, keyset, request, states, notes)
        fleet = Fleet.of(observed, request.allow_missing)
        revision, layout = rewrapping.decide(keyset, fleet, request, states, now=observed.now)
        layouts.append(layout)
        return revision

    def prepare(revision: Revision, observed: Observed) -> Keyset:
        assert revision.document is not None
        layout = layouts[-1]
        made: dict[str, dict[str, Wrap]] = {}
        for item in layout.due:
            try:
                made[item.context.kid] = _wraps(author, observed.stored.keyset, item)
            except McpkeysError as exc:
                if item.live:
                    raise
                left.append((item.context.kid, exc.what))
        return rewrapping.complete(revision.document, layout, made)

    revised = revise(
        author, decide, prepare=prepare, agreed=lambda revision, seen: agreed(revision, seen, layouts[-1]), dry=dry
    )
    layout = layouts[-1] if layouts else Layout((), (), ())
    return Rewrapped(revised, layout, tuple(left), tuple(notes))


def _ask(author: Author, keyset: Keyset, request: Request, states: dict[str, KekState], notes: list[str]) -> None:
    """The state of every KEK that is to wrap; `states` by identity."""
    keks, sign_keks = rewrapping.targets(keyset, request)
    skipped = {identity(uri) for uri in request.skip}
    for uri in keks:
        if author.keks.get(uri) is None and identity(uri) not in skipped:
            raise KeysetMismatch(
                f"the keyset is wrapped by {uri}, which is not pinned here",
                why=f"pinned: {', '.join(author.keks.uris) or 'none'}",
                next="add it to MCPKEYS_KEKS, or take it out of the keyset: mcpkeys rewrap --remove-kek URI",
                code="kek-unpinned",
            )
    for uri in dict.fromkeys((*keks, *sign_keks)):
        if identity(uri) in skipped:
            continue
        try:
            state = author.backend(uri).describe(deadline=author.deadline(CALL_SECONDS * 2))
        except Denied as exc:
            notes.append(f"the versions of {uri} cannot be seen ({exc.what}): its wraps count as new")
            continue
        except KmsUnreachable as exc:
            exc.next = f"try again, or do without it for now: --skip-kek {uri}"
            raise
        if not (state.exists and state.enabled):
            raise KekUnusable(
                f"{uri} cannot wrap keys",
                why=state.detail or ("it is disabled" if state.exists else "it does not exist"),
                next=f"mend it, or do without it for now: --skip-kek {uri}" if _known(keyset, uri) else _create(uri),
            )
        states[identity(uri)] = state


def _known(keyset: Keyset, uri: str) -> bool:
    return identity(uri) in {identity(known) for known in (*keyset.keks, *keyset.sign_keks)}


def _create(uri: str) -> str:
    if uri.startswith("local:"):
        path = uri.removeprefix("local://")
        return f"make one of 32 random bytes: (umask 077; head -c 32 /dev/urandom > {path})"
    return "create it in its KMS first, or correct the URI"


def _wraps(author: Author, keyset: Keyset, item: Item) -> dict[str, Wrap]:
    """KEK URI -> new wrap, all of them or an error."""
    made: dict[str, Wrap] = {}
    missing: list[Kms] = []
    for uri, action in item.todo:
        kms = author.backend(uri)
        renewed = _renewed(author, kms, item) if action == "renew" else None
        if renewed is None:
            missing.append(kms)
        else:
            made[uri] = renewed
    if missing:
        for (uri, _), wrap in zip(
            [(uri, action) for uri, action in item.todo if uri not in made],
            _through_here(author, keyset, item, missing),
            strict=True,
        ):
            made[uri] = wrap
    return made


def _renewed(author: Author, kms: Kms, item: Item) -> Wrap | None:
    """The KMS's own rewrap, which shows no key; None where it cannot, or no longer opens its own old wrap."""
    old = next(wrap for wrap in item.wrapped if identity(wrap.kek) == identity(kms.uri))
    try:
        return kms.rewrap(old, item.context, deadline=author.deadline(CALL_SECONDS * 2))
    except (UnwrapRefused, KekUnusable):
        return None


def _through_here(author: Author, keyset: Keyset, item: Item, missing: Sequence[Kms]) -> tuple[Wrap, ...]:
    """Unwrap by any KEK that can, wrap by each of `missing`, test each wrap."""
    keks = author.keks
    if item.context.purpose == "sign":
        keks = Keks([author.backend(wrap.kek) for wrap in item.wrapped])
    answer = keks.unwrap([Job(item.context, item.wrapped)])[item.context.kid]
    if not isinstance(answer, Unwrapped):
        if not answer.next:
            answer.next = "mcpkeys doctor tells each KEK apart"
        raise answer
    try:
        return author.wrap(answer.key, item.context, missing)
    finally:
        del answer
