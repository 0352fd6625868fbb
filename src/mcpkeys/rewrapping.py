"""`mcpkeys rewrap`: the same keys under newer KEK versions or other KEKs. What is due, and what forbids it. Pure.

Nothing of a token changes: kids, states and data keys stay. A wrapped key (an `Item`) is a data key, the report key
or the signer; for each of its KEKs it keeps the wrap it has, gets it renewed (same KEK, newer version: the KMS does it
without showing the key where it can), gets a first one, or loses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import MAX_KEKS, Keyset
from mcpkeys.kms import KekState, Purpose, Wrap, WrapContext, identity
from mcpkeys.reports import Report
from mcpkeys.revising import Fleet, Revision, named, succeed, unsafe
from mcpkeys.revising import done as nothing
from mcpkeys.steps import Blocking

Action = Literal["wrap", "renew"]


@dataclass(frozen=True, slots=True)
class Request:
    """What the operator asks for. URIs are canonical.

    Attributes:
        add, remove: KEKs of the data keys and the report key.
        add_sign, remove_sign: KEKs of the signer. Where the signer is wrapped by the very KEKs of the data keys it
            follows `add` and `remove` by itself.
        skip: KEKs that are left alone: down today, rewrapped another day.
        renew: also wraps of KEKs that show no versions (AWS), where nobody can tell whether they are old.
        allow_missing: ids of instances that the operator knows to be stopped.
        attest: the operator's word that every server can unwrap without the removed KEK (evidence: attest).
    """

    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    add_sign: tuple[str, ...] = ()
    remove_sign: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    renew: bool = False
    allow_missing: tuple[str, ...] = ()
    attest: str = ""
    reason: str = ""
    who: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """One wrapped key and what becomes of its wraps.

    Attributes:
        context: what it is bound to.
        live: False for a retired key, kept for inspection: failing to rewrap it stops nothing.
        wrapped: as it is now.
        kept: the wraps that stay as they are.
        todo: (KEK, action), in the keyset's order of KEKs.
        dropped: KEKs whose wrap goes.
    """

    context: WrapContext
    live: bool
    wrapped: tuple[Wrap, ...]
    kept: tuple[Wrap, ...]
    todo: tuple[tuple[str, Action], ...]
    dropped: tuple[str, ...]

    @property
    def changes(self) -> bool:
        """Whether anything becomes of it."""
        return bool(self.todo or self.dropped)


@dataclass(frozen=True, slots=True)
class Layout:
    """The KEKs after the change, and every wrapped key's part in it.

    Attributes:
        keks, sign_keks: of the document to write.
        items: data keys in the document's order, then the report key, then the signer.
    """

    keks: tuple[str, ...]
    sign_keks: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def due(self) -> tuple[Item, ...]:
        """What has to be done."""
        return tuple(item for item in self.items if item.changes)


def targets(keyset: Keyset, request: Request) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(keks, sign_keks) after the change. Raises `ConfigurationError` for a change that makes no sense."""
    both = {identity(uri) for uri in request.add} & {identity(uri) for uri in request.remove}
    if both:
        raise ConfigurationError(
            f"{sorted(both)[0]} is to be added and to be removed", next="decide for one of them", code="kek-both"
        )
    follows = _same(keyset.keks, keyset.sign_keks)
    keks = _changed(keyset.keks, request.add, request.remove)
    add_sign = request.add_sign + (request.add if follows else ())
    sign = _changed(keyset.sign_keks, add_sign, request.remove_sign)
    # A KEK that goes goes everywhere: whoever removes it is about to revoke or destroy it.
    sign = _changed(sign, (), request.remove)
    for what, uris in (("keyset", keks), ("signer", sign)):
        if not uris:
            raise ConfigurationError(
                f"the last KEK of the {what} cannot be removed",
                why="nothing would unwrap any more",
                next="first add another one: mcpkeys rewrap "
                + ("--add-kek URI" if what == "keyset" else "--add-sign-kek URI"),
                code="kek-last",
            )
        if len(uris) > MAX_KEKS:
            raise ConfigurationError(
                f"the {what} would have {len(uris)} KEKs",
                why=f"at most {MAX_KEKS}",
                next="remove one: mcpkeys rewrap --remove-kek URI",
                code="kek-many",
            )
    return keks, sign


def _same(one: Sequence[str], other: Sequence[str]) -> bool:
    return {identity(uri) for uri in one} == {identity(uri) for uri in other}


def _changed(uris: Sequence[str], add: Sequence[str], remove: Sequence[str]) -> tuple[str, ...]:
    """A KEK that is not there is removed already, one that is there is added already: repeating is no error."""
    gone = {identity(uri) for uri in remove}
    known = {identity(uri) for uri in uris}
    kept = [uri for uri in uris if identity(uri) not in gone]
    return (*kept, *(uri for uri in dict.fromkeys(add) if identity(uri) not in known))


