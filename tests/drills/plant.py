"""A fleet with one planted fault, for whoever wants to be on call: `python tests/drills/plant.py FAULT DIR`.

FAULT is a number from 1 to 5, or `random`. DIR is created and must be empty; it then holds what an engineer on call
has: logs, captured requests, a shell into each instance, the operator's settings, and a README with the symptom. The
fleet runs until stdin closes or SIGTERM comes; every process that was started has then ended, and the last line on
stdout tells what it was: play first, with docs/how-to/refused-rounds.md open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent)]

from drills.gateway import Gateway, fills_in_defaults, unchanged  # noqa: E402

FAULTS = {1: "renamed audience", 2: "stale instance", 3: "wrong clock", 4: "rewritten arguments", 5: "KEK permission"}
NAMES = ("orders-1", "orders-2", "orders-3")
AHEAD = 300
REFUSALS = 8
"""How many refused rounds are waited for before the engineer is called."""
NOWHERE = {"AWS_EC2_METADATA_DISABLED": "true", "NO_GCE_CHECK": "true", "GCE_METADATA_HOST": "127.0.0.1:1"}
README = """# You are on call

{at}: the alert "rounds refused" of `acme-orders` fires. Users see "Invalid or expired requestState", not all of them.

- `. ./env.sh` gives you the operator's settings. The runbook is docs/how-to/refused-rounds.md.
- `./logs` prints the logs of all instances, as `kubectl logs -l app=orders --prefix` would.
- `./exec INSTANCE COMMAND ...` runs a command on an instance, as `kubectl exec INSTANCE -- COMMAND ...` would.
  The instances: {names}. The application is `orders:mcp`.
- `capture/ingress.ndjson`: requests, as they came in at the ingress in front of the instances.
- `capture/edge.ndjson`: the same requests, as the clients sent them.
- `refused.json` is one refused request of the ingress, `first-round.json` the first round of the same call, there too.

