"""Keysets and reports for the rotation's tests: random ids, small numbers, no keys."""

from __future__ import annotations

import os
from dataclasses import replace

from mcpkeys.encoding import b64u
from mcpkeys.keyset import Key, Keyset, ReportKey, Signer, digest
from mcpkeys.kms import Wrap
from mcpkeys.reports import ReceivedReport, Report
from mcpkeys.rotation import Plan, Step, complete, plan

T0 = 1_800_000_000.0
TTL, SKEW, REFRESH = 600, 60, 30
KEK = "local:///keys/test.kek"


def kid() -> str:
    return b64u(os.urandom(9))


def instance_id() -> str:
    return b64u(os.urandom(16))


def wraps() -> tuple[Wrap, ...]:
    return (Wrap(KEK, "1", os.urandom(60)),)


def fresh_key(at: float = T0, state: str = "minting") -> Key:
    return Key(kid(), state, int(at * 1000), int(at * 1000), wraps())


def new_keyset(**fields) -> Keyset:
    base = Keyset(
        name="fleet",
        audience="fleet",
        ttl_seconds=TTL,
        skew_seconds=SKEW,
        refresh_seconds=REFRESH,
        max_stale_seconds=None,
        max_token_chars=1_048_576,
        evidence="reports",
        generation=7,
        previous=None,
        keks=(KEK,),
        sign_keks=(KEK,),
        keys=(fresh_key(T0 - 86_400),),
        report_key=ReportKey(kid(), wraps()),
        rotation=None,
        past_ttls=(),
        history=(),
        signer=Signer("ed25519:" + b64u(os.urandom(32)), kid(), wraps()),
    )
    return replace(base, **fields)


def write(answer: Plan) -> Keyset:
    """The document of a plan as it would be stored (unsigned: no test here needs the signature)."""
    assert answer.verdict == "do", answer
    assert answer.document is not None
    return complete(answer.document, key=fresh_key(), rotation_id=kid(), report_key=ReportKey(kid(), wraps()))


class Instance:
    """One well-behaved instance: follows documents and reports, unless told otherwise."""

    def __init__(self, label: str = "pod") -> None:
        self.id = instance_id()
        self.report = Report("fleet", self.id, label, 1, "joining", 1, 0, "")
        self.modified_at = T0

    def load(self, keyset: Keyset, at: float, *, clock_off: float = 0.0) -> None:
        """Refresh at `at` (the store's time) and report."""
        clock = int((at + clock_off) * 1000)
        before = self.report
        mints = keyset.minting.kid
        since = before.minting_since if before.mints == mints else clock
        max_stale = None if keyset.max_stale_seconds is None else keyset.max_stale_seconds * 1000
        self.report = replace(
            before,
            state="serving",
            seq=before.seq + 1,
            generation=keyset.generation,
            digest=digest(keyset),
            verifies=tuple(key.kid for key in keyset.live),
            mints=mints,
            minting_since=since,
            clock=clock,
            clock_started=clock,
            max_stale=max_stale,
        )
        self.modified_at = at

    def again(self, at: float, **fields) -> None:
        """Report without a new document."""
        self.report = replace(self.report, **{"seq": self.report.seq + 1, "clock": int(at * 1000), **fields})
        self.modified_at = at

    @property
    def received(self) -> ReceivedReport:
        return ReceivedReport(self.report, self.modified_at)


class Fleet:
    """A keyset, its instances and a clock: drives `plan` as the command does."""

    def __init__(self, size: int = 3, **fields) -> None:
        self.keyset = new_keyset(**fields)
        self.now = T0
        self.instances = [Instance(f"pod-{i}") for i in range(size)]
        self.refresh()

    @property
    def reports(self) -> list[ReceivedReport]:
        return [instance.received for instance in self.instances]

    def refresh(self, *instances: Instance) -> None:
        for instance in instances or self.instances:
            instance.load(self.keyset, self.now)

    def wait(self, seconds: float, *, refresh: bool = True) -> None:
        self.now += seconds
        if refresh:
            self.refresh()

    def plan(self, to, **fields) -> Plan:
        return plan(self.keyset, self.reports, Step(to, **fields), self.now)

    def take(self, to, **fields) -> Plan:
        answer = self.plan(to, **fields)
        self.keyset = write(answer)
        return answer

    def to_phase(self, phase: int) -> Fleet:
        """Through the steps as documented, everyone confirmed, minimum times over."""
        self.wait(1)
        self.take(1)
        if phase >= 2:
            self.wait(3 * REFRESH + 1)
            self.take(2)
        if phase >= 3:
            self.wait(1)
            self.wait(TTL + SKEW + REFRESH)
            self.take(3)
        return self
