"""Whether the wraps of a keyset will still open tomorrow: what status and doctor say about `rewrap`. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from mcpkeys.keyset import Keyset
from mcpkeys.kms import identity
from mcpkeys.reports import Report


def warnings(keyset: Keyset, reports: Iterable[Report]) -> tuple[str, ...]:
    """One sentence each, with the way out; empty where all is well.

    A live key that lacks the wrap of one of the keyset's KEKs (`--skip-kek`), and a KEK whose canary failed at an
    instance: nobody unwraps after start, so a KEK version can vanish under a quiet fleet.
    """
    found: list[str] = []
    wanted = {identity(kek): kek for kek in keyset.keks}
    for key in keyset.live:
        missing = [kek for name, kek in wanted.items() if name not in {identity(wrap.kek) for wrap in key.wrapped}]
        if missing:
            found.append(f"key {key.kid} is not wrapped by {', '.join(missing)}: run mcpkeys rewrap")
    failing: dict[str, list[str]] = {}
    for report in reports:
        if report.state == "farewell":
            continue
        for kek, canary in report.canary.items():
            if not canary.ok:
                failing.setdefault(kek, []).append(report.label or report.instance)
    for kek, labels in sorted(failing.items()):
        found.append(
            f"the KEK {kek} did not open the minting key for {len(labels)} instances ({', '.join(labels[:3])}): "
            "running servers go on, new ones may not start; mcpkeys doctor, then mcpkeys rewrap"
        )
    return tuple(found)
