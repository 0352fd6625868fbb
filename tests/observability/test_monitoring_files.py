"""The dashboard and the alert rules ask for metrics and labels that there are, and for all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml

from mcpkeys import metrics

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "monitoring" / "grafana-dashboard.json").read_text())
ALERTS = yaml.safe_load((ROOT / "monitoring" / "alerts.yaml").read_text())
LABELS = {
    "mcpkeys_keyset",
    "mcpkeys_kid",
    "mcpkeys_key_state",
    "mcpkeys_reason",
    "mcpkeys_outcome",
    "mcpkeys_kms_operation",
    "mcpkeys_kms_scheme",
    "le",
}


def exported() -> dict[str, set[str]]:
    """Our metric -> its names in Prometheus, by the OpenTelemetry naming rules."""
    from opentelemetry.sdk.metrics import MeterProvider

    meter = MeterProvider().get_meter("test")
    found: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcpkeys.metrics.metrics.get_meter", lambda name: meter)
        made = [*metrics._instruments()]
    for instrument in made:
        name, unit = instrument.name, instrument.unit  # type: ignore[attr-defined]
        base = name.replace(".", "_") + ("_seconds" if unit == "s" else "")
        assert unit == "s" or re.fullmatch(r"\{[a-z]+\}", unit), f"{name}: exporters would append a suffix for {unit!r}"
        kind = type(instrument).__name__
        found[name] = {base + ("_total" if "Counter" in kind else "")}
    duration = "mcpkeys_kms_duration_seconds"
    found["mcpkeys.kms.duration"] = {f"{duration}_{part}" for part in ("bucket", "count", "sum")}
    return found


def expressions() -> dict[str, str]:
    asked = {
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    }
    asked |= {rule["alert"]: rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]}
    return asked


@pytest.mark.parametrize("where", list(expressions()))
def test_an_expression_asks_for_what_there_is(where: str) -> None:
    expression = expressions()[where]
    known = set().union(*exported().values())
    words = set(re.findall(r"\b(?:mcpkeys_[a-z_]+|le)\b", re.sub(r'"[^"]*"', '""', expression)))
    assert words & known, expression
    assert words <= known | LABELS, words - known - LABELS
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_the_dashboard_shows_every_metric() -> None:
    shown = " ".join(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"])
    for name, spelled in exported().items():
        assert any(one in shown for one in spelled), name


def test_every_alert_says_what_to_read() -> None:
    for group in ALERTS["groups"]:
        for rule in group["rules"]:
            assert rule["labels"]["severity"] in ("page", "warn")
            assert rule["annotations"]["summary"]
            assert (ROOT / rule["annotations"]["runbook"]).is_file()