def layout(keyset: Keyset, request: Request, states: Mapping[str, KekState]) -> Layout:
    """What has to be done. `states` by `identity`: a KEK without one shows no versions."""
    keks, sign_keks = targets(keyset, request)
    items: list[Item] = []

    def item(purpose: Purpose, kid: str, wrapped: tuple[Wrap, ...], wanted: tuple[str, ...], *, live: bool) -> None:
        items.append(_item(WrapContext(purpose, keyset.name, kid), wrapped, wanted, request, states, live=live))

    for key in keyset.keys:
        if key.wrapped:
            item("seal", key.kid, key.wrapped, keks, live=key.state != "retired")
    item("report", keyset.report_key.kid, keyset.report_key.wrapped, keks, live=True)
    item("sign", keyset.signer.kid, keyset.signer.wrapped, sign_keks, live=True)
    return Layout(keks, sign_keks, tuple(items))


def _item(
    context: WrapContext,
    wrapped: tuple[Wrap, ...],
    wanted: tuple[str, ...],
    request: Request,
    states: Mapping[str, KekState],
    *,
    live: bool,
) -> Item:
    skipped = {identity(uri) for uri in request.skip}
    by_kek = {identity(wrap.kek): wrap for wrap in wrapped}
    kept: list[Wrap] = []
    todo: list[tuple[str, Action]] = []
    for uri in wanted:
        wrap = by_kek.get(identity(uri))
        if identity(uri) in skipped:
            kept += [] if wrap is None else [wrap]
        elif wrap is None:
            todo.append((uri, "wrap"))
        elif _old(wrap, states.get(identity(uri)), renew=request.renew):
            todo.append((uri, "renew"))
        else:
            kept.append(wrap)
    names = {identity(uri) for uri in wanted}
    dropped = tuple(wrap.kek for name, wrap in by_kek.items() if name not in names)
    return Item(context, live, wrapped, tuple(kept), tuple(todo), dropped)


def _old(wrap: Wrap, state: KekState | None, *, renew: bool) -> bool:
    newest = None if state is None else state.newest
    return renew or (newest is not None and wrap.version != newest)


def decide(
    keyset: Keyset, fleet: Fleet, request: Request, states: Mapping[str, KekState], *, now: float
) -> tuple[Revision, Layout]:
    """Whether the keyset may be rewrapped, and how. The document still lacks the new wraps: `complete` adds them.

    Raises:
        ConfigurationError: the last KEK is removed, a KEK is both added and removed, or there would be too many.
    """
    planned = layout(keyset, request, states)
    bare = [item.context.kid for item in planned.items if item.live and not item.kept and not item.todo]
    if bare:
        raise ConfigurationError(
            f"the key {bare[0]} would be wrapped by nothing",
            why="the KEKs that stay are skipped and have not wrapped it",
            next="remove the old KEK once the skipped one answers: mcpkeys rewrap --add-kek first",
            code="kek-last",
        )
    moves = not (_exactly(planned.keks, keyset.keks) and _exactly(planned.sign_keks, keyset.sign_keks))
    if not planned.due and not moves:
        silent = [uri for uri in planned.keks if not request.renew and _shows_no_version(states.get(identity(uri)))]
        why = "every key is wrapped by every KEK's newest version"
        if silent:
            why += f" (as far as they show versions; {', '.join(silent)} does not: --renew does it regardless)"
        return nothing(f"nothing to do: {why}"), planned
    if not _exactly(planned.keks, keyset.keks):
        refusal = _refused(keyset, fleet, request, planned)
        if refusal is not None:
            return refusal, planned
    added = [uri for uri in planned.keks if identity(uri) not in {identity(old) for old in keyset.keks}]
    removed = [uri for uri in keyset.keks if identity(uri) not in {identity(new) for new in planned.keks}]
    what = _what(planned, added, removed)
    overrides = [f"--allow-missing {instance}" for instance in request.allow_missing]
    overrides += [f"--attest {request.attest}"] if request.attest and removed else []
    overrides += [f"--skip-kek {uri}" for uri in request.skip]
    document = succeed(
        keyset,
        now,
        what,
        who=request.who,
        reason=request.reason,
        overrides=overrides,
        keks=planned.keks,
        sign_keks=planned.sign_keks,
    )
    return Revision("do", what, _next(added, removed), document, "do", _effects(added, removed, request)), planned


def _exactly(one: Sequence[str], other: Sequence[str]) -> bool:
    return [identity(uri) for uri in one] == [identity(uri) for uri in other]


def _shows_no_version(state: KekState | None) -> bool:
    return state is None or state.newest is None


def _what(planned: Layout, added: Sequence[str], removed: Sequence[str]) -> str:
    parts = [f"{len(planned.due)} keys rewrapped"]
    parts += [f"KEK added: {uri}" for uri in added]
    parts += [f"KEK removed: {uri}" for uri in removed]
    return "rewrap: " + "; ".join(parts)


