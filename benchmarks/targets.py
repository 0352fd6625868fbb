"""The numbers to reach, and how far each measured one is from its bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

SEAL = {300: 0.85, 1024: 0.75, 4096: 0.40, 16384: 0.25}
UNSEAL = {300: 0.55, 1024: 0.45, 4096: 0.22, 16384: 0.15}
SAME_RING = 1.10
"""An unseal with 100 keys against one with 1 key: the same, within what is measured of one against itself."""
TRIAGE = 20_000.0
HELP, INSPECT = 2.5, 5.0


@dataclass(frozen=True)
class Target:
    """One promise: what was measured, its bound, and which side of it is good."""

    name: str
    measured: float
    bound: float
    unit: str = ""
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound

    @property
    def margin(self) -> float:
        """How much is left of the bound; negative where it is missed. 0.1 is ten percent."""
        if self.bound == 0:
            return -self.measured
        return (self.measured / self.bound - 1) if self.at_least else (1 - self.measured / self.bound)


def targets(found: dict[str, Any]) -> list[Target]:
    """Every target of the parts that were measured."""
    checked: list[Target] = []
    for row in found.get("sealing", {}).get("rows", ()):
        bound = (SEAL if row["operation"] == "seal" else UNSEAL).get(row["bytes"])
        if row["name"] == "mcpkeys" and bound is not None:
            checked.append(Target(f"{row['operation']} {row['bytes']:,} B, ratio to the SDK's", row["ratio"], bound))
    rings = found.get("rings", {}).get("rows", ())
    checked += [
        Target(f"unseal with {row['keys']} keys in the ring, ratio to 1", row["ratio"], SAME_RING)
        for row in rings
        if row["keys"] != 1
    ]
    checked += _refusals(found.get("refusals", {}).get("rows", ()))
    for row in found.get("commands", {}).get("rows", ()):
        if row["name"] == "mcpkeys --help":
            checked.append(Target("mcpkeys --help, ratio to a bare click program", row["ratio"], HELP))
        if row["name"] == "mcpkeys inspect, local keyset":
            checked.append(Target("mcpkeys inspect, ratio to a bare click program", row["ratio"], INSPECT))
    if "commands" in found:
        checked.append(Target("foreign modules that the commands import", len(found["commands"]["foreign"]), 0))
    for row in found.get("kms", {}).get("rows", ()):
        checked.append(
            Target(
                f"KMS calls to start, {row['keys']} keys, {row['latency_ms']:.0f} ms", row["kms_calls"], row["keys"] + 1
            )
        )
    checked += [
        Target(f"triage, {row['name']}", row["tokens_per_second"], TRIAGE, "/s", at_least=True)
        for row in found.get("triage", {}).get("rows", ())
    ]
    return checked


def _refusals(rows: Any) -> list[Target]:
    """Per kind the length that comes nearest to its bound."""
    worst: dict[str, Any] = {}
    for row in rows:
        if row["bound"] is not None and (
            row["kind"] not in worst
            or row["us"] / row["bound"] > worst[row["kind"]]["us"] / worst[row["kind"]]["bound"]
        ):
            worst[row["kind"]] = row
    return [
        Target(f"refusing: {kind}, worst at {row['chars']:,} characters", row["us"], row["bound"], " µs")
        for kind, row in worst.items()
    ]
