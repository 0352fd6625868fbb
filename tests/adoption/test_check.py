"""`check` finds each planted mistake in a real application, and finds nothing in a right one."""

from __future__ import annotations

import itertools
import json
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from servers.localkeyset import LocalKeyset

from mcpkeys.findings import Finding
from mcpkeys.preflight import ServerFacts, judge
from mcpkeys.preflight_child import examine
from mcpkeys.preflight_process import Checked, check_server, workers_asked_for
from mcpkeys_cli.main import main

_numbers = itertools.count()
Check = Callable[..., tuple[dict[str, Any], dict[str, Finding]]]


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Check]:
    """Writes an application, examines it in this process, and gives the answer and its findings by code."""
    folder = tmp_path / "apps"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    modules: list[str] = []

    def run(
        source: str, target: str = "mcp", *, workers: int = 1, transport: str = "", configured: bool = False
    ) -> tuple[dict[str, Any], dict[str, Finding]]:
        module = f"planted_{next(_numbers)}"
        modules.append(module)
        (folder / f"{module}.py").write_text(textwrap.dedent(source))
        named = f"{module}:{target}" if target else module
        answer = examine({"target": named, "app_dir": str(folder), "workers": workers, "transport": transport})
        found = {}
        for facts in answer["servers"]:
            found |= {f.code: f for f in judge(ServerFacts.from_json(facts), configured=configured)}
        for finding in found.values():
            assert finding.what
            assert finding.why
            assert finding.next
        return answer, found

    yield run
    for module in modules:
        sys.modules.pop(module, None)


def with_keyset(keyset: LocalKeyset, server: str) -> str:
    pins = f"pins = {keyset.pins!r}\n"
    head = (
        "import mcpkeys\nfrom mcp.server import MCPServer, Server\nfrom mcp.server.request_state import *\n"
        "from mcpkeys import EnvelopeCodec, request_state_security, request_state_boundary\n"
    )
    return head + pins + textwrap.dedent(server)


PLAIN = "from mcp.server import MCPServer, Server\nfrom mcp.server.request_state import *\n"


def test_a_right_server_has_no_finding(check: Check, keyset: LocalKeyset) -> None:
    answer, found = check(
        with_keyset(keyset, "mcp = MCPServer('acme-orders', request_state_security=request_state_security(**pins))"),
        configured=True,
        workers=4,
        transport="streamable-http",
    )
    assert answer["problem"] is None
    assert found == {}
    (facts,) = answer["servers"]
    assert (facts["codec"], facts["keyset"], facts["audience"]) == ("mcpkeys", "fleet", "acme-orders")
    assert keyset.reports() == [], "a check is no instance"


@pytest.mark.parametrize("form", ["object", "factory", "async factory", "app", "app factory", "default", "nested"])
def test_every_form_that_uvicorn_takes(check: Check, keyset: LocalKeyset, form: str) -> None:
    make = "MCPServer('acme-orders', request_state_security=request_state_security(**pins))"
    source, target = {
        "object": (f"fleet = {make}", "fleet"),
        "factory": (f"def make(): return {make}", "make"),
        "async factory": (f"async def make(): return {make}", "make"),
        "app": (f"app = {make}.streamable_http_app()", "app"),
        "app factory": (f"def make(): return {make}.streamable_http_app()", "make"),
        "default": (f"mcp = {make}", ""),
        "nested": (f"class Site:\n    mcp = {make}", "Site.mcp"),
    }[form]
    answer, found = check(with_keyset(keyset, source), target)
    assert answer["problem"] is None
    assert len(answer["servers"]) == 1
    assert found == {}
    assert answer["servers"][0]["http"] == ("app" in form)


