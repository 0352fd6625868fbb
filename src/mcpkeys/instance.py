"""An instance: one open codec. Its id, its label, its prefix, and the report it gives of itself."""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Iterable

from mcpkeys.encoding import b64u, to_ms
from mcpkeys.reports import MAX_PREFIXES, Canary, Report, ReportState
from mcpkeys.ring import Ring
from mcpkeys.token import PREFIX_BYTES

_UNPRINTABLE = re.compile(r"[^\x20-\x7e]")
# The SDK writes `v`, `iat`, `exp` first, in this order; only such a payload is read, and only its first bytes.
_WINDOW = re.compile(rb'\{"v":\d+,"iat":(\d{1,12}(?:\.\d{1,20})?),"exp":(\d{1,12}(?:\.\d{1,20})?),')
# Beginnings of payloads are kept until so many are read together: to read one alone costs as much as a seal.
_HEAD_BYTES = 100
_HEADS = 16


def default_label() -> str:
    """What an operator recognises: the pod's or host's name and the process id, at most 255 printable characters."""
    host = _UNPRINTABLE.sub("?", os.environ.get("HOSTNAME") or socket.gethostname())[:240] or "unnamed"
    return f"{host}:{os.getpid()}"


class Instance:
    """Who this codec is, and what it has done since it began. Redrawn after fork."""

    def __init__(self, label: str | None = None) -> None:
        self._label = None if label is None else _UNPRINTABLE.sub("?", label)[:255]
        self.redraw()

    def redraw(self) -> None:
        """A new id and a new prefix: a forked child is another instance and shares neither."""
        self.id = b64u(secrets.token_bytes(16))
        self.pid = os.getpid()
        self.label = default_label() if self._label is None else self._label
        self.seq = 0
        self.prefixes: list[str] = []
        self.minting_since: int | None = None
        self.mints: str | None = None
        self._ttl_observed: float | None = None
        self._heads: list[bytes] = []
        self._reading = threading.RLock()  # a signal handler may write the farewell amid a seal
        self.canary: dict[str, Canary] = {}
        self.new_prefix()

    def new_prefix(self) -> bytes:
        """Draw the next 12 bytes; under them this process derives its own AES-GCM keys."""
        self.prefix = secrets.token_bytes(PREFIX_BYTES)
        self.prefixes = [*self.prefixes[-(MAX_PREFIXES - 1) :], b64u(self.prefix)]
        return self.prefix

    def observe_ttl(self, payload: bytes) -> None:
        """Note `exp - iat` of a payload about to be sealed; what is not the SDK's envelope says nothing."""
        self._heads.append(payload[:_HEAD_BYTES])
        if len(self._heads) >= _HEADS:
            self._read_heads()

    @property
    def ttl_observed(self) -> float | None:
        """The longest ttl observed, in seconds; None before the first."""
        self._read_heads()
        return self._ttl_observed

    def _read_heads(self) -> None:
        heads = self._heads
        with self._reading:
            # Taken out one by one: what a seal adds meanwhile is read now or the next time.
            while heads:
                match = _WINDOW.match(heads.pop())
                if match is not None:
                    ttl = float(match[2]) - float(match[1])
                    if self._ttl_observed is None or ttl > self._ttl_observed:
                        self._ttl_observed = ttl

    def note_minting(self, kid: str | None, now: float) -> None:
        """The ring now mints under `kid` (None: nothing). Called after every swap."""
        if kid != self.mints:
            self.mints = kid
            self.minting_since = None if kid is None else to_ms(now)

    def report(
        self,
        state: ReportState,
        ring: Ring | None,
        *,
        keyset: str,
        now: float,
        started: float,
        unwraps_by: Iterable[str] = (),
    ) -> Report:
        """What this instance says of itself now; counts `seq` up.

        Args:
            ring: the ring it serves with; None while joining.
            keyset: the keyset's name.
            now, started: wall clock at writing, and when the refresh began that this report follows (seconds).
        """
        self.seq += 1
        uses = {} if ring is None else {kid: key.use for kid, key in ring.keys.items()}
        max_stale = None if ring is None or ring.keyset is None else ring.keyset.max_stale_seconds
        ttl_observed = self.ttl_observed
        return Report(
            keyset=keyset,
            instance=self.id,
            label=self.label,
            pid=self.pid,
            state=state,
            seq=self.seq,
            generation=0 if ring is None else ring.generation,
            digest="" if ring is None else ring.digest,
            verifies=()
            if ring is None
            else tuple(kid for kid, key in ring.keys.items() if key.unwrapped and key.state != "retired"),
            mints=None if ring is None else ring.minting,
            minting_since=None if ring is None else self.minting_since,
            last_mint={kid: to_ms(use.last_mint) for kid, use in uses.items() if use.last_mint},
            last_unseal={kid: to_ms(use.last_unseal) for kid, use in uses.items() if use.last_unseal},
            prefixes=tuple(self.prefixes),
            ttl_observed=None if ttl_observed is None else -int(-ttl_observed * 1000 // 1),
            clock=to_ms(now),
            clock_started=to_ms(started),
            canary=dict(self.canary),
            unwraps_by=tuple(unwraps_by),
            max_stale=None if max_stale is None else max_stale * 1000,
        )
