"""`mcpkeys set`: change a setting of the keyset, or its signer, without an editor."""

from __future__ import annotations

import os
from typing import Any, Literal

import click

from mcpkeys.audience import require_audience
from mcpkeys.authoring import whoami
from mcpkeys.changing import Change, decide
from mcpkeys.errors import SettingError
from mcpkeys.keyset import Evidence
from mcpkeys.newsigner import prepare, switch
from mcpkeys.revising import Fleet, Revision, revise
from mcpkeys.signerfile import MAX_BYTES
from mcpkeys.stepping import Observed
from mcpkeys_cli.init import whole
from mcpkeys_cli.options import DURATION, author_of, keyset_options, output_option
from mcpkeys_cli.output import Answer, escape, note
from mcpkeys_cli.revised import answer, asking

EPILOG = """Examples:

\b
  mcpkeys set --ttl 15m                            servers take it when they restart
  mcpkeys set --max-stale 10m --yes
  mcpkeys set --audience orders --reason "renamed with release 12"
  mcpkeys set --new-signer fleet.signer.json       prepares a new signer; pin it beside the old one at every server
  mcpkeys set --new-signer fleet.signer.json --attest "deploy 4711 pins both"      lets it sign
"""


@click.command("set", epilog=EPILOG)
@click.option("--ttl", type=DURATION, help="How long a round may take.")
@click.option("--skew", type=DURATION, help="How far clocks may differ.")
@click.option("--refresh", type=DURATION, help="How often servers look for a change.")
@click.option("--max-stale", metavar="DURATION|off", help="Serve no longer than this without a refresh.")
@click.option("--max-token-chars", type=click.IntRange(1), help="The longest token that is minted or accepted.")
@click.option("--audience", metavar="A", help="The service's audience; on a live fleet it needs --reason.")
@click.option("--evidence", type=click.Choice(["reports", "attest"]), help="On whose word a rotation goes on.")
@click.option(
    "--new-signer",
    is_flag=False,
    flag_value="mcpkeys.signer.json",
    metavar="FILE",
    help="Prepare a new signer in FILE; the second time, let it sign.",
)
@click.option("--attest", metavar="TEXT", default="", help="Your word that every server pins both signers.")
@click.option("--reason", metavar="R", default="", help="Why; recorded in the history.")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyset_options
@output_option
def command(
    ttl: float | None,
    skew: float | None,
    refresh: float | None,
    max_stale: str | None,
    max_token_chars: int | None,
    audience: str | None,
    evidence: Evidence | None,
    new_signer: str | None,
    attest: str,
    reason: str,
    dry_run: bool,
    yes: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Change a setting of the keyset. Ttl and audience take effect when servers restart, the rest with a refresh."""
    change = Change(
        ttl=_whole("--ttl", ttl, 1),
        skew=_whole("--skew", skew, 0),
        refresh=_whole("--refresh", refresh, 1),
        max_stale=_max_stale(max_stale),
        max_token_chars=max_token_chars,
        audience=audience,
        evidence=evidence,
        reason=reason,
        who=whoami(),
    )
    if new_signer is not None:
        if change.fields():
            raise SettingError(
                "--new-signer goes alone", why="it is a change of its own", next="two commands", code="usage"
            )
        return _new_signer(new_signer, attest, reason, given, dry=dry_run, yes=yes)
    if audience is not None:
        for finding in require_audience(audience):
            note(f"warning: {finding.what}: {finding.why}\n  next: {finding.next}")
    with author_of(given) as author:

        def decided(observed: Observed) -> Revision:
            return decide(observed.stored.keyset, Fleet.of(observed), change, now=observed.now)

        revised = revise(author, decided, agreed=asking(yes=yes), dry=dry_run)
    keyset = revised.written or revised.observed.stored.keyset
    more = {
        "settings": {
            "audience": keyset.audience,
            "ttl_seconds": keyset.ttl_seconds,
            "skew_seconds": keyset.skew_seconds,
            "refresh_seconds": keyset.refresh_seconds,
            "max_stale_seconds": keyset.max_stale_seconds,
            "max_token_chars": keyset.max_token_chars,
            "evidence": keyset.evidence,
        }
    }
    return answer("set", revised, dry=dry_run, more=more)


def _whole(option: str, seconds: float | None, least: int) -> int | None:
    return None if seconds is None else whole(option, seconds, least)


def _max_stale(text: str | None) -> int | Literal["off"] | None:
    if text is None or text == "off":
        return "off" if text else None
    return whole("--max-stale", DURATION.convert(text, None, None), 1)


def _new_signer(path: str, attest: str, reason: str, given: dict[str, Any], *, dry: bool, yes: bool) -> Answer:
    """The first stage where the file is not there, the second where it is."""
    body = _read(path)
    with author_of(given) as author:
        if body is None:
            if attest:
                raise SettingError(
                    f"there is no {path} to let sign",
                    why="--attest belongs to the second stage",
                    next=f"prepare it first: mcpkeys set --new-signer {path}",
                    code="signer-file",
                )
            signer, made = prepare(author)
            if not dry:
                _create(path, made)
            return _prepared(path, signer.public, author.pins.signers, dry=dry)
        revised, back = switch(
            author, body, attest=attest, reason=reason, who=whoami(), agreed=asking(yes=yes), dry=dry
        )
    more: dict[str, Any] = {
        "stage": "switch",
        "signer": (revised.written or revised.observed.stored.keyset).signer.public,
    }
    extra = ""
    if back is not None:
        more["former"] = former = f"{path}.former"
        extra = f"the way back is kept in {escape(former)}"
        try:
            _create(former, back)
        except SettingError as exc:
            extra = f"warning: the way back to the former signer was not kept: {exc.what} ({exc.why})"
    return answer("set", revised, dry=dry, more=more, extra=extra)


def _prepared(path: str, public: str, pins: tuple[str, ...], *, dry: bool) -> Answer:
    both = ",".join((*pins, public))
    data = {
        "verdict": "do", "code": "do", "why": "a new signer is prepared; nothing of the keyset changed",
        "stage": "prepare", "file": path, "signer": public, "signers": both, "written": False, "dry_run": dry,
    }  # fmt: skip
    text = (
        f"prepared in {escape(path)} (no secret in it): {public}\nthe keyset is as it was; the present signer signs on"
    )
    return Answer(
        "set",
        data=data,
        text="nothing was prepared (--dry-run)" if dry else text,
        next=f"pin both here and at every server, and restart them: MCPKEYS_SIGNERS={both}; then "
        f'mcpkeys set --new-signer {path} --attest "..."',
    )


def _read(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _file_error(path, exc, "read") from None


def _create(path: str, body: bytes) -> None:
    """Whole or not at all, and over nothing."""
    try:
        with open(path, "xb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as exc:
        raise _file_error(path, exc, "written") from None


def _file_error(path: str, exc: OSError, doing: str) -> SettingError:
    return SettingError(
        f"{path} cannot be {doing}", why=exc.strerror or type(exc).__name__, next="name another file", code="file"
    )