Nothing here is changed by looking.
"""


@dataclass
class Fleet:
    """Instances, the operator, the gateway. `folder` is what the engineer sees, `machine` is what moves behind it."""

    folder: Path
    machine: Path
    rewrite: Any = unchanged
    operator: dict[str, str] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "capture").mkdir(parents=True)
        (self.machine / "shared").mkdir()
        self.gateway = Gateway(
            self.folder / "capture/edge.ndjson", self.folder / "capture/ingress.ndjson", self.rewrite
        )

    # --- the operator ------------------------------------------------------------------------------------------

    def mcpkeys(self, *arguments: str, fine: tuple[int, ...] = (0,)) -> dict[str, Any]:
        """One of the operator's commands; its JSON."""
        ran = subprocess.run(
            [sys.executable, "-m", "mcpkeys_cli", *arguments, "--output", "json"],
            env={**_clean(), **self.operator},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if ran.returncode not in fine:
            raise AssertionError(f"mcpkeys {' '.join(arguments)}: exit {ran.returncode}\n{ran.stdout}{ran.stderr}")
        return json.loads(ran.stdout)

    def init(self, *options: str, kek: str = "") -> None:
        """Create the keyset; the operator has its settings afterwards."""
        keks = [f"--kek={kek}"] if kek else []
        if not kek:
            keks = [f"--kek=local://{self.machine}/kek.key", f"--sign-kek=local://{self.machine}/sign.key"]
        keyset = self.machine / "shared/fleet.keyset.json"
        made = self.mcpkeys("init", "fleet", f"--keyset={keyset}", "--audience=acme-orders", *keks, *options)
        self.operator.update(made["settings"])

    def rotate(self, *options: str, seconds: float = 40) -> dict[str, Any]:
        """Repeat a step until it is done, as an operator who is sure of himself does."""
        end = time.monotonic() + seconds
        while True:
            answer = self.mcpkeys("rotate", *options, "--yes", fine=(0, 5, 6))
            if answer["ok"] or time.monotonic() > end:
                assert answer["ok"], answer
                return answer
            time.sleep(0.5)

    # --- the instances -----------------------------------------------------------------------------------------

    def host(self, name: str, extra: dict[str, str] | None = None) -> None:
        """Make an instance's machine: its release of the application, its mount of the keyset, its environment."""
        home = self.folder / name
        home.mkdir()
        (home / "orders.py").write_text((HERE / "orders.py").read_text())
        (home / "mount").symlink_to(self.machine / "shared")
        clock = self.machine / f"{name}.clock"
        clock.write_text("0")
        settings = {
            **{key: value for key, value in self.operator.items() if key.startswith("MCPKEYS_")},
            "MCPKEYS_KEYSET": str(home / "mount/fleet.keyset.json"),
            "MCPKEYS_INSTANCE": name,
            "HOST_CLOCK_FILE": str(clock),
            "PYTHONPATH": str(HERE / "host"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}",
            **(extra or {}),
        }
        (self.machine / f"{name}.env").write_text(_exports(settings))

    def start(self, *names: str) -> None:
        """Start instances side by side and wait until they serve."""
        for name in names:
            with (self.folder / name / "server.log").open("a") as log:
                self.processes[name] = subprocess.Popen(
                    [str(self.folder / "exec"), name, sys.executable, "orders.py"],
                    env=_clean(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
        for name in names:
            stdout = self.processes[name].stdout
            assert stdout is not None
            line = stdout.readline().strip()
            if line.isdigit():
                self.gateway.backends[name] = int(line)

    def scripts(self) -> None:
        """`exec`, `logs` and `env.sh`."""
        (self.folder / "exec").write_text(
            "#!/bin/sh\n# ./exec INSTANCE COMMAND ...\n"
            f'name=$1; shift\nhere=$(dirname "$(realpath "$0")")\n. {shlex.quote(str(self.machine))}/"$name".env\n'
            'cd "$here/$name" && exec "$@"\n'
        )
        (self.folder / "logs").write_text(
            '#!/bin/sh\ncd "$(dirname "$0")" || exit\n'
            'for name in orders-*; do sed "s,^,[pod/$name/orders] ," "$name/server.log"; done\n'
        )
        for script in ("exec", "logs"):
            (self.folder / script).chmod(0o755)

    def end(self) -> None:
        """Everything that was started has ended afterwards."""
        for process in self.processes.values():
            if process.stdin is not None:
                process.stdin.close()
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        self.gateway.close()

    # --- traffic -----------------------------------------------------------------------------------------------

    async def calls(self, refusals: int, seconds: float = 30) -> int:
        """Calls of the SDK's client until so many rounds were refused; returns how many."""
        from mcp import Client
        from mcp.shared.exceptions import MCPError
        from mcp.types import ElicitResult

        async def approve(context: Any, params: Any) -> ElicitResult:
            return ElicitResult(action="accept", content={"approver": "mallory@acme.example"})

        refused, end = 0, time.monotonic() + seconds
        while refused < refusals and time.monotonic() < end:
            arguments = {"order": f"ord-{random.randrange(10_000)}", "amount": random.randrange(1, 500)}
            try:
                async with Client(self.gateway.url, elicitation_callback=approve) as client:
                    await client.call_tool("refund", arguments)
            except* MCPError as group:
                said = [error.error.message for error in _leaves(group)]
                refused += "Invalid or expired requestState" in said
            await asyncio.sleep(0.02)
        return refused


def _leaves(group: BaseExceptionGroup[Any]) -> Iterator[Any]:
    for error in group.exceptions:
        yield from _leaves(error) if isinstance(error, BaseExceptionGroup) else [error]


def _clean() -> dict[str, str]:
    foreign = ("MCPKEYS_", "VAULT_", "BAO_", "HOST_CLOCK", "PYTHONPATH")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign)} | NOWHERE | {"PYTHONUNBUFFERED": "1"}


def _exports(settings: dict[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in settings.items())


# --- the faults ----------------------------------------------------------------------------------------------------


def renamed_audience(fleet: Fleet, odd: str) -> None:
    """One instance runs the next release, which names the audience itself, and another one."""
    fleet.init()
    _fleet(fleet)
    source = fleet.folder / odd / "orders.py"
    text = source.read_text().replace("import request_state_security", "import EnvelopeCodec")
    text = text.replace(
        "security = request_state_security()",
        'security = RequestStateSecurity(codec=EnvelopeCodec.open(), audience="acme-order-service")',
    ).replace(
        "from mcp.types import", "from mcp.server.request_state import RequestStateSecurity\nfrom mcp.types import"
    )
    source.write_text(text)
    fleet.start(*NAMES)


def stale_instance(fleet: Fleet, odd: str) -> None:
    """One instance's mount no longer follows; the operator takes its silence for its end and rotates past it."""
    fleet.init("--ttl=4s", "--skew=2s", "--refresh=1s")
    _fleet(fleet)
    fleet.start(*NAMES)
    mount = fleet.folder / odd / "mount"
    mount.unlink()
    shutil.copytree(fleet.machine / "shared", mount)
    fleet.rotate("--phase=1")
    missing = [entry["id"] for entry in fleet.mcpkeys("status")["instances"] if entry["label"] == odd]
    fleet.rotate("--phase=2", *(f"--allow-missing={instance}" for instance in missing))
    fleet.rotate("--phase=3", *(f"--allow-missing={instance}" for instance in missing))


def wrong_clock(fleet: Fleet, odd: str) -> None:
    """One host is five minutes ahead."""
    fleet.init("--refresh=2s")
    _fleet(fleet)
    (fleet.machine / f"{odd}.clock").write_text(str(AHEAD))
    fleet.start(*NAMES)


def rewritten_arguments(fleet: Fleet, odd: str) -> None:
    """The gateway edits the retries; every instance is sound."""
    fleet.init()
    _fleet(fleet)
    fleet.start(*NAMES)


def kek_permission(fleet: Fleet, odd: str, bao: Any) -> None:
    """The policy of one instance's identity is tightened; a rotation begins, and one more replica is started."""
    key = bao.transit_key("acme-orders")
    kek = f"hashivault://{key}"
    fleet.operator.update(bao.environment())
    fleet.init("--max-stale=6s", "--refresh=1s", kek=kek)
    right = fleet.mcpkeys("policy", "vault", "--role", "server")["policy"]
    tokens = {name: bao.token_for(right) for name in NAMES}
    policies = bao.api("GET", "auth/token/lookup-self", token=tokens[odd])["data"]["policies"]
    _fleet(fleet, {name: bao.environment(token) for name, token in tokens.items()})
    fleet.start(*NAMES)
    # Somebody tidied up: the right is now for a key of the name that the service had before.
    tight = right.replace(f'"transit/decrypt/{key}"', '"transit/decrypt/orders"')
    assert tight != right
    bao.api("POST", f"sys/policies/acl/{policies[0]}", {"policy": tight})
    fleet.rotate("--phase=1")
    fleet.host("orders-4", bao.environment(tokens[odd]))
    fleet.start("orders-4")


def _fleet(fleet: Fleet, extra: dict[str, dict[str, str]] | None = None) -> None:
    fleet.scripts()
    for name in NAMES:
        fleet.host(name, (extra or {}).get(name))


@contextlib.contextmanager
def planted(fault: int, folder: Path, odd: str) -> Iterator[None]:
    """A fleet with this fault in this instance, until left."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty")
    with contextlib.ExitStack() as stack:
        machine = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="drill-")))
        # Started first: a proxy's part is the only one that differs from the beginning.
        fleet = Fleet(folder, machine, fills_in_defaults if fault == 4 else unchanged)
        stack.callback(fleet.end)
        if fault == 5:
            from servers.openbao import dev_server

            kek_permission(fleet, odd, stack.enter_context(dev_server()))
        else:
            {1: renamed_audience, 2: stale_instance, 3: wrong_clock, 4: rewritten_arguments}[fault](fleet, odd)
        refused = asyncio.run(fleet.calls(REFUSALS))
        if refused < REFUSALS:
            raise SystemExit(f"only {refused} rounds were refused")
        _leave(fleet)
        yield


def _leave(fleet: Fleet) -> None:
    """The engineer's files."""
    (fleet.folder / "env.sh").write_text(
        _exports({**fleet.operator, "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"})
    )
    lines = [json.loads(line) for line in (fleet.folder / "capture/ingress.ndjson").read_text().splitlines()]
    calls = [line for line in lines if line["request"].get("method") == "tools/call"]
    refused = fleet.gateway.refused[-1]
    (fleet.folder / "refused.json").write_text(json.dumps(refused, indent=1))
    order = refused["request"]["params"]["arguments"]["order"].lower()
    first = next(
        line
        for line in calls
        if "requestState" not in line["request"]["params"]
        and line["request"]["params"]["arguments"]["order"].lower() == order
    )
    (fleet.folder / "first-round.json").write_text(json.dumps(first, indent=1))
    # Nobody can do without it but the operator, who is asleep; on one machine the servers could read it too.
    (fleet.machine / "sign.key").unlink(missing_ok=True)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    (fleet.folder / "README.md").write_text(README.format(at=at, names=", ".join(fleet.processes)))


def main() -> None:
    """Plant, say so, wait, end, tell."""
    if len(sys.argv) != 3 or sys.argv[1] not in {"random", *map(str, FAULTS)}:
        raise SystemExit(__doc__)
    fault = random.choice(list(FAULTS)) if sys.argv[1] == "random" else int(sys.argv[1])
    odd = random.choice(NAMES)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: _interrupt())
    with contextlib.suppress(KeyboardInterrupt), planted(fault, Path(sys.argv[2]).absolute(), odd):
        print(f"you are on call: read {sys.argv[2]}/README.md; end this input to end the fleet", flush=True)
        threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
        ended.wait()
    print(json.dumps({"fault": FAULTS[fault], "instance": None if fault == 4 else odd}), flush=True)


def _interrupt() -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    main()
