"""What `inspect` and `triage` look with: a ring from the stored keyset or a bundle, and the fleet's reports.

Whatever is missing leaves something unverified; it never makes anything look better. What failed is kept, because it
decides the exit code of a token that stays unverified: 2 nothing given, 4 unreachable, 7 denied.
"""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mcpkeys.errors import McpkeysError, PluginError, SettingError, UriError
from mcpkeys.glimpse import glimpse_of_path, glimpse_of_uri
from mcpkeys.keyset import Key, Keyset
from mcpkeys.reports import ReceivedReport
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing
from mcpkeys_cli.options import keyset_options
from mcpkeys_cli.output import note

if TYPE_CHECKING:
    from mcpkeys.settings import Settings
    from mcpkeys.store import Store

F = TypeVar("F", bound=Callable[..., Any])
READ_SECONDS = 10.0
MAX_SMALL_FILE = 64 << 10


@dataclass(slots=True)
class Sight:
    """What tokens are held against.

    Attributes:
        ring: None without a keyset.
        keyset, reports: of the store, or of the bundle.
        source: a phrase for the reader: where they came from.
        error: what kept a key from being unwrapped or the keyset from being read, or None.
        notes: what else could not be had, one sentence each.
    """

    ring: Ring | SdkRing | None = None
    keyset: Keyset | None = None
    reports: Sequence[ReceivedReport] = ()
    source: str = "no keyset"
    error: McpkeysError | None = None
    notes: list[str] = field(default_factory=list)


def sight_options(command: F) -> F:
    """`--keyset --kek --signer --keyset-name --config`, `--bundle --passphrase-file --sdk-key-file --no-reports`."""
    for option in (
        click.option("--no-reports", is_flag=True, help="Do not read the fleet's reports."),
        click.option(
            "--sdk-key-file",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="The SDK's own keys=[...], one secret a line: reads v1. tokens.",
        ),
        click.option(
            "--passphrase-file",
            type=click.Path(dir_okay=False),
            metavar="FILE",
            help="The bundle's passphrase; without it, it is asked for.",
        ),
        click.option(
            "--bundle", type=click.Path(dir_okay=False), metavar="FILE", help="Keys from mcpkeys bundle; no network."
        ),
    ):
        command = option(command)
    return keyset_options(command, name_option="--keyset-name")


def sight_of(given: dict[str, Any], *, kid: str | None = None, now: float | None = None) -> Sight:
    """Open what the options name. `kid` asks the KEKs for that one key only; None for all of them.

    Raises:
        McpkeysError: an option, file or bundle is wrong. A keyset that cannot be read is no error here: see `error`.
    """
    sdk = None if given.get("sdk_key_file") is None else SdkRing(_secrets(given["sdk_key_file"]))
    if given.get("bundle") is not None:
        return _of_bundle(given, sdk, time.time() if now is None else now)
    settings = _settings(given)
    if not settings.keyset:
        return Sight(ring=sdk, source="no keyset" if sdk is None else "the SDK's keys")
    sight = Sight(ring=sdk, source=settings.keyset)
    try:
        _of_store(sight, settings, sdk, kid, reports=not given.get("no_reports"))
    except McpkeysError as exc:
        sight.error = exc
        if isinstance(exc, UriError | PluginError):
            sight.source = glimpse_of_uri(settings.keyset)
    return sight


def _settings(given: dict[str, Any]) -> Settings:
    from mcpkeys.settings import load_settings

    return load_settings(
        name=given.get("keyset_name"),
        keyset=given.get("keyset"),
        keks=given.get("keks") or None,
        signers=given.get("signers") or None,
        config=given.get("config"),
    )


def _of_bundle(given: dict[str, Any], sdk: SdkRing | None, now: float) -> Sight:
    from mcpkeys import bundle

    path = given["bundle"]
    opened = bundle.open_bundle(
        read_file(path, bundle.MAX_BYTES),
        passphrase(given.get("passphrase_file")),
        now=now,
        signers=_settings(given).signers,
    )
    return Sight(opened.ring(sdk), opened.keyset, opened.reports, f"the bundle {path}")


