"""`mcpkeys init`: a keyset with its signer and first key, and the settings a server needs."""

from __future__ import annotations

import os
import shlex
import time
from typing import Any

import click

from mcpkeys import keyset as keysets
from mcpkeys import registry
from mcpkeys.audience import require_audience
from mcpkeys.authoring import Author, Predecessor, exists
from mcpkeys.encoding import to_ms
from mcpkeys.errors import NotFound, SettingError
from mcpkeys.glimpse import glimpse
from mcpkeys.keks import Keks
from mcpkeys.keyset import Keyset
from mcpkeys.kms import Kms, scheme_of
from mcpkeys.loading import Pins
from mcpkeys.settings import Settings
from mcpkeys_cli.options import DURATION, output_option
from mcpkeys_cli.output import Answer, escape, note

EPILOG = """Example:

\b
  mcpkeys init fleet --keyset /etc/mcpkeys/fleet.keyset.json --kek local:///etc/mcpkeys/kek.key
  mcpkeys init fleet --keyset s3://acme-keys/fleet.keyset.json --kek "awskms:///alias/mcpkeys?region=eu-west-1"
"""


@click.command("init", epilog=EPILOG)
@click.argument("name")
@click.option("--keyset", required=True, metavar="URI", help="Where the keyset is stored.")
@click.option("--kek", "keks", multiple=True, required=True, metavar="URI", help="KEK of the data keys; repeatable.")
@click.option("--sign-kek", "sign_keks", multiple=True, metavar="URI", help="KEK of the signer; default: the KEKs.")
@click.option("--audience", metavar="A", help="The service's audience; default: NAME.")
@click.option("--ttl", type=DURATION, default=600, show_default=True, help="How long a round may take.")
@click.option("--skew", type=DURATION, default=60, show_default=True, help="How far clocks may differ.")
@click.option("--refresh", type=DURATION, default=30, show_default=True, help="How often servers look for a change.")
@click.option("--max-stale", default="off", show_default=True, help="Serve no longer than this without a refresh.")
@click.option("--evidence", type=click.Choice(["reports", "attest"]), default="reports", show_default=True)
@click.option("--replace", "replacing", is_flag=True, help="Start anew above the stored generation; needs --reason.")
@click.option("--reason", metavar="R", default="", help="Why, for the history.")
@output_option
def command(
    name: str,
    keyset: str,
    keks: tuple[str, ...],
    sign_keks: tuple[str, ...],
    audience: str | None,
    ttl: float,
    skew: float,
    refresh: float,
    max_stale: str,
    evidence: keysets.Evidence,
    replacing: bool,
    reason: str,
    output: str,
) -> Answer:
    """Create the keyset NAME with its signer and first key; print the settings that servers need."""
    if keysets.NAME.fullmatch(name) is None:
        raise SettingError(
            f"{glimpse(name)} is no name for a keyset",
            why="a name is 1 to 63 of a-z, 0-9, dot, dash and underscore, and begins with a letter or digit",
            next="for example: mcpkeys init fleet --keyset URI --kek URI",
            code="keyset-name",
        )
    audience = name if audience is None else audience
    for finding in require_audience(audience):
        note(f"warning: {finding.what}: {finding.why}\n  next: {finding.next}")
    if replacing and not reason:
        raise SettingError(
            "--replace needs --reason",
            why="every round in flight is refused; the history says why",
            next=f'mcpkeys init {name} ... --replace --reason "why"',
            code="reason-missing",
        )
    refresh_seconds = whole("--refresh", refresh, 1)
    limit = max_stale_seconds(max_stale, refresh_seconds)
    store = registry.open_store(keyset)
    backends = [registry.open_kms(uri) for uri in keks]
    author = Author(store, Keks([resolved(kms) for kms in backends]), Pins(name, ()))
    try:
        now_ms = to_ms(time.time())
        above = _above(author, replacing, now_ms)
        created = [path for kms in backends if (path := _create_local(kms)) is not None]
        signing = sign_keks or author.keks.uris
        opened = [resolved(registry.open_kms(uri)) for uri in signing]
        created += [path for kms in opened if (path := _create_local(kms)) is not None]
        made, _ = author.create(
            name,
            audience=audience,
            sign_keks=tuple(kms.uri for kms in opened),
            now_ms=now_ms,
            ttl_seconds=whole("--ttl", ttl, 1),
            skew_seconds=whole("--skew", skew, 0),
            refresh_seconds=refresh_seconds,
            max_stale_seconds=limit,
            evidence=evidence,
            above=above,
            reason=reason,
        )
        settings = Settings(name=name, keyset=store.uri, keks=author.keks.uris, signers=(made.signer.public,)).environ()
    finally:
        author.close()
    for path in created:
        note(f"created the KEK {path} (0600): back it up, without it nothing unwraps")
    data: dict[str, Any] = {
        "name": name,
        "audience": audience,
        "generation": made.generation,
        "keyset": store.uri,
        "kid": made.minting.kid,
        "signer": made.signer.public,
        "created_keks": created,
        "settings": settings,
    }
    return Answer(
        "init",
        data=data,
        text=_text(made, settings),
        next="set these variables where your servers start; then: mcpkeys status",
    )


