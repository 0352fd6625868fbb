"""Open codecs as a small fleet in this process; each refreshes when a test says so."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

from mcpkeys import EnvelopeCodec
from mcpkeys.settings import load_settings
from mcpkeys_cli.main import main


@contextmanager
def instance(environ: dict[str, str], label: str = "one", **changes: Any) -> Iterator[EnvelopeCodec]:
    """One open codec; `refresh(codec)` is its next refresh."""
    settings = load_settings({k: v for k, v in environ.items() if k.startswith("MCPKEYS_")})
    fields: dict[str, Any] = {"keyset": settings.keyset, "keks": settings.keks, "signers": settings.signers}
    codec = EnvelopeCodec.open(settings.name, **{**fields, **changes}, instance=label, refresh="inline")
    try:
        yield codec
    finally:
        codec.close()


def refresh(*codecs: EnvelopeCodec, canaries: bool = False) -> None:
    """One refresh and one report of each, canaries due at once where asked."""
    for codec in codecs:
        refresher = codec._refresher
        assert refresher is not None
        if canaries:
            refresher._canaries._next = refresher._canaries._owed_at = 0.0
        refresher.step()


def command(*arguments: str) -> dict[str, Any]:
    """The JSON answer of one `mcpkeys` command, run in this process under this process's environment."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main([*arguments, "--output", "json"])
    answer: dict[str, Any] = json.loads(out.getvalue())
    assert answer["exit"] == code
    return answer
