"""A fleet of a thousand instances in virtual time: the real start-up and refresh code, a store and a KMS that count.

    python benchmarks/fleet.py [INSTANCES]

All start in the same moment, with three live keys, against a KMS that grants 300 calls a second and a store that
grants 1,000; later the keyset changes three times (a new key, its turn, a key burnt), and once more after ten minutes
without store and KMS. Only time is simulated, and each instance asks for its keys one after the other.
"""

from __future__ import annotations

import logging
import random
import secrets
import sys
import threading
import time
from dataclasses import dataclass, field, replace

from virtual import VirtualTime

from mcpkeys.authoring import Author
from mcpkeys.errors import McpkeysError
from mcpkeys.instance import Instance
from mcpkeys.keks import Keks
from mcpkeys.keyset import Key, Keyset, digest
from mcpkeys.loading import Loader, Pins
from mcpkeys.refresh import Refresher
from mcpkeys.ring import Ring
from mcpkeys.testing import FakeKek, FakePlace

KMS_QUOTA = 300
STORE_QUOTA = 1000
REFRESH = 30


@dataclass
class Numbers:
    """What a run shows. Times in seconds of virtual time."""

    instances: int
    started: int = 0
    failures: list[str] = field(default_factory=list)
    start_seconds: float = 0.0
    start_calls: int = 0
    start_granted: int = 0
    start_busiest_second: int = 0
    store_busiest_second: int = 0
    converged: dict[str, float] = field(default_factory=dict)
    busiest_second: int = 0
    calls_between: int = 0


class Simulation:
    """One fleet; `run` plays the story."""

    def __init__(self, instances: int, *, seed: int = 4) -> None:
        self.clock = VirtualTime()
        self.kek = FakeKek("fake:///kek", clock=self.clock)
        self.place = FakePlace(clock=self.clock)
        self.numbers = Numbers(instances)
        self._random = random.Random(seed)
        self._holds: dict[int, tuple[int, float]] = {}
        self._keyset: Keyset
        self._version = ""

    def _author(self) -> Author:
        return Author(self.place.open(), Keks([self.kek.open()], clock=self.clock), Pins(None, ()), clock=self.clock)

    def _create(self) -> None:
        now = int(self.clock.time() * 1000)
        author = self._author()
        self._keyset, self._version = author.create(
            "fleet", audience="acme-orders", sign_keks=[self.kek.uri], now_ms=now, refresh_seconds=REFRESH
        )
        for _ in range(2):
            self._write(keys=(*self._keyset.keys, self._key()))

    def _unhindered(self) -> None:
        """The operator's own calls happen in no time: the scheduler makes them, and must not wait for itself."""
        self.kek.faults.clear()
        self.place.faults.clear()

    def _key(self) -> Key:
        self._unhindered()
        return self._author().data_key("fleet", [self.kek.uri], now_ms=int(self.clock.time() * 1000))

    def _write(self, **changes: object) -> None:
        self._unhindered()
        following = {"generation": self._keyset.generation + 1, "previous": digest(self._keyset)}
        author = Author(
            self.place.open(),
            Keks([self.kek.open()], clock=self.clock, parallel=False),
            Pins(None, ()),
            clock=self.clock,
        )
        private = author.signer(self._keyset)
        self._keyset, self._version = author.write(
            replace(self._keyset, **{**following, **changes}), self._version, private
        )

    def _instance(self, number: int) -> None:
        jitter = random.Random(self._random.random())
        keks = Keks([self.kek.open()], clock=self.clock, jitter=jitter, parallel=False)
        pins = Pins("fleet", (self._keyset.signer.public,))

        def swap(ring: Ring) -> None:
            self._holds[number] = ring.generation, self.clock.monotonic()

        refresher = Refresher(
            Loader(self.place.open(), keks, pins, clock=self.clock),
            Instance(f"pod-{number}"),
            swap,
            clock=self.clock,
            jitter=jitter,
        )
        try:
            refresher.begin()
        except McpkeysError as error:
            self.numbers.failures.append(str(error))
            return
        self.numbers.started += 1
        self.numbers.start_seconds = max(self.numbers.start_seconds, self.clock.monotonic())
        while True:
            self.clock.sleep(max(0.0, refresher.due - self.clock.boottime()))
            refresher.step()

    def _faults(self, *, outage: bool = False) -> None:
        """What every call meets: quotas, latencies, or nobody."""
        for faults, quota, latency in ((self.kek.faults, KMS_QUOTA, 0.02), (self.place.faults, STORE_QUOTA, 0.01)):
            faults.outage, faults.per_second, faults.latency = outage, quota, latency

    def _change(self, what: str, **changes: object) -> None:
        self._write(**changes)
        self._faults()
        self._converge(what)

    def _converge(self, what: str) -> None:
        began = self.clock.monotonic()
        self.clock.run(began + 3 * REFRESH)
        late = [at for generation, at in self._holds.values() if generation == self._keyset.generation]
        missing = self.numbers.started - len(late)
        self.numbers.converged[what] = float("inf") if missing else max(late) - began

    def run(self) -> Numbers:
        """The whole story."""
        self._create()
        numbers, kms, store = self.numbers, self.kek.gate, self.place.gate
        before = kms.calls["unwrap"], kms.granted["unwrap"]
        kms.grants.clear()
        store.grants.clear()
        self._faults()
        for number in range(numbers.instances):
            self.clock.spawn(lambda number=number: self._instance(number))
        self.clock.run(120)
        numbers.start_calls = kms.calls["unwrap"] - before[0]
        numbers.start_granted = kms.granted["unwrap"] - before[1]
        numbers.start_busiest_second = kms.busiest_second()
        numbers.store_busiest_second = store.busiest_second()

        calls = kms.calls["unwrap"]
        self.clock.run(self.clock.monotonic() + 300)
        numbers.calls_between = kms.calls["unwrap"] - calls
        kms.grants.clear()
        self._change("a new key", keys=(*self._keyset.keys, self._key()))
        keys = self._keyset.keys
        turned = (*(replace(key, state="verifying") for key in keys[:-1]), replace(keys[-1], state="minting"))
        self._change("its turn to mint", keys=turned)
        burnt = tuple(replace(key, state="retired") if key.state == "minting" else key for key in self._keyset.keys)
        fresh = replace(self._key(), state="minting")
        self._change(
            "a key burnt, a new report key",
            keys=(*burnt, fresh),
            report_key=self._author().new_report_key("fleet", [self.kek.uri]),
        )
        self._faults(outage=True)
        self.clock.run(self.clock.monotonic() + 600)
        self._change("ten minutes without store and KMS", keys=(*self._keyset.keys, self._key()))
        numbers.busiest_second = kms.busiest_second()
        return numbers


