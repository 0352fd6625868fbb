"""`mcpkeys doctor`: preflight of KEKs, store, clock and permissions, by trying them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from mcpkeys.diagnosis import Diagnosis, Role
from mcpkeys.doctor import diagnose
from mcpkeys.errors import SettingError
from mcpkeys_cli.findings import counted, shown
from mcpkeys_cli.options import keyset_options, output_option, settings_of
from mcpkeys_cli.output import Answer, table

EPILOG = """Exit code: 0 nothing refused; otherwise the largest of 2 (something is wrong), 4 (somebody does not answer)
and 7 (something is denied).

\b
  mcpkeys doctor                  as the operator: makes keys, signs, gathers reports
  mcpkeys doctor --as-server      on a server's machine, under its identity: opens keys, reports, and no more
"""


@click.command("doctor", epilog=EPILOG)
@click.option("--as-server", is_flag=True, help="As a server would see it; run it with a server's credentials.")
@keyset_options
@output_option
def command(as_server: bool, output: str, **given: Any) -> Answer:
    """Try every KEK and the store under this identity; each finding says what to do. Changes nothing."""
    role: Role = "server" if as_server else "operator"
    try:
        seen = diagnose(settings_of(given), role=role)
    except SettingError as exc:
        seen = Diagnosis(role)
        seen.failed("settings", "settings", exc)
    return _answer(seen)


def _answer(seen: Diagnosis) -> Answer:
    data = {
        "role": seen.role,
        "findings": [finding.as_dict() for finding in seen.findings],
        "checks": [asdict(check) for check in seen.checks],
    }
    lines = [table(("CHECK", "RESULT", "SUBJECT", ""), [(c.check, c.result, c.subject, c.detail) for c in seen.checks])]
    if seen.findings:
        lines += ["", shown(seen.findings)]
    worst = sorted(seen.findings, key=lambda finding: finding.level != "refused")
    if not seen.exit_code:
        lines += ["", f"as {seen.role}: {counted(seen.findings)}"]
        well = "mcpkeys status" if seen.role == "operator" else "start the server; mcpkeys status shows it"
        return Answer("doctor", data=data, text="\n".join(lines), next=worst[0].next if worst else well)
    return Answer(
        "doctor",
        data=data,
        text="\n".join(lines),
        exit=seen.exit_code,
        code="doctor-refused",
        message=f"as {seen.role}: {counted(seen.findings)}",
        why=worst[0].what,
        next=worst[0].next,
    )
