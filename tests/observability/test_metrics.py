"""Every metric appears with the right numbers, read by the SDK's in-memory reader; the hot path never calls OTel."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from servers.localkeyset import local_keyset

# A process of its own: OpenTelemetry's provider is global and set once.
PROGRAM = r"""
import json, os, sys
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

reader = InMemoryMetricReader()
metrics.set_meter_provider(MeterProvider([reader]))
spans = InMemorySpanExporter()
tracing = TracerProvider()
tracing.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(tracing)

from mcp.server.request_state import InvalidRequestState
from mcpkeys import EnvelopeCodec

def refused(codec, token):
    try:
        codec.unseal(token)
    except InvalidRequestState as exc:
        return str(exc)

with EnvelopeCodec.open() as codec:
    tokens = [codec.seal(b"state %d" % n) for n in range(150)]
    for token in tokens[:100]:
        codec.unseal(token)
    for token in tokens[:7]:
        assert refused(codec, token[:-3] + "AAA") == "seal"
    assert refused(codec, "") == "malformed"
    assert refused(codec, tokens[0][:4] + "A" * 12 + tokens[0][16:]) == "unknown key"
    codec.refresher.step()
    found = {}
    for resource in reader.get_metrics_data().resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "mcpkeys"
            for metric in scope.metrics:
                found[metric.name] = [
                    [dict(point.attributes), getattr(point, "value", None) if hasattr(point, "value") else point.count]
                    for point in metric.data.data_points
                ]
    secret = [token for token in tokens]
print(json.dumps({"metrics": found, "spans": [span.name for span in spans.get_finished_spans()]}))
"""
NAMES = {
    "mcpkeys.seals",
    "mcpkeys.unseals",
    "mcpkeys.refusals",
    "mcpkeys.refreshes",
    "mcpkeys.keyset.generation",
    "mcpkeys.keyset.age",
    "mcpkeys.minting_key.age",
    "mcpkeys.refresh.age",
    "mcpkeys.stale.left",
    "mcpkeys.ready",
    "mcpkeys.kms.duration",
}


def test_every_metric_appears_with_the_right_counts(tmp_path: Path) -> None:
    import json

    keyset = local_keyset(tmp_path, max_stale_seconds=3600)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, **keyset.environ},
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr.decode()
    answer = json.loads(done.stdout)
    found = answer["metrics"]
    assert set(found) == NAMES
    kid = keyset.document.minting.kid
    assert found["mcpkeys.seals"] == [
        [{"mcpkeys.keyset": "fleet", "mcpkeys.kid": kid, "mcpkeys.key.state": "minting"}, 150]
    ]
    assert found["mcpkeys.unseals"][0][1] == 100
    refusals = {
        (point["mcpkeys.reason"], point["mcpkeys.key.state"]): value for point, value in found["mcpkeys.refusals"]
    }
    assert refusals == {("seal", "minting"): 7, ("malformed", "none"): 1, ("unknown key", "none"): 1}
    assert {point["mcpkeys.outcome"]: value for point, value in found["mcpkeys.refreshes"]}["failed"] == 0
    assert found["mcpkeys.keyset.generation"][0][1] == 1
    assert found["mcpkeys.ready"][0][1] == 1
    assert 0 < found["mcpkeys.stale.left"][0][1] <= 3600
    # One live key and the report key.
    assert sum(value for _, value in found["mcpkeys.kms.duration"]) == 2
    assert answer["spans"].count("mcpkeys.kms.unwrap") == 2
    assert "mcpkeys.refresh" in answer["spans"]


def test_a_forked_child_counts_for_itself(tmp_path: Path) -> None:
    program = (
        "import os\nfrom mcpkeys import EnvelopeCodec\ncodec = EnvelopeCodec.open()\n"
        "[codec.seal(b'x') for _ in range(5)]\npid = os.fork()\n"
        "if pid == 0:\n    codec.seal(b'x')\n    os._exit(codec.seals)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1\nassert codec.seals == 5\ncodec.close()\n"
    )
    keyset = local_keyset(tmp_path)
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **keyset.environ}, timeout=60, check=True)