def _next(added: Sequence[str], removed: Sequence[str]) -> str:
    if added:
        return (
            f"pin it at every server beside the old ones (MCPKEYS_KEKS=...,{added[0]}) and restart them: a wrap by a "
            "KEK that is not pinned is ignored; mcpkeys doctor --as-server proves it there"
        )
    if removed:
        return f"take {removed[0]} out of MCPKEYS_KEKS at every server's next deployment; then its rights may go"
    return "mcpkeys status --watch until every instance holds the new generation; then old KEK versions may go"


def _effects(added: Sequence[str], removed: Sequence[str], request: Request) -> tuple[str, ...]:
    found = ["no token changes and no key: running servers only read the document again"]
    if added:
        found.append("a server uses the added KEK once it is in its MCPKEYS_KEKS and the server was restarted")
    if removed:
        found.append(
            "keys made from now on are not wrapped by the removed KEK: a server that pins only it cannot start"
        )
    if request.skip:
        found.append(f"skipped: {', '.join(request.skip)}; run mcpkeys rewrap again once it answers")
    return tuple(found)


def _refused(keyset: Keyset, fleet: Fleet, request: Request, planned: Layout) -> Revision | None:
    """The refusal to remove a KEK while a live instance has not shown that it can unwrap through one that stays."""
    after = {identity(uri) for uri in planned.keks}
    if all(identity(uri) in after for uri in keyset.keks):
        return None
    if keyset.evidence == "attest":
        if request.attest.strip():
            return None
        return unsafe(
            "rewrap-attest",
            "this keyset's instances do not report, so nobody can see by which KEK they unwrap",
            'say that every server has a KEK that stays: --attest "deploy 4711 pins both"',
        )
    staying = after - {identity(uri) for uri in request.skip}
    before = {identity(uri) for uri in keyset.keks}
    blocking = [
        Blocking(
            entry.report.instance,
            entry.report.label,
            _why(entry.report.unwraps_by, fleet, entry.report.instance),
            "rewrap-unproven",
            True,
        )
        for entry in fleet.live
        if not _shown(entry.report, staying)
    ]
    blocking += [
        Blocking(instance, "", f"its report cannot be believed: {why}", "rewrap-report-rejected", True)
        for instance, why in fleet.unreadable
    ]
    if not blocking:
        return None
    if not staying & before:
        step = "add the new KEK first (mcpkeys rewrap --add-kek URI), restart every server with both in MCPKEYS_KEKS"
    else:
        step = "restart them with a KEK that stays first in MCPKEYS_KEKS; it shows at their first report"
    stopped = [entry.instance for entry in blocking if entry.instance in fleet.silent]
    if stopped:
        words = " ".join(f"--allow-missing {instance}" for instance in stopped)
        step += f"; those that you know are stopped: {words}"
    who = named([entry for entry in fleet.live if entry.report.instance in {b.instance for b in blocking}])
    return unsafe(
        "rewrap-unproven",
        f"{len(blocking)} instances have not shown that they can unwrap without the KEK that is to go: "
        f"{who or blocking[0].instance}",
        step,
        blocking,
    )


def _shown(report: Report, staying: set[str]) -> bool:
    failed = {identity(kek) for kek, canary in report.canary.items() if not canary.ok}
    return bool({identity(kek) for kek in report.unwraps_by} & staying - failed)


def _why(unwraps_by: Sequence[str], fleet: Fleet, instance: str) -> str:
    if instance in fleet.contradicting:
        return "named as missing, but it reports"
    silent = "silent; " if instance in fleet.silent else ""
    return f"{silent}has unwrapped by {', '.join(unwraps_by) or 'nothing yet'} only"


def complete(document: Keyset, planned: Layout, made: Mapping[str, Mapping[str, Wrap]]) -> Keyset:
    """The document with its wraps. `made`: kid -> KEK URI -> new wrap.

    An item of a retired key without all of its new wraps keeps what it had. Raises `ValueError` where a live one
    lacks one.
    """
    after: dict[str, tuple[Wrap, ...]] = {}
    wanted = {"sign": planned.sign_keks}
    for item in planned.due:
        new = made.get(item.context.kid, {})
        if any(uri not in new for uri, _ in item.todo):
            if item.live:
                raise ValueError("a live key lacks a wrap")
            continue
        wraps = {identity(wrap.kek): wrap for wrap in (*item.kept, *new.values())}
        order = [identity(uri) for uri in wanted.get(item.context.purpose, planned.keks)]
        after[item.context.kid] = tuple(wraps[name] for name in order if name in wraps)
    signer, report_key = document.signer, document.report_key
    return replace(
        document,
        # Wraps that were kept long enough are gone by this very write, and stay gone.
        keys=tuple(
            replace(key, wrapped=after.get(key.kid, key.wrapped)) if key.wrapped else key for key in document.keys
        ),
        report_key=replace(report_key, wrapped=after.get(report_key.kid, report_key.wrapped)),
        signer=replace(signer, wrapped=after.get(signer.kid, signer.wrapped)),
    )