@pytest.mark.parametrize(
    ("server", "code"),
    [
        ("mcp = MCPServer()", "server-unnamed"),
        ("mcp = MCPServer('mcp-server')", "audience-placeholder"),
        ("mcp = MCPServer('acme-orders-7d9f8b6c5d-x2x4z')", "audience-per-replica"),
        ("mcp = MCPServer('server')", "audience-generic"),
        ("mcp = MCPServer(' acme')", "audience-space"),
    ],
)
def test_names_that_do_not_separate(check: Check, server: str, code: str) -> None:
    _, found = check(PLAIN + server)
    assert code in found


def test_an_unnamed_server_with_shared_keys(check: Check) -> None:
    answer, _ = check(PLAIN + "mcp = MCPServer(request_state_security=RequestStateSecurity(keys=['k' * 32]))")
    assert answer["problem"]["code"] == "server-unnamed"
    assert answer["problem"]["next"]


def test_a_ttl_longer_than_the_keysets(check: Check, keyset: LocalKeyset) -> None:
    server = """
    codec = EnvelopeCodec.open(**pins)
    policy = RequestStateSecurity(codec=codec, ttl={ttl}, audience="acme-orders")
    mcp = MCPServer("acme-orders", request_state_security=policy)
    """
    _, found = check(with_keyset(keyset, server.format(ttl=601)))
    assert found["ttl-longer"].level == "refused"
    assert "601" in found["ttl-longer"].what
    _, found = check(with_keyset(keyset, server.format(ttl=600)))
    assert found == {}


def test_another_audience_than_the_keysets(check: Check, keyset: LocalKeyset) -> None:
    server = """
    policy = RequestStateSecurity(codec=EnvelopeCodec.open(**pins))
    mcp = MCPServer("acme-refunds", request_state_security=policy)
    """
    _, found = check(with_keyset(keyset, server))
    assert found["audience-differs"].level == "refused"
    assert "acme-refunds" in found["audience-differs"].what
    assert "acme-orders" in found["audience-differs"].what


def test_the_default_key_with_several_workers(check: Check) -> None:
    source = PLAIN + "mcp = MCPServer('acme-orders')"
    assert check(source, workers=4)[1]["default-key"].level == "refused"
    assert check(source, workers=1)[1]["default-key"].level == "warned"
    assert check(source, transport="streamable-http")[1]["default-key"].level == "warned"
    assert check(source, configured=True)[1]["default-key"].level == "refused"
    assert check(source, transport="stdio")[1] == {}
    app = PLAIN + "app = MCPServer('acme-orders').streamable_http_app()"
    assert "over HTTP" in check(app, "app")[1]["default-key"].what
    explicit = PLAIN + "mcp = MCPServer('acme-orders', request_state_security=RequestStateSecurity.ephemeral(ttl=9))"
    assert check(explicit, workers=2)[1]["default-key"].level == "refused"


def test_other_codecs_are_told(check: Check) -> None:
    shared = PLAIN + "mcp = MCPServer('acme-orders', request_state_security=RequestStateSecurity(keys=['k' * 32]))"
    assert check(shared, workers=4)[1]["codec-other"].level == "warned"
    assert check(shared, configured=True)[1]["codec-other"].level == "refused"
    secrets = """
    import mcpkeys
    policy = RequestStateSecurity(codec=mcpkeys.EnvelopeCodec.from_secrets(['k' * 32]))
    mcp = MCPServer('acme-orders', request_state_security=policy)
    """
    assert "from_secrets" in check(PLAIN + textwrap.dedent(secrets))[1]["codec-other"].what


def test_a_low_level_server_without_boundary(check: Check, keyset: LocalKeyset) -> None:
    server = """
    async def call(ctx, params): ...
    server = Server("acme-orders", on_call_tool=call)
    """
    _, found = check(PLAIN + textwrap.dedent(server), "server")
    assert found["no-boundary"].level == "refused"
    assert "request_state_boundary" in found["no-boundary"].next
    bounded = textwrap.dedent(server) + "server.middleware.append(request_state_boundary(**pins))\n"
    assert check(with_keyset(keyset, bounded), "server")[1] == {}
    app = PLAIN + textwrap.dedent(server) + "app = server.streamable_http_app()\n"
    assert "no-boundary" in check(app, "app")[1]
    assert check(PLAIN + "server = Server('acme-orders')", "server")[1] == {}
    policy = "RequestStateBoundary(request_state_security(**pins), default_audience=None)"
    without = bounded.replace("request_state_boundary(**pins)", policy)
    assert check(with_keyset(keyset, without), "server")[1] == {}, "the policy's audience counts"


