"""Burning a key: legal in any phase, refused for nobody's sake. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mcpkeys.answers import FOLLOW, do, done
from mcpkeys.encoding import to_ms
from mcpkeys.keyset import MAX_ROSTER, Keyset, ReportKey, State, StepEvidence
from mcpkeys.reports import ReceivedReport
from mcpkeys.standing import silent_after
from mcpkeys.steps import NEW_KID, REPORT_KID, Plan, Step, named
from mcpkeys.transitions import entered, stamp, succeed, with_present


def burn(keyset: Keyset, reports: Mapping[str, ReceivedReport], step: Step, now: int) -> Plan:
    """The plan that burns `step.kid`, a key of the keyset.

    Burning a key that does not mint leaves the minter. Burning the minter makes a fresh key mint at once. A running
    rotation ends; what then still verifies waits for `--phase 3`. The report key is renewed.
    """
    key = keyset.key(step.kid or "")
    assert key is not None
    if key.state == "retired":
        return done(step, f"{key.kid} is retired already; no instance that has refreshed accepts it", FOLLOW)
    at = stamp(keyset, now)
    running = keyset.running
    states: dict[str, State] = {key.kid: "retired"}
    burns_minter = key.state == "minting"
    if burns_minter and running is not None and running.phase == 1:
        # Not every instance verifies NEW yet, and nobody minted it: it is dropped as by a rollback.
        states[running.to_kid] = "retired"
    rotation = keyset.rotation
    # Only of who is silent: a later report voids the word, an earlier one may contradict it.
    silent = {id for id, entry in reports.items() if now - to_ms(entry.modified_at) > silent_after(keyset)}
    stopped = tuple(id for id in step.allow_missing if id not in reports or id in silent)
    disbelieved = tuple(id for id in step.allow_missing if id not in stopped)
    if rotation is not None:
        ended = "emergency" if running is not None else rotation.ended
        rotation = replace(
            entered(rotation, rotation.phase, at, StepEvidence("none", missing=stopped, word=f"{key.kid} is burnt")),
            ended=ended,
            roster=with_present(rotation.roster, reports)[:MAX_ROSTER],
        )
    document = succeed(
        keyset,
        step,
        at,
        f"emergency: {key.kid} is burnt" + (f", {NEW_KID} mints" if burns_minter else ""),
        overrides=[
            *(f"--allow-missing {instance}" for instance in stopped),
            *(f"--allow-missing {instance}: its report is not believed" for instance in disbelieved),
            *([f"no report was read: {step.blind}"] if step.blind else []),
        ],
        states=states,
        fresh="minting" if burns_minter else None,
        rotation=rotation,
        report_key=ReportKey(REPORT_KID, ()),
    )
    left = [entry.kid for entry in document.live if entry.state == "verifying"]
    why = f"{key.kid} verifies nowhere once an instance has refreshed; rounds in flight under it are refused. "
    if burns_minter:
        why += (
            "A fresh key mints at once: for one refresh interval its rounds may be refused by instances that have "
            "not refreshed. "
        )
    else:
        why += f"{keyset.minting.kid} goes on minting. "
    if left:
        why += f"{named(left)} keeps verifying and waits for --phase 3."
    if step.blind:
        why += f" No report could be read, so nobody is known to confirm: {step.blind}."
    accepting = sorted(
        id for id, entry in reports.items() if key.kid in entry.report.verifies and entry.report.state != "farewell"
    )
    return replace(do("emergency", why.strip(), FOLLOW, document), still_accepting=tuple(accepting))
