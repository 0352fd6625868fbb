"""Imports a server as uvicorn would and tells what it is: `python -m mcpkeys.preflight_child REQUEST RESULT`.

Runs in a process of its own, which its parent ends after a time limit: an application's module may do anything when
it is imported. REQUEST and RESULT are paths of JSON files; the application's own output goes to stderr.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
import sys
import traceback
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from mcp.server import Server, ServerRequestContext
from mcp.server.request_state import AESGCMRequestStateCodec, RequestStateBoundary, RequestStateSecurity

from mcpkeys.codec import EnvelopeCodec
from mcpkeys.errors import McpkeysError
from mcpkeys.preflight import CodecKind, ServerFacts
from mcpkeys.preflight_target import Problem, find
from mcpkeys.preflight_watch import Started, Watch

_CARRIERS = ("tools/call", "prompts/get", "resources/read")


# --- the facts -------------------------------------------------------------------------------------------------


def facts_of(server: Server[Any], watch: Watch, *, per_request: bool = False) -> ServerFacts:
    """What there is to say of one server. Seals and unseals one payload with its codec; calls no handler."""
    owner = watch.owners.get(id(server))
    boundaries = [item for item in server.middleware if isinstance(item, RequestStateBoundary)]
    facts = ServerFacts(
        kind="Server" if owner is None else "MCPServer",
        name=server.name,
        named=owner is None or id(owner) not in watch.unnamed,
        boundaries=len(boundaries),
        carries=any(server.get_request_handler(method) is not None for method in _CARRIERS),
        auth=id(server) in watch.auth or (owner is not None and owner.settings.auth is not None),
        http=id(server) in watch.apps,
        stdio=id(server) in watch.stdio,
        workers=watch.workers,
        per_request=per_request,
    )
    if not boundaries:
        before = len(watch.opened)
        sealed = asyncio.run(_seals_otherwise(server))
        # A middleware of the application's own, perhaps a boundary that it builds for each request.
        return replace(facts, boundaries=1, codec="unreadable", opened=len(watch.opened) - before) if sealed else facts
    # The SDK keeps both to itself; a version that renames them is told as unreadable rather than passed.
    security = getattr(boundaries[0], "_security", None)
    if not isinstance(security, RequestStateSecurity) or not hasattr(boundaries[0], "_audience"):
        return replace(facts, codec="unreadable", audience=server.name)
    codec = security.codec
    before = len(watch.opened)
    failed = _round_trip(codec)
    facts = replace(
        facts,
        audience=boundaries[0]._audience,
        ttl=security.ttl,
        codec=_kind(codec, watch),
        codec_class=f"{type(codec).__module__}.{type(codec).__qualname__}",
        binds_principal=security.bind_principal is not None,
        round_trip=failed,
        opened=len(watch.opened) - before,
    )
    if not isinstance(codec, EnvelopeCodec) or codec.ring.keyset is None:
        return facts
    keyset = codec.ring.keyset
    return replace(
        facts,
        keyset=keyset.name,
        keyset_audience=keyset.audience,
        keyset_ttl=keyset.ttl_seconds,
        ready=codec.ready(),
        mints="sdk" if codec.mints_sdk else "mk1",
        sdk_keys=codec.ring.sdk is not None,
    )


async def _seals_otherwise(server: Server[Any]) -> bool:
    """Whether the middleware changes the state of an answer, though none of it is the SDK's boundary itself."""
    state = secrets.token_urlsafe(24)

    async def handler(ctx: ServerRequestContext[Any, Any]) -> dict[str, Any]:
        return {"resultType": "input_required", "requestState": state}

    call: Any = handler
    own = [item for item in server.middleware if not type(item).__module__.startswith("mcp.")]
    for middleware in reversed(own):
        call = functools.partial(middleware, call_next=call)
    ctx = ServerRequestContext[Any, Any](
        session=cast("Any", None),
        lifespan_context={},
        protocol_version="2026-07-28",
        method="tools/call",
        params={"name": "mcpkeys-check", "arguments": {}},
    )
    try:
        result = await call(ctx)
    except Exception:
        # A middleware that needs a real request; what it does with the state cannot be told.
        return False
    return isinstance(result, Mapping) and result.get("requestState") not in (None, state)