def test_a_boundary_without_audience(check: Check) -> None:
    server = """
    async def call(ctx, params): ...
    server = Server("acme-orders", on_call_tool=call)
    policy = RequestStateSecurity(keys=["k" * 32])
    server.middleware.append(RequestStateBoundary(policy, default_audience=None))
    server.middleware.append(RequestStateBoundary(policy, default_audience=None))
    """
    _, found = check(PLAIN + textwrap.dedent(server), "server")
    assert found["audience-missing"].level == "refused"
    assert found["boundary-twice"].level == "warned"


def test_a_keyset_out_of_reach(check: Check, keyset: LocalKeyset, tmp_path: Path) -> None:
    server = "mcp = MCPServer('acme-orders', request_state_security=request_state_security(**pins))"
    keyset.path.rename(tmp_path / "elsewhere")
    answer, _ = check(with_keyset(keyset, server))
    assert answer["problem"]["code"] == "keyset-not-found"
    assert answer["problem"]["exit"] == 2
    answer, _ = check(PLAIN + "from mcpkeys.errors import KmsUnreachable\nraise KmsUnreachable('nobody answers')")
    assert answer["problem"]["exit"] == 4


def test_a_codec_constructed_per_token(check: Check, keyset: LocalKeyset) -> None:
    server = """
    class PerToken:
        def seal(self, payload):
            with EnvelopeCodec.open(**pins) as codec:
                return codec.seal(payload)
        def unseal(self, token):
            with EnvelopeCodec.open(**pins) as codec:
                return codec.unseal(token)
    policy = RequestStateSecurity(codec=PerToken(), audience="acme-orders")
    mcp = MCPServer("acme-orders", request_state_security=policy)
    """
    answer, found = check(with_keyset(keyset, server))
    assert found["codec-per-request"].level == "refused"
    assert answer["servers"][0]["opened"] == 2


def test_a_codec_constructed_per_request(check: Check, keyset: LocalKeyset) -> None:
    server = """
    async def app(scope, receive, send):
        mcp = MCPServer("acme-orders", request_state_security=request_state_security(**pins))
        await mcp.streamable_http_app()(scope, receive, send)
    """
    answer, found = check(with_keyset(keyset, server), "app")
    assert answer["problem"] is None
    assert found["codec-per-request"].level == "refused"
    assert found.keys() == {"codec-per-request"}


def test_a_boundary_constructed_per_request(check: Check, keyset: LocalKeyset) -> None:
    server = """
    async def call(ctx, params): ...
    async def boundary(ctx, call_next):
        made = request_state_boundary(**pins)
        with made.security.codec:
            return await made(ctx, call_next)
    server = Server("acme-orders", on_call_tool=call)
    server.middleware.append(boundary)
    """
    _, found = check(with_keyset(keyset, server), "server")
    assert found["codec-per-request"].level == "refused"
    assert "policy-unreadable" in found
    assert "no-boundary" not in found


def test_other_middleware_is_no_boundary(check: Check) -> None:
    server = """
    async def call(ctx, params): ...
    async def passing(ctx, call_next): return await call_next(ctx)
    async def needing(ctx, call_next): return ctx.session.nothing
    server = Server("acme-orders", on_call_tool=call)
    server.middleware.append({which})
    """
    for which in ("passing", "needing"):
        _, found = check(PLAIN + textwrap.dedent(server.format(which=which)), "server")
        assert found.keys() == {"no-boundary"}


