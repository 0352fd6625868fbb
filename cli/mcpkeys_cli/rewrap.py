"""`mcpkeys rewrap`: the same keys under newer KEK versions, or under other KEKs."""

from __future__ import annotations

from typing import Any

import click

from mcpkeys import registry
from mcpkeys.authoring import whoami
from mcpkeys.revising import Revision
from mcpkeys.rewrapper import Rewrapped, rewrap
from mcpkeys.rewrapping import Layout, Request
from mcpkeys.stepping import Observed
from mcpkeys_cli.init import resolved
from mcpkeys_cli.options import author_of, confirm, keyset_options, output_option
from mcpkeys_cli.output import Answer, escape, note, paint, table

EPILOG = """Examples:

\b
  mcpkeys rewrap                                   after a KEK was rotated in its KMS
  mcpkeys rewrap --add-kek URI                     then pin it at every server, and restart them
  mcpkeys rewrap --remove-kek URI                  refused until every instance has unwrapped by one that stays
  mcpkeys rewrap --add-sign-kek URI --remove-sign-kek URI      a KEK of the signer's own
"""


@click.command("rewrap", epilog=EPILOG)
@click.option("--add-kek", "add", multiple=True, metavar="URI", help="Wrap every key by this KEK too; repeatable.")
@click.option("--remove-kek", "remove", multiple=True, metavar="URI", help="Wrap no key by this KEK any more.")
@click.option("--add-sign-kek", "add_sign", multiple=True, metavar="URI", help="Wrap the signer by this KEK too.")
@click.option("--remove-sign-kek", "remove_sign", multiple=True, metavar="URI", help="No longer wrap the signer by it.")
@click.option("--skip-kek", "skip", multiple=True, metavar="URI", help="Leave this KEK alone: it is down today.")
@click.option("--renew", is_flag=True, help="Also wraps of KEKs that show no versions (AWS).")
@click.option("--allow-missing", multiple=True, metavar="ID", help="An instance you know is stopped; repeatable.")
@click.option(
    "--attest", metavar="TEXT", default="", help="Your word that every server can do without (evidence: attest)."
)
@click.option("--reason", metavar="R", default="", help="Why; recorded in the history.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyset_options
@output_option
def command(
    add: tuple[str, ...],
    remove: tuple[str, ...],
    add_sign: tuple[str, ...],
    remove_sign: tuple[str, ...],
    skip: tuple[str, ...],
    renew: bool,
    allow_missing: tuple[str, ...],
    attest: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Wrap the same keys under the KEKs' newest versions, or under other KEKs. No token changes, no server restarts."""
    request = Request(
        add=_pinned(add),
        remove=_canonical(remove),
        add_sign=_pinned(add_sign),
        remove_sign=_canonical(remove_sign),
        skip=_canonical(skip),
        renew=renew,
        allow_missing=allow_missing,
        attest=attest,
        reason=reason,
        who=whoami(),
    )

    def agreed(revision: Revision, observed: Observed, layout: Layout) -> None:
        if not yes:
            note(f"{paint('plan', 'bold')}: {escape(revision.why)}\n{_table(layout)}")
        confirm("Go ahead?", yes=yes)

    with author_of(given, skip=request.skip, adding=request.add) as author:
        return _answer(rewrap(author, request, agreed=agreed, dry=dry_run), dry=dry_run)


def _canonical(uris: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(registry.open_kms(uri).uri for uri in uris)


def _pinned(uris: tuple[str, ...]) -> tuple[str, ...]:
    """Canonical, aliases resolved."""
    return tuple(resolved(registry.open_kms(uri)).uri for uri in uris)


def _answer(done: Rewrapped, *, dry: bool) -> Answer:
    revision, written = done.revised.revision, done.revised.written
    keyset = written or done.revised.observed.stored.keyset
    layout = done.layout
    data: dict[str, Any] = {
        "verdict": revision.verdict,
        "code": revision.code,
        "why": revision.why,
        "generation": keyset.generation,
        "keks": list(keyset.keks if revision.document is None else layout.keks),
        "sign_keks": list(keyset.sign_keks if revision.document is None else layout.sign_keks),
        "wraps": [
            {"kid": kid, "purpose": purpose, "kek": kek, "action": action}
            for kid, purpose, kek, action in _rows(layout)
        ],
        "left": [{"kid": kid, "why": why} for kid, why in done.left],
        "notes": list(done.notes),
        "effects": list(revision.effects),
        "blocking": [
            {"instance": entry.instance, "label": entry.label, "why": entry.why, "code": entry.code}
            for entry in revision.blocking
        ],
        "dry_run": dry,
        "written": written is not None,
    }
    return Answer(
        "rewrap",
        data=data,
        text=_text(done, dry=dry),
        next=revision.next,
        exit=revision.exit_code,
        code=revision.code,
        message=revision.why,
    )


def _rows(layout: Layout) -> list[tuple[str, str, str, str]]:
    rows: list[tuple[str, str, str, str]] = []
    for item in layout.due:
        kid, purpose = item.context.kid, str(item.context.purpose)
        rows += [(kid, purpose, kek, action) for kek, action in item.todo]
        rows += [(kid, purpose, kek, "drop") for kek in item.dropped]
    return rows


def _table(layout: Layout) -> str:
    return table(("KID", "PURPOSE", "KEK", "ACTION"), _rows(layout))


def _text(done: Rewrapped, *, dry: bool) -> str:
    revision, written = done.revised.revision, done.revised.written
    lines: list[str] = []
    if revision.verdict == "do":
        lines += [_table(done.layout), ""]
        if written is None:
            lines.append("nothing was written (--dry-run)" if dry else "")
        else:
            lines.append(f"generation {written.generation}: {escape(revision.why)}")
        lines += [escape(effect) for effect in revision.effects]
    elif revision.verdict == "done":
        lines.append(escape(revision.why))
    elif revision.blocking:
        rows = [(entry.instance, entry.label or "-", entry.why) for entry in revision.blocking[:20]]
        lines.append(table(("INSTANCE", "LABEL", "WHY"), rows))
    lines += [f"note: the retired key {kid} kept its wraps: {escape(why)}" for kid, why in done.left]
    lines += [f"note: {escape(text)}" for text in done.notes]
    return "\n".join(lines)