def _of_store(sight: Sight, settings: Settings, sdk: SdkRing | None, kid: str | None, *, reports: bool) -> None:
    from mcpkeys import document, registry
    from mcpkeys.keyset import Seen, check_succession

    store = registry.open_store(settings.keyset)
    try:
        found = store.read(None, fresh=True, deadline=time.monotonic() + READ_SECONDS)
        assert found is not None
        keyset = document.read(found.body, signers=settings.signers, name=settings.name or None)
        check_succession(Seen(settings.min_generation), keyset)
        sight.keyset, sight.ring = keyset, Ring.from_keyset(keyset, {}, sdk=sdk)
        if not settings.signers:
            sight.notes.append("no signer is pinned: the keyset is whole, but nobody says whose it is")
        if settings.keks:
            _unwrap(sight, keyset, settings, sdk, kid, store if reports else None)
        else:
            sight.notes.append("no KEK is given (MCPKEYS_KEKS), so no key was opened")
    finally:
        store.close()


def _unwrap(
    sight: Sight, keyset: Keyset, settings: Settings, sdk: SdkRing | None, kid: str | None, store: Store | None
) -> None:
    from mcpkeys import listing, reports
    from mcpkeys.keks import Job, Keks, Unwrapped
    from mcpkeys.kms import WrapContext

    wanted: list[Key] = [key for key in keyset.keys if key.wrapped and kid in (None, key.kid)]
    jobs = [Job(WrapContext("seal", keyset.name, key.kid), key.wrapped) for key in wanted]
    report_key = keyset.report_key
    if store is not None:
        jobs.append(Job(WrapContext("report", keyset.name, report_key.kid), report_key.wrapped))
    keks = Keks.open(settings.keks)
    try:
        answers = keks.unwrap(jobs)
    finally:
        keks.close()
    data_keys: dict[str, bytes] = {}
    for key in wanted:
        answer = answers[key.kid]
        if isinstance(answer, Unwrapped):
            data_keys[key.kid] = answer.key
        else:
            sight.error = sight.error or answer
    sight.ring = Ring.from_keyset(keyset, data_keys, sdk=sdk)
    if store is None:
        return
    opened = answers[report_key.kid]
    if not isinstance(opened, Unwrapped):
        sight.notes.append(f"the fleet's reports cannot be checked: {opened.what}")
        return
    try:
        found = list(listing.listed(store, deadline=time.monotonic() + READ_SECONDS))
        looked_at = listing.in_time(found, seconds=READ_SECONDS)
        sight.reports = reports.gather(looked_at, [opened.key], keyset=keyset.name).received
    except McpkeysError as exc:
        sight.notes.append(f"the fleet's reports cannot be read: {exc.what}")


def read_file(path: str, limit: int, *, secret: bool = False) -> bytes:
    """A file's bytes, at most `limit` and one; a pipe will do. Raises `SettingError`.

    `secret`: of a regular file that others than its owner may read or write, stderr is told. It is not refused: mounted
    secrets are often so, and who needs one in an incident cannot change their mode.
    """
    try:
        with open(path, "rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            body = stream.read(limit + 1)
    except OSError as exc:
        raise SettingError(
            f"{glimpse_of_path(path)} cannot be read",
            why=exc.strerror or type(exc).__name__,
            next="name a file you may read",
            code="file",
        ) from None
    if secret and stat.S_ISREG(mode) and mode & 0o077:
        shown = glimpse_of_path(path)
        note(f"warning: {shown} holds a secret and others than its owner may use it (mode {stat.S_IMODE(mode):04o})")
    return body


def passphrase(path: str | None, *, confirm: bool = False) -> str:
    """From the file (without its line end), or asked for on a terminal. Raises `SettingError`, `click.Abort`."""
    if path is not None:
        return read_file(path, MAX_SMALL_FILE, secret=True).decode("utf-8", "surrogateescape").rstrip("\r\n")
    if not sys.stdin.isatty():
        raise SettingError(
            "a passphrase is needed, and stdin is no terminal to ask on",
            why="it is never taken from the command line, where others can read it",
            next="--passphrase-file FILE",
            code="passphrase-needed",
        )
    answer: str = click.prompt("Passphrase", hide_input=True, confirmation_prompt=confirm, err=True)
    return answer


def _secrets(path: str) -> list[str]:
    text = read_file(path, MAX_SMALL_FILE, secret=True).decode("utf-8", "surrogateescape")
    secrets = [line.strip() for line in text.splitlines() if line.strip()]
    if not secrets or any(len(secret.encode("utf-8", "surrogateescape")) < 32 for secret in secrets):
        raise SettingError(
            f"{path} does not hold the SDK's keys",
            why="one secret of at least 32 bytes a line, as in RequestStateSecurity(keys=[...])",
            next="write each secret on a line of its own",
            code="sdk-keys",
        )
    return list(dict.fromkeys(secrets))