def whole(option: str, seconds: float, least: int) -> int:
    """A setting in whole seconds. Raises `SettingError`."""
    if seconds != int(seconds) or seconds < least:
        raise SettingError(
            f"{option} is whole seconds, at least {least}", why=f"got {seconds:g}", next=f"for example {option} 60s"
        )
    return int(seconds)


def max_stale_seconds(text: str, refresh_seconds: int) -> int | None:
    """`off`, or a duration longer than the refresh interval. Raises `SettingError`, `click.BadParameter`."""
    if text == "off":
        return None
    seconds = whole("--max-stale", DURATION.convert(text, None, None), 1)
    if seconds <= 3 * refresh_seconds:
        raise SettingError(
            f"--max-stale must be longer than 3 refresh intervals ({3 * refresh_seconds} s)",
            why="one missed refresh would stop an instance",
            next=f"for example --max-stale {10 * refresh_seconds}s, or off",
        )
    return seconds


def resolved(kms: Kms) -> Kms:
    """The KEK under its permanent name: an alias is looked up once, and what it names now is pinned."""
    resolve = getattr(kms, "resolve", None)
    if resolve is None:
        return kms
    uri: str = resolve(deadline=time.monotonic() + 10)
    return kms if uri == kms.uri else registry.open_kms(uri)


def _above(author: Author, replacing: bool, now_ms: int) -> Predecessor | None:
    """What is stored already: refused without --replace, and what --replace must come above with it."""
    if replacing:
        above = author.predecessor(now_ms)
        if above is not None and above.why:
            note(f"warning: what is stored cannot be read and is replaced: {escape(above.why)}")
        return above
    try:
        author.store.read(None, fresh=True, deadline=author.deadline())
    except NotFound:
        return None
    raise exists(author.store.uri)


def _create_local(kms: Kms) -> str | None:
    """Create a missing local KEK; the path where one was created. No other command does this."""
    if scheme_of(kms.uri) != "local":
        return None
    from mcpkeys_local.kekfile import create_kek
    from mcpkeys_local.kms import LocalKms

    path = LocalKms(kms.uri).path
    if os.path.lexists(path):
        return None
    create_kek(path)
    return path


def _text(made: Keyset, settings: dict[str, str]) -> str:
    lines = [
        f"keyset {made.name}, generation {made.generation}: key {made.minting.kid} mints",
        f"audience {made.audience}, ttl {made.ttl_seconds} s",
        "",
        *[f"export {variable}={shlex.quote(value)}" for variable, value in settings.items()],
        "",
    ]
    return "\n".join(lines)
