"""Under the demo, with real servers and traffic: every metric appears, and the counts are those of the clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

# Loaded by every process of the demo: the OpenTelemetry SDK's in-memory reader, written to a file a few times a second,
# since a server that ends by a signal runs no atexit handler.
SITE = """
import json, os, sys, threading, time
if any("mcpkeys_cli.story.server" in word for word in getattr(sys, "orig_argv", [])):
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    def dump():
        path = os.path.join(os.environ["METRICS_FOLDER"], f"{os.getpid()}.json")
        while True:
            time.sleep(0.15)
            data = reader.get_metrics_data()
            found = [
                [metric.name, dict(point.attributes), point.value if hasattr(point, "value") else point.count]
                for resource in (data.resource_metrics if data else ())
                for scope in resource.scope_metrics if scope.scope.name == "mcpkeys"
                for metric in scope.metrics for point in metric.data.data_points
            ]
            with open(path + ".new", "w") as stream:
                json.dump(found, stream)
            os.replace(path + ".new", path)
    threading.Thread(target=dump, daemon=True).start()
"""


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_every_metric_of_the_demo_counts_what_the_clients_saw(tmp_path: Path) -> None:
    site, folder = tmp_path / "site", tmp_path / "metrics"
    site.mkdir()
    folder.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MCPKEYS_")}
    environ |= {
        "PYTHONPATH": os.pathsep.join([str(site), environ.get("PYTHONPATH", "")]),
        "METRICS_FOLDER": str(folder),
    }
    done = subprocess.run(
        [sys.executable, "-m", "mcpkeys_cli", "demo", "--output", "json"], env=environ, capture_output=True, timeout=150
    )
    assert done.returncode == 0, done.stdout.decode()[-2000:] + done.stderr.decode()[-2000:]
    demo = json.loads(done.stdout)
    files = sorted(folder.glob("*.json"))
    assert len(files) == demo["processes"] + demo["restarts"]
    totals: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    minted: set[tuple[str, str]] = set()
    names: set[str] = set()
    for path in files:
        for name, attributes, value in json.loads(path.read_text()):
            names.add(name)
            totals[name] += value
            if name == "mcpkeys.refusals":
                refusals[attributes["mcpkeys.reason"]] += value
            if name == "mcpkeys.seals" and value:
                minted.add((attributes["mcpkeys.kid"], attributes["mcpkeys.key.state"]))
    from observability.test_metrics import NAMES

    # max_stale is off in the demo, so nothing is left of it.
    assert names == NAMES - {"mcpkeys.stale.left"}
    assert refusals == {"seal": 1, "unknown key": 1}
    # What the codec opened: every answered round, and by hand an expired, a replayed and an untouched token.
    assert totals["mcpkeys.unseals"] == demo["rounds_completed"] + 3
    # What it sealed: a question each, those asked by hand included.
    assert totals["mcpkeys.seals"] >= totals["mcpkeys.unseals"]
    assert {state for _, state in minted} == {"minting"}
    assert len({kid for kid, _ in minted}) == 2
    # At every start one live key and the report key; NEW once in each that is there when it comes. Nothing per token.
    assert totals["mcpkeys.kms.duration"] == 3 * demo["processes"] + 2 * demo["restarts"]
    assert totals["mcpkeys.refreshes"] > 0
