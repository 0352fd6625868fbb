"""`mcpkeys bundle`: keys for inspection on a machine without a network, in one file under a passphrase.

Its making is recorded in the keyset's history before the file exists: a bundle that nobody knows of must not be.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from mcpkeys import bundle
from mcpkeys.authoring import Author, whoami
from mcpkeys.encoding import format_ms, to_ms
from mcpkeys.errors import McpkeysError, SettingError
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.keyset import HistoryEntry, Keyset, digest, with_history
from mcpkeys.kms import WrapContext
from mcpkeys.reports import ReceivedReport
from mcpkeys_cli.options import DURATION, author_of, confirm, keyset_options, output_option
from mcpkeys_cli.output import Answer, duration, note, table
from mcpkeys_cli.sight import passphrase

EPILOG = """Then, on the other machine: mcpkeys inspect --bundle FILE --file token.txt

\b
  mcpkeys bundle --out incident.bundle --expires 24h
  mcpkeys bundle --out incident.bundle --passphrase-file pass.txt --reason "incident 4711" --yes
"""


@click.command("bundle", epilog=EPILOG)
@click.option("--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="Must not exist; 0600.")
@click.option("--expires", type=DURATION, default="24h", show_default=True, help="At most 7d.")
@click.option("--include-minting", is_flag=True, help="Also the key that mints now: the bundle can then forge tokens.")
@click.option("--passphrase-file", type=click.Path(dir_okay=False), metavar="FILE", help="Else it is asked for.")
@click.option("--reason", metavar="R", default="", help="Why; recorded in the history.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@keyset_options
@output_option
def command(
    out: str,
    expires: float,
    include_minting: bool,
    passphrase_file: str | None,
    reason: str,
    yes: bool,
    output: str,
    **given: Any,
) -> Answer:
    """Put verifying and retired keys into one passphrase-protected file, for inspect and triage without a network."""
    path = Path(out)
    if path.exists():
        raise SettingError(f"{out} exists", why="a bundle never overwrites", next="choose another name", code="file")
    with author_of(given) as author:
        keyset = author.read().keyset
        kids = bundle.selected(keyset, include_minting=include_minting)
        if not kids:
            raise SettingError(
                "there is no key to put into a bundle",
                why="the keyset has only its minting key, which is left out: with it a bundle can forge tokens",
                next="--include-minting, if tokens that are minted now have to be read",
                code="bundle-empty",
            )
        secret = passphrase(passphrase_file, confirm=True)
        now, _ = author.now()
        # Refuses a short passphrase or a long expiry before anything is written anywhere.
        bundle.seal(keyset, {}, (), secret, now=now, expires=expires)
        confirm(f"Bundle {len(kids)} keys of {keyset.name} until {format_ms(to_ms(now + expires))}?", yes=yes)
        data_keys = _unwrapped(author.keks, keyset, kids)
        received = _reports(author, keyset)
        what = f"bundle of {len(kids)} keys{', the minting one included' if include_minting else ''}, "
        what += f"expires {format_ms(to_ms(now + expires))}"
        written = _record(author, what, reason, kids, to_ms(now))
        _write(path, bundle.seal(written, data_keys, received, secret, now=now, expires=expires))
    data = {
        "out": str(path),
        "name": written.name,
        "generation": written.generation,
        "kids": list(kids),
        "expires_at": format_ms(to_ms(now + expires)),
        "include_minting": include_minting,
        "reports": len(received),
    }
    states = {key.kid: key.state for key in written.keys}
    text = "\n".join(
        [
            f"{path}: {len(kids)} keys of {written.name}, generation {written.generation}, for {duration(expires)}",
            "",
            table(("KEY", "STATE"), [(kid, states[kid]) for kid in kids]),
            "",
            "recorded in the keyset's history; whoever has the file and its passphrase can open these keys' tokens, "
            "and forge them while an instance verifies them",
        ]
    )
    return Answer("bundle", data=data, text=text, next=f"mcpkeys inspect --bundle {path} --file token.txt")


def _unwrapped(keks: Keks, keyset: Keyset, kids: tuple[str, ...]) -> dict[str, bytes]:
    jobs = [Job(WrapContext("seal", keyset.name, key.kid), key.wrapped) for key in keyset.keys if key.kid in set(kids)]
    opened: dict[str, bytes] = {}
    for kid, answer in keks.unwrap(jobs).items():
        if not isinstance(answer, Unwrapped):
            raise answer
        opened[kid] = answer.key
    return opened


def _reports(author: Author, keyset: Keyset) -> tuple[ReceivedReport, ...]:
    try:
        return author.gather(keyset).received
    except McpkeysError as exc:
        note(f"warning: without the fleet's reports, inspect cannot name minting instances ({exc.what})")
        return ()


def _record(author: Author, what: str, reason: str, kids: tuple[str, ...], now_ms: int) -> Keyset:
    """The keyset with one more entry of history, written. Raises `Conflict` where it changed meanwhile."""
    stored = author.read()
    keyset = stored.keyset
    gone = [kid for kid in kids if keyset.key(kid) is None]
    if gone:
        raise SettingError(
            f"the keyset changed meanwhile: {gone[0]} is gone", next="run the same command again", code="conflict"
        )
    generation = keyset.generation + 1
    entry = HistoryEntry(now_ms, whoami(), what, generation, reason)
    following = replace(keyset, generation=generation, previous=digest(keyset), signature="")
    written, _ = author.write(with_history(following, entry), stored.version, author.signer(keyset))
    return written


def _write(path: Path, body: bytes) -> None:
    """Create the file, 0600 from its first moment, never over another. Raises `SettingError`."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(body)
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as exc:
        raise SettingError(
            f"{path} cannot be written",
            why=exc.strerror or type(exc).__name__,
            next="choose another place; the history names a bundle that was never made",
            code="file",
        ) from None
