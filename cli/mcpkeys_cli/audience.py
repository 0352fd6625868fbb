"""`mcpkeys audience`: does this name separate a service from all others, and is it the same in every replica?"""

from __future__ import annotations

import time
from typing import Any

import click

from mcpkeys.audience import check_audience
from mcpkeys.findings import Finding, any_refused, printable
from mcpkeys_cli.findings import counted, shown
from mcpkeys_cli.options import keyset_options, output_option, settings_of
from mcpkeys_cli.output import Answer


@click.command("audience", epilog="Example: mcpkeys audience --strict --known acme-refunds acme-orders")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@click.option("--strict", is_flag=True, help="Refuse what is otherwise only warned of.")
@click.option("--known", multiple=True, metavar="NAME", help="Another service's audience, to tell apart; repeatable.")
@click.option("--against-keyset", is_flag=True, help="Compare with the audience of the stored keyset.")
@keyset_options
@output_option
def command(
    names: tuple[str, ...], strict: bool, known: tuple[str, ...], against_keyset: bool, output: str, **given: Any
) -> Answer:
    """Validate audience names; exit 2 where one is refused.

    With --keyset (or --against-keyset and MCPKEYS_KEYSET) a name that is not the keyset's audience is told.
    """
    audience = _keyset_audience(given) if against_keyset or given.get("keyset") else None
    findings: list[Finding] = []
    for name in names:
        others = [*known, *([audience] if audience is not None else [])]
        found = check_audience(name, known=others, strict=strict)
        if audience is not None and name != audience:
            found.append(_differs(name, audience, strict=strict))
        findings += found
    data = {"names": list(names), "findings": [finding.as_dict() for finding in findings]}
    if not any_refused(findings):
        lines = [*([shown(findings)] if findings else []), f"{len(names)} checked: {counted(findings)}"]
        return Answer("audience", data=data, text="\n".join(lines), next=_next(names, findings))
    refused = next(finding for finding in findings if finding.level == "refused")
    return Answer(
        "audience",
        data=data,
        text=shown(findings),
        exit=2,
        code="audience-refused",
        message=f"{len(names)} checked: {counted(findings)}",
        next=refused.next,
    )


def _next(names: tuple[str, ...], findings: list[Finding]) -> str:
    if findings:
        return findings[0].next
    return f"MCPServer({printable(names[0])!r}), or mcpkeys init --audience" if len(names) == 1 else ""


def _differs(name: str, audience: str, *, strict: bool) -> Finding:
    finding = Finding(
        "audience-differs",
        "warned",
        printable(name),
        f"'{printable(name)}' is not the keyset's audience, '{printable(audience)}'",
        "replicas that take the keyset's audience refuse tokens of one that does not",
        f"use {printable(audience)!r}; services that share state on purpose share the audience too",
    )
    return finding.refused() if strict else finding


def _keyset_audience(given: dict[str, Any]) -> str:
    from mcpkeys import document, registry

    settings = settings_of(given, "keyset")
    store = registry.open_store(settings.keyset)
    try:
        found = store.read(None, fresh=True, deadline=time.monotonic() + 10)
    finally:
        store.close()
    assert found is not None
    return document.read(found.body, signers=settings.signers, name=settings.name or None).audience
