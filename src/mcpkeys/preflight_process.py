"""Runs the check of a server in a process of its own, within a time limit."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcpkeys.errors import SettingError
from mcpkeys.findings import Finding, any_refused, printable
from mcpkeys.preflight import ServerFacts, judge
from mcpkeys.settings import load_settings

FAREWELL_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found.

    Attributes:
        servers: the servers that were seen; empty where the application could not be imported.
        findings: all findings, refused ones first.
        exit_code: 0 nothing refused, 2 refused, 4 KMS or store out of reach, 7 denied.
    """

    servers: tuple[ServerFacts, ...]
    findings: tuple[Finding, ...]
    exit_code: int


def check_server(
    target: str,
    *,
    app_dir: str = ".",
    workers: int | None = None,
    transport: str = "",
    known: Iterable[str] = (),
    seconds: float = 90.0,
    environ: Mapping[str, str] | None = None,
) -> Checked:
    """Import `MODULE:SERVER` and judge the real object.

    Args:
        target: a server object, an ASGI application, or a factory of either (async too).
        app_dir: the folder from which modules are imported, as for uvicorn.
        workers: how many processes will serve it; None: what the environment or the module asks for.
        transport: `stdio`, `streamable-http`, `sse`, or empty: as far as it is seen.
        known: audiences of other services, to tell apart.
        seconds: after this the application's process is ended; a KMS that throttles may take 60 s.
        environ: its environment; None: this process's.

    Raises nothing about the application: that it cannot be imported is a finding. OSError where no process starts.
    """
    environ = os.environ if environ is None else environ
    request = {
        "target": target,
        "app_dir": str(Path(app_dir).absolute()),
        "workers": workers or workers_asked_for(environ),
        "transport": transport,
    }
    answer = _ask(request, environ, seconds)
    configured, found = _configured(environ)
    servers = tuple(ServerFacts.from_json(facts) for facts in answer["servers"])
    problem = answer["problem"]
    if problem is not None:
        subject = printable(target)
        found.append(Finding(problem["code"], "refused", subject, problem["what"], problem["why"], problem["next"]))
    for server in servers:
        found += judge(server, hostname=socket.gethostname(), configured=configured, known=known)
    found.sort(key=lambda finding: finding.level != "refused")
    exit_code = problem["exit"] if problem is not None and problem["exit"] in (4, 7) else 2 * any_refused(found)
    return Checked(servers, tuple(found), exit_code)


def _ask(request: dict[str, Any], environ: Mapping[str, str], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mcpkeys-check-") as folder:
        asked, answered = Path(folder, "request.json"), Path(folder, "result.json")
        asked.write_text(json.dumps(request))
        with subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
            [sys.executable, "-m", "mcpkeys.preflight_child", str(asked), str(answered)],
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr.fileno() if _has_fileno() else subprocess.DEVNULL,
            stderr=None if _has_fileno() else subprocess.DEVNULL,
            env=dict(environ),
        ) as child:
            try:
                child.wait(seconds)
                late = False
            except subprocess.TimeoutExpired:
                late = True
                _end(child)
            except BaseException:
                _end(child)
                raise
        try:
            answer: dict[str, Any] = json.loads(answered.read_text())
        except (OSError, ValueError):
            return {"servers": [], "problem": _no_answer(request["target"], late, seconds, child.returncode)}
        return answer


def _end(child: subprocess.Popen[bytes]) -> None:
    # SIGTERM first, so that what the application holds can be given back.
    child.terminate()
    try:
        child.wait(FAREWELL_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _has_fileno() -> bool:
    try:
        return sys.stderr.fileno() >= 0
    except (AttributeError, OSError, ValueError):
        return False


def _no_answer(target: str, late: bool, seconds: float, code: int) -> dict[str, Any]:
    module = printable(target.partition(":")[0])
    if late:
        return {
            "code": "import-hangs",
            "what": f"importing {module} did not end within {seconds:g} s",
            "why": "it serves, waits or computes when it is imported; uvicorn would wait with it",
            "next": 'put what runs under `if __name__ == "__main__":`, or give more time with --timeout',
            "exit": 2,
        }
    return {
        "code": "import-died",
        "what": f"the process that imported {module} ended without a word",
        "why": f"it was ended by signal {-code}" if code < 0 else f"exit code {code}",
        "next": "its own output on stderr tells more",
        "exit": 2,
    }


def _configured(environ: Mapping[str, str]) -> tuple[bool, list[Finding]]:
    try:
        return bool(load_settings(environ).keyset), []
    except SettingError as error:
        return False, [Finding(error.code, "refused", "settings", error.what, error.why, error.next)]


def workers_asked_for(environ: Mapping[str, str]) -> int:
    """How many workers the environment makes uvicorn or gunicorn start; 1 where it says nothing."""
    asked = [environ.get("WEB_CONCURRENCY", ""), environ.get("UVICORN_WORKERS", "")]
    asked += re.findall(r"(?:--workers[ =]|(?<!\S)-w ?)(\d+)", environ.get("GUNICORN_CMD_ARGS", ""), re.ASCII)
    return max([1, *(int(value) for value in asked if value.isascii() and value.isdigit() and len(value) < 6)])