def tell(numbers: Numbers) -> str:
    """The numbers for a person."""
    calls = numbers.start_calls / numbers.instances
    lines = [
        f"instances that start in one moment          {numbers.instances:,}; serving {numbers.started:,}",
        f"until the last one serves                   {numbers.start_seconds:.1f} s",
        f"KMS calls granted                           {numbers.start_granted:,} "
        f"({numbers.start_granted / numbers.instances:.1f} an instance)",
        f"KMS calls tried                             {numbers.start_calls:,} ({calls:.1f} an instance)",
        f"KMS calls granted in the busiest second     {numbers.start_busiest_second} of {KMS_QUOTA}",
        f"store calls granted in the busiest second   {numbers.store_busiest_second} of {STORE_QUOTA}",
        f"KMS calls in five quiet minutes             {numbers.calls_between} (canaries)",
        f"KMS calls in the busiest second of changes  {numbers.busiest_second}",
    ]
    lines += [
        f"all current after: {what:<34} {seconds:.1f} s ({seconds / REFRESH:.2f} refresh intervals)"
        for what, seconds in numbers.converged.items()
    ]
    return "\n".join([*lines, *sorted(set(numbers.failures))])


def main() -> None:
    threading.stack_size(512 * 1024)
    logging.getLogger("mcpkeys").setLevel(logging.ERROR)  # a thousand instances say the same
    began = time.perf_counter()
    numbers = Simulation(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, seed=secrets.randbits(32)).run()
    print(tell(numbers))
    print(f"simulated in {time.perf_counter() - began:.0f} s")
    good = numbers.started == numbers.instances and numbers.start_busiest_second <= KMS_QUOTA
    sys.exit(0 if good and all(seconds <= 2 * REFRESH for seconds in numbers.converged.values()) else 1)


if __name__ == "__main__":
    main()
