"""`mcpkeys verify`: is this document whole, authentic and the pinned one? Needs no KMS."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from mcpkeys import document, registry
from mcpkeys import keyset as keysets
from mcpkeys.errors import McpkeysError, SettingError
from mcpkeys.findings import Finding
from mcpkeys.glimpse import glimpse_of_path
from mcpkeys.keyset import Keyset
from mcpkeys_cli.options import keyset_options, output_option, settings_of
from mcpkeys_cli.output import Answer, escape, moment, table


@click.command("verify", epilog="Example: mcpkeys verify backup.json --signer ed25519:...")
@click.argument("file", required=False)
@keyset_options
@output_option
def command(file: str | None, output: str, **given: Any) -> Answer:
    """Check a keyset document: syntax, signature, pins, caps. FILE (or - for stdin), or the stored keyset."""
    settings = settings_of(given)
    source = file or settings.keyset
    if not source:
        raise SettingError(
            "there is nothing to verify",
            why="neither FILE nor MCPKEYS_KEYSET is given",
            next="mcpkeys verify FILE, or --keyset URI",
            code="setting-missing",
        )
    body = _body(file, settings.keyset)
    findings: list[Finding] = []
    try:
        keyset = document.read(body, signers=settings.signers, name=settings.name or None)
        keysets.check_succession(keysets.Seen(settings.min_generation), keyset)
    except McpkeysError as exc:
        finding = Finding(exc.code, "refused", source, exc.what, exc.why, exc.next)
        return Answer(
            "verify",
            data={"source": source, "findings": [_json(finding)]},
            exit=exc.exit_code,
            code=exc.code,
            message=exc.what,
            why=exc.why,
            next=exc.next,
        )
    if not settings.signers:
        findings.append(
            Finding(
                "signer-not-pinned", "warned", source, "the document is whole, but nobody says whose it is",
                "no signer is pinned, so the signature was only compared with the signer it names itself",
                f"pin it: MCPKEYS_SIGNERS={keyset.signer.public}",
            )
        )  # fmt: skip
    data: dict[str, Any] = {
        "source": source,
        "name": keyset.name,
        "generation": keyset.generation,
        "digest": keysets.digest(keyset),
        "signer": keyset.signer.public,
        "findings": [_json(finding) for finding in findings],
    }
    return Answer("verify", data=data, text=_text(source, keyset, findings), next="mcpkeys status")


def _body(file: str | None, uri: str) -> bytes:
    if file == "-":
        return sys.stdin.buffer.read(keysets.MAX_BODY_BYTES + 1)
    if file is not None:
        try:
            with open(file, "rb") as stream:
                return stream.read(keysets.MAX_BODY_BYTES + 1)
        except OSError as exc:
            raise SettingError(
                f"{glimpse_of_path(file)} cannot be read",
                why=exc.strerror or type(exc).__name__,
                next="name a file you may read",
                code="file",
            ) from None
    store = registry.open_store(uri)
    try:
        found = store.read(None, fresh=True, deadline=time.monotonic() + 10)
    finally:
        store.close()
    assert found is not None
    return found.body


def _json(finding: Finding) -> dict[str, str]:
    return {
        "code": finding.code,
        "level": finding.level,
        "subject": finding.subject,
        "what": finding.what,
        "why": finding.why,
        "next": finding.next,
    }


def _rows(keyset: Keyset, now: float) -> list[tuple[str, ...]]:
    return [(key.kid, key.state, moment(key.state_since, now)) for key in keyset.keys]


def _text(source: str, keyset: Keyset, findings: list[Finding]) -> str:
    now = time.time()
    lines = [
        f"{escape(source)}: keyset {keyset.name}, generation {keyset.generation}",
        f"authentic under {keyset.signer.public}",
        f"audience {escape(keyset.audience)}, ttl {keyset.ttl_seconds} s, KEKs {', '.join(keyset.keks)}",
        "",
        table(("KID", "STATE", "SINCE"), _rows(keyset, now)),
    ]
    lines += [
        f"warning: {escape(f'{finding.what}: {finding.why}')}\n  next: {escape(finding.next)}" for finding in findings
    ]
    return "\n".join(lines)