def test_a_codec_that_does_not_give_back_what_it_sealed(check: Check) -> None:
    server = """
    class Broken:
        def seal(self, payload): return "x"
        def unseal(self, token): raise InvalidRequestState("malformed")
    mcp = MCPServer("acme-orders", request_state_security=RequestStateSecurity(codec=Broken()))
    """
    _, found = check(PLAIN + textwrap.dedent(server))
    assert found["round-trip-failed"].level == "refused"


def test_callers_that_are_authenticated_and_not_bound(check: Check, keyset: LocalKeyset) -> None:
    server = """
    from mcp.server.auth.settings import AuthSettings
    class Verifier:
        async def verify_token(self, token): return None
    mcp = MCPServer("acme-orders", token_verifier=Verifier(),
        auth=AuthSettings(issuer_url="https://auth.example.com", resource_server_url="https://orders.example.com",
            validate_token_resource=True),
        request_state_security=request_state_security(**pins{bind}))
    """
    _, found = check(with_keyset(keyset, server.replace("{bind}", ", bind_principal=None")))
    assert found["principal-unbound"].level == "refused"
    assert check(with_keyset(keyset, server.replace("{bind}", "")))[1] == {}


def test_a_migration_that_is_not_over(check: Check, keyset: LocalKeyset) -> None:
    server = "mcp = MCPServer('acme-orders', request_state_security=request_state_security(**pins, {how}))"
    for how, word in (("sdk_keys=['k' * 32], mint='sdk'", "mints"), ("sdk_keys=['k' * 32]", "accepts")):
        _, found = check(with_keyset(keyset, server.format(how=how)))
        assert word in found["migration-running"].what
        assert found["migration-running"].level == "warned"


@pytest.mark.parametrize(
    "start",
    [
        "mcp.run()",
        "mcp.run('streamable-http')",
        "import anyio; anyio.run(mcp.run_stdio_async)",
        "import asyncio; asyncio.run(mcp.run_streamable_http_async())",
        "import uvicorn; uvicorn.run(mcp.streamable_http_app(), port=1)",
        "import uvicorn; uvicorn.Server(uvicorn.Config(mcp.streamable_http_app(), port=1)).run()",
        "\ntry: mcp.run()\nexcept Exception: pass",
    ],
)
def test_a_module_that_serves_on_import_is_stopped_and_told(check: Check, start: str) -> None:
    answer, found = check(PLAIN + f"mcp = MCPServer('acme-orders-0')\n{start}")
    assert answer["problem"]["code"] == "runs-on-import"
    assert "__main__" in answer["problem"]["next"]
    assert "audience-per-replica" in found, "what was built before is judged all the same"


def test_the_workers_that_a_module_asks_for_count(check: Check) -> None:
    source = PLAIN + "import uvicorn\nmcp = MCPServer('acme-orders')\nuvicorn.run('x:app', workers=3)"
    assert check(source)[1]["default-key"].level == "refused"


@pytest.mark.parametrize(
    ("environ", "workers"),
    [
        ({}, 1),
        ({"WEB_CONCURRENCY": "4"}, 4),
        ({"UVICORN_WORKERS": "3"}, 3),
        ({"GUNICORN_CMD_ARGS": "--bind :80 --workers=5"}, 5),
        ({"GUNICORN_CMD_ARGS": "-w 6 --keep-alive 2"}, 6),
        ({"WEB_CONCURRENCY": "many", "UVICORN_WORKERS": "-1"}, 1),
        ({"WEB_CONCURRENCY": "٣", "GUNICORN_CMD_ARGS": "--no-w 7"}, 1),
    ],
)
def test_the_workers_that_the_environment_asks_for_count(environ: dict[str, str], workers: int) -> None:
    assert workers_asked_for(environ) == workers