def _kind(codec: object, watch: Watch) -> CodecKind:
    if isinstance(codec, EnvelopeCodec):
        return "secrets" if codec.ring.keyset is None else "mcpkeys"
    if id(codec) in watch.ephemeral:
        return "ephemeral"
    return "keys" if isinstance(codec, AESGCMRequestStateCodec) else "foreign"


def _round_trip(codec: Any) -> str:
    """Why a payload did not come back, or empty. The payload is noise: a real token is never made."""
    payload = secrets.token_bytes(200)
    try:
        return "" if codec.unseal(codec.seal(payload)) == payload else "another payload came back"
    except Exception as exc:
        detail = f": {exc.what}" if isinstance(exc, McpkeysError) else ""
        return f"{type(exc).__name__}{detail}"


# --- the process -----------------------------------------------------------------------------------------------


def examine(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to one request `{target, app_dir, workers, transport}`: `servers` (facts), and `problem` or None."""
    watch = Watch()
    watch.workers = int(request["workers"])
    problem: dict[str, Any] | None = None
    servers: list[Server[Any]] = []
    per_request = False
    with watch.watching():
        try:
            servers, per_request = find(request["target"], watch)
        except Started as started:
            problem = _started(started, request["target"])
            servers = watch.servers
        except Problem as exc:
            problem = exc.told
        except (Exception, SystemExit) as exc:
            problem = _failed(exc, request["target"])
        try:
            facts = [facts_of(server, watch, per_request=per_request) for server in servers]
        finally:
            for codec in watch.opened:
                codec.close()
    if transport := request["transport"]:
        facts = [replace(fact, http=transport != "stdio", stdio=transport == "stdio") for fact in facts]
    return {"servers": [asdict(fact) for fact in facts], "problem": problem}


def _started(started: Started, target: str) -> dict[str, Any]:
    return Problem(
        "runs-on-import",
        f"{target.partition(':')[0]} starts to serve ({started.transport}) when it is imported",
        "uvicorn, workers and tests import the module, and each import would start another server; it was stopped here",
        'put the start under `if __name__ == "__main__":`',
    ).told


def _failed(exc: BaseException, target: str) -> dict[str, Any]:
    module = target.partition(":")[0]
    if isinstance(exc, McpkeysError):
        return Problem(exc.code, exc.what, exc.why, exc.next, exc.exit_code).told
    if isinstance(exc, SystemExit):
        return Problem(
            "import-exits",
            f"{module} ends the process when it is imported",
            f"exit code {exc.code!r}",
            "do not exit at import",
        ).told
    if isinstance(exc, ValueError) and "request_state_security is configured but this server has no name" in str(exc):
        return Problem(
            "server-unnamed",
            "the server has no name",
            "the SDK refuses a policy with shared keys then: every unnamed server would have the same audience",
            "name it, MCPServer('acme-orders', ...), or use request_state_security()",
        ).told
    place = _place(exc)
    return Problem(
        "import-failed",
        f"{module} cannot be imported: {type(exc).__name__}",
        f"{str(exc)[:300]}{place}",
        "uvicorn would fail in the same way; mend the module first",
    ).told


def _place(exc: BaseException) -> str:
    frames = traceback.extract_tb(exc.__traceback__)
    return f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""


def main(request: str, result: str) -> None:
    """Answer REQUEST into RESULT."""
    asked = json.loads(Path(request).read_text())
    sys.path.insert(0, asked["app_dir"])
    sys.stdout = sys.stderr
    answer = examine(asked)
    Path(result).write_text(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:3])