def test_serving_works_again_after_a_check(check: Check) -> None:
    import uvicorn
    from mcp.server import MCPServer

    before = (uvicorn.run, MCPServer.run, MCPServer.__init__)
    check(PLAIN + "mcp = MCPServer('acme-orders')")
    assert (uvicorn.run, MCPServer.run, MCPServer.__init__) == before


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("raise RuntimeError('no database')", "mcp", "import-failed"),
        ("def f(:", "mcp", "import-failed"),
        ("import absent_dependency", "mcp", "import-failed"),
        ("raise SystemExit(3)", "mcp", "import-exits"),
        ("from mcp.server import MCPServer\nother = MCPServer('a-name')", "mcp", "attribute-not-found"),
        ("x = 1", "", "attribute-not-found"),
        ("mcp = 7", "mcp", "no-server"),
        ("def mcp(scope, receive, send): ...", "mcp", "no-server"),
    ],
)
def test_what_cannot_be_imported_is_told(check: Check, source: str, target: str, code: str) -> None:
    answer, _ = check(source, target)
    problem = answer["problem"]
    assert problem["code"] == code
    assert problem["exit"] == 2
    assert problem["what"]
    assert problem["next"]


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    for target, code in (("absent_module:mcp", "module-not-found"), ("x.py:mcp", "target-invalid")):
        request = {"target": target, "app_dir": str(tmp_path), "workers": 1, "transport": ""}
        assert examine(request)["problem"]["code"] == code


# --- in a process of its own -----------------------------------------------------------------------------------


def checked(tmp_path: Path, source: str, **options: Any) -> Checked:
    (tmp_path / "planted.py").write_text(textwrap.dedent(source))
    return check_server("planted:mcp", app_dir=str(tmp_path), **options)


def test_the_process_answers_with_findings_and_exit_code(tmp_path: Path, keyset: LocalKeyset) -> None:
    source = with_keyset(
        keyset, "mcp = MCPServer('x', request_state_security=request_state_security())\nprint('noise')"
    )
    source += "\nprint('noise')\n"
    result = checked(tmp_path, source, environ={**_environ(), **keyset.environ})
    assert (result.exit_code, result.findings) == (0, ())
    assert result.servers[0].keyset == "fleet"


def test_the_exit_code_tells_out_of_reach_from_refused(tmp_path: Path) -> None:
    source = "from mcpkeys.errors import StoreUnreachable\nraise StoreUnreachable('nobody answers')"
    assert checked(tmp_path, source).exit_code == 4


def test_a_module_that_never_ends_is_ended(tmp_path: Path) -> None:
    result = checked(tmp_path, "import time\ntime.sleep(600)", seconds=2.5)
    assert [finding.code for finding in result.findings] == ["import-hangs"]
    assert result.exit_code == 2


def test_a_module_that_kills_its_process_is_told(tmp_path: Path) -> None:
    result = checked(tmp_path, "import os\nos._exit(7)", environ={**_environ(), "MCPKEYS_SIGNER": "x"})
    assert {finding.code for finding in result.findings} == {"import-died", "setting-unknown"}


def _environ() -> dict[str, str]:
    return dict(os.environ)


def test_the_command_gives_text_json_and_exit_codes(
    tmp_path: Path, keyset: LocalKeyset, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.toml").write_text(f'name = "fleet"\nkeyset = "{keyset.path}"\n')
    (tmp_path / "fleet.toml").chmod(0o600)
    (tmp_path / "planted.py").write_text(PLAIN + "mcp = MCPServer('acme-orders')")
    arguments = ["check", "planted:mcp", "--app-dir", str(tmp_path)]
    assert main([*arguments, "--transport", "stdio"]) == 0
    out = capsys.readouterr().out
    assert "audience 'acme-orders'" in out
    assert out.splitlines()[-1].startswith("next: ")
    assert main([*arguments, "--config", str(tmp_path / "fleet.toml"), "--output", "json"]) == 2
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == "mcpkeys.check/1"
    assert [(f["code"], f["level"]) for f in answer["findings"]] == [("default-key", "refused")]
    assert answer["error"]["next"] == answer["findings"][0]["next"]
    assert answer["servers"][0]["codec"] == "ephemeral"
