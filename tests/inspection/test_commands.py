"""`mcpkeys inspect`, `triage` and `bundle` as an on-call engineer runs them."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from inspection.scene import CALL
from servers.localkeyset import LocalKeyset, local_keyset

from mcpkeys import document
from mcpkeys.call import arguments_digest, principal_of
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.errors import KmsDenied, KmsUnreachable
from mcpkeys.keks import Keks
from mcpkeys.sdktoken import SdkRing
from mcpkeys_cli.main import main

PASSPHRASE = "correct horse battery staple"


class Desk:
    """A machine with a keyset, a token of it, and the command."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder = folder
        self.capsys = capsys
        self.keyset: LocalKeyset = local_keyset(folder)
        self.passphrase = self.write("pass.txt", PASSPHRASE + "\n")
        with EnvelopeCodec.open(**self.keyset.pins, instance="web-1") as codec:
            self.token = codec.seal(json.dumps(self.claims()).encode())

    def claims(self, **changes: Any) -> dict[str, Any]:
        now = time.time()
        return {
            "v": 1,
            "iat": now,
            "exp": now + 600,
            "m": "tools/call",
            "t": "deploy",
            "a": arguments_digest({"env": "prod"}),
            "s": "colour=blue \x1b]0;owned\x07",
            "aud": "acme-orders",
            **changes,
        }

    def write(self, name: str, content: str | dict[str, Any]) -> str:
        path = self.folder / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        path.chmod(0o600)
        return str(path)

    def request(self, **params: Any) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**CALL["params"], **params}}

    def run(self, *arguments: str) -> tuple[int, str, str]:
        self.capsys.readouterr()
        code = main(arguments)
        out, err = self.capsys.readouterr()
        return code, out, err

    def json(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        code, out, err = self.run(*arguments, "--output", "json")
        assert err == ""
        value: dict[str, Any] = json.loads(out)
        assert value["exit"] == code
        assert value["ok"] == (code == 0)
        return code, value


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Desk:
    made = Desk(tmp_path, capsys)
    # The smallest cost that is readable: these tests are not about scrypt.
    monkeypatch.setattr("mcpkeys.bundle.SCRYPT_N", 1 << 15)
    for name in [name for name in os.environ if name.startswith("MCPKEYS_")]:
        monkeypatch.delenv(name)
    for name, value in made.keyset.environ.items():
        monkeypatch.setenv(name, value)
    return made


def test_a_captured_request_is_accepted_with_all_that_it_needs(desk: Desk) -> None:
    path = desk.write("request.json", desk.request(requestState=desk.token))
    code, value = desk.json("inspect", "--request", path, "--audience", "acme-orders", "--anonymous")
    assert (code, value["verdict"], value["reason"]) == (0, "accepted", None)
    assert {check["result"] for check in value["checks"]} == {"pass"}
    assert value["explanation"]["minted_by"].startswith("web-1 ")
    assert value["held_against"] == {"source": str(desk.keyset.path), "generation": 1, "reports": 1}
    assert "state" not in value
    assert value["contacted"] == "no MCP server"


def test_the_options_say_the_same_as_a_captured_request(desk: Desk) -> None:
    path = desk.write("token.txt", desk.token + "\n")
    options = ["--method", "tools/call", "--name", "deploy", "--arguments", '{"env": "prod"}']
    options += ["--audience", "acme-orders", "--anonymous"]
    code, value = desk.json("inspect", "--file", path, *options)
    assert (code, {check["result"] for check in value["checks"]}) == (0, {"pass"})
    code, value = desk.json("inspect", "--file", path, "--method", "tools/call", "--name", "deploy")
    missing = [check["name"] for check in value["checks"] if check["result"] == "not_checked"]
    assert missing == ["arguments", "audience", "principal binding", "principal presence", "principal"]


def test_the_principal_of_an_access_token_is_told_by_its_three_parts(desk: Desk) -> None:
    import hashlib

    from mcpkeys.encoding import b64u

    salt = os.urandom(8)
    principal = principal_of("app", "https://idp", "alice")
    tag = hashlib.sha256(b"mcp/request-state/principal:" + salt + principal.encode()).digest()[:16]
    with EnvelopeCodec.open(**desk.keyset.pins) as codec:
        path = desk.write("token.txt", codec.seal(json.dumps(desk.claims(p=b64u(salt + tag))).encode()))
    right = ["--client-id", "app", "--issuer", "https://idp", "--subject", "alice"]
    assert desk.json("inspect", "--file", path, *right)[0] == 0
    assert desk.json("inspect", "--file", path, "--principal", principal)[0] == 0
    assert desk.json("inspect", "--file", path, *right[:4])[1]["reason"] == "principal"
    assert desk.json("inspect", "--file", path, "--anonymous")[1]["reason"] == "principal drift"


def test_the_first_round_tells_which_argument_differs(desk: Desk) -> None:
    retry = desk.request(requestState=desk.token)
    retry["params"]["arguments"] = {"env": "prod", "force": True}
    code, out, _ = desk.run(
        "inspect",
        "--request",
        desk.write("retry.json", retry),
        "--first",
        desk.write("first.json", desk.request()),
    )
    assert code == 3
    assert "arguments.force: new in the retry" in out


def test_quotes_and_what_else_stands_around_a_token_make_it_another_string(desk: Desk) -> None:
    code, value = desk.json("inspect", f'"{desk.token}"')
    assert (code, value["verdict"], value["reason"]) == (3, "rejected", "malformed")
    assert value["trimmed"] == ["quotes around it"]
    assert value["inside"]["verdict"] == "accepted"
    code, out, _ = desk.run("inspect", f'"{desk.token}"')
    assert out.startswith("REJECTED: malformed as given: quotes around it\n")


def test_the_line_end_of_a_file_is_not_the_tokens(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for end in ("", "\n", "\r\n"):
        assert desk.json("inspect", "--file", desk.write("token.txt", desk.token + end))[0] == 0
    assert desk.json("inspect", "--file", desk.write("token.txt", desk.token + "\n\n"))[0] == 3

    class Stdin:
        buffer = io.BytesIO(desk.token.encode() + b"\n")

    monkeypatch.setattr(sys, "stdin", Stdin())
    assert desk.json("inspect", "-")[0] == 0


def test_an_empty_token_is_a_token(desk: Desk) -> None:
    code, value = desk.json("inspect", "")
    assert (code, value["reason"]) == (3, "malformed")


def test_now_replays_a_moment(desk: Desk) -> None:
    code, value = desk.json("inspect", desk.token, "--now", str(time.time() + 900))
    assert (code, value["reason"]) == (3, "expired")
    assert desk.json("inspect", desk.token, "--now", "2020-01-01T00:00:00Z")[1]["reason"] == "minted in the future"
    code, value = desk.json("inspect", desk.token, "--now", "yesterday")
    assert (code, value["error"]["code"]) == (2, "usage")


def test_the_state_is_shown_on_request_only_and_steers_no_terminal(desk: Desk) -> None:
    assert "colour" not in desk.run("inspect", desk.token)[1]
    _, out, _ = desk.run("inspect", desk.token, "--show-state")
    assert "colour=blue \\u001b]0;owned\\u0007" in out
    assert "\x1b" not in out
    assert desk.json("inspect", desk.token, "--show-state")[1]["state"].startswith("colour=blue")


def test_unverified_never_exits_0(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_error(error: Any) -> None:
        monkeypatch.setattr(Keks, "unwrap", lambda self, jobs, **_: {job.context.kid: error for job in jobs})

    with monkeypatch.context() as bare:
        bare.delenv("MCPKEYS_KEYSET")
        code, out, err = desk.run("inspect", desk.token)
        assert (code, out.splitlines()[0]) == (2, "NOT VERIFIED (no key)")
        assert "next: --keyset URI" in err
    with monkeypatch.context() as bare:
        bare.delenv("MCPKEYS_KEKS")
        assert desk.json("inspect", desk.token)[0] == 2
    with_error(KmsUnreachable("nobody answers", why="timeout", next="try again"))
    code, value = desk.json("inspect", desk.token)
    assert (code, value["verdict"], value["error"]["code"]) == (4, "unverified", "kms-unreachable")
    assert value["key"]["state"] == "minting"
    with_error(KmsDenied("no right", why="policy", next="ask"))
    assert desk.json("inspect", desk.token)[0] == 7
    monkeypatch.setenv("MCPKEYS_KEYSET", str(desk.folder / "absent.json"))
    assert desk.json("inspect", desk.token)[0] == 2


def test_the_sdks_own_tokens_are_read_with_its_keys(desk: Desk) -> None:
    secret = "s3cret-" * 6
    token = SdkRing([secret]).seal(json.dumps(desk.claims()).encode())
    code, value = desk.json("inspect", token)
    assert (code, value["verdict"]) == (2, "unverified")
    assert "--sdk-key-file" in value["next"]
    path = desk.write("sdk.keys", f"{'other-' * 8}\n{secret}\n")
    assert desk.json("inspect", token, "--sdk-key-file", path, "--audience", "acme-orders")[0] == 0
    code, value = desk.json("inspect", token, "--sdk-key-file", desk.write("bad.keys", "short\n"))
    assert (code, value["error"]["code"]) == (2, "sdk-keys")
    assert "short" not in json.dumps(value["error"])


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("x", "--file", "y"),
        ("x", "--audience", "a", "--no-audience"),
        ("x", "--anonymous", "--principal", "p"),
        ("x", "--subject", "alice"),
        ("x", "--arguments", "{not json"),
        ("--file", "/nowhere/at/all"),
        ("--request", "/nowhere/at/all"),
        ("x", "--bundle", "/nowhere/at/all", "--passphrase-file", "/nowhere"),
    ],
)
def test_what_makes_no_sense_is_told_with_a_next_step(desk: Desk, arguments: tuple[str, ...]) -> None:
    code, value = desk.json("inspect", *arguments)
    assert code == 2
    assert value["error"]["message"]
    assert value["error"]["next"]


def test_a_stream_of_many_is_sent_to_triage(desk: Desk) -> None:
    many = json.dumps(desk.request(requestState=desk.token)) + "\n"
    code, value = desk.json("inspect", "--request", desk.write("many.ndjson", many * 2))
    assert (code, value["error"]["code"]) == (2, "many-requests")
    assert "mcpkeys triage" in value["next"]


def bundled(desk: Desk) -> str:
    path = str(desk.folder / "incident.bundle")
    code, value = desk.json(
        "bundle", "--out", path, "--include-minting", "--yes", "--passphrase-file", desk.passphrase,
        "--reason", "incident 4711",
    )  # fmt: skip
    assert code == 0, value
    return path


class Forbidden:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise AssertionError("a socket was opened")


def forbid_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("socket", "create_connection", "getaddrinfo", "socketpair", "fromfd"):
        monkeypatch.setattr(socket, name, Forbidden)
    monkeypatch.setattr("_socket.socket", Forbidden)


def test_a_bundle_works_where_sockets_are_forbidden_and_its_making_is_in_the_history(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundled(desk)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    stored = document.read(desk.keyset.path.read_bytes(), signers=[desk.keyset.signer])
    entry = stored.history[-1]
    assert entry.what.startswith("bundle of 1 keys, the minting one included, expires ")
    assert (entry.reason, entry.generation, stored.generation) == ("incident 4711", 2, 2)
    for name in desk.keyset.environ:
        monkeypatch.delenv(name)
    desk.keyset.path.unlink()
    forbid_sockets(monkeypatch)
    token = desk.write("token.txt", desk.token)
    options = ["--bundle", path, "--passphrase-file", desk.passphrase, "--audience", "acme-orders", "--anonymous"]
    request = desk.write("request.json", desk.request(requestState=desk.token))
    code, value = desk.json("inspect", "--request", request, *options)
    assert (code, value["verdict"]) == (0, "accepted")
    assert value["explanation"]["minted_by"].startswith("web-1 ")
    code, value = desk.json("triage", token, *options)
    assert (code, value["summary"]["counts"]["accepted"]) == (0, 1)
    wrong = desk.write("wrong.txt", "another passphrase")
    code, value = desk.json("inspect", "--file", token, "--bundle", path, "--passphrase-file", wrong)
    assert (code, value["error"]["code"]) == (2, "bundle-passphrase")
    later = time.time() + 90_000
    monkeypatch.setattr(time, "time", lambda: later)
    code, value = desk.json("inspect", "--file", token, *options)
    assert (code, value["error"]["code"]) == (2, "bundle-expired")


def test_a_bundle_is_refused_before_anything_is_written(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    before = desk.keyset.path.read_bytes()
    out = str(desk.folder / "b")
    options = ["--yes", "--passphrase-file", desk.passphrase]
    short = desk.write("short.txt", "short\n")
    for arguments, code in (
        (["--out", out, *options], "bundle-empty"),
        (["--out", desk.passphrase, "--include-minting", *options], "file"),
        (["--out", out, "--include-minting", "--yes", "--passphrase-file", short], "bundle-passphrase"),
        (["--out", out, "--include-minting", "--expires", "8d", *options], "bundle-expiry"),
        (["--out", out, "--include-minting", "--passphrase-file", desk.passphrase], "confirmation-needed"),
        (["--out", out, "--include-minting", "--yes"], "passphrase-needed"),
    ):
        found, value = desk.json("bundle", *arguments)
        assert (found, value["error"]["code"]) == (2, code)
    assert desk.keyset.path.read_bytes() == before
    assert not Path(out).exists()


def test_inspect_loads_neither_the_sdk_nor_a_cloud_sdk(desk: Desk) -> None:
    path = desk.write("token.txt", desk.token)
    script = (
        "import sys\nfrom mcpkeys_cli.main import main\n"
        f"code = main(['inspect', '--file', {path!r}, '--audience', 'acme-orders'])\n"
        "heavy = ('mcp', 'mcp_types', 'boto3', 'botocore', 'google.cloud', 'google.api_core', 'hvac', 'requests', "
        "'rich', 'grpc')\n"
        "print([name for name in heavy if name in sys.modules], code)\n"
    )
    # A pydantic plugin that happens to be installed is not ours to answer for.
    environ = {**os.environ, "PYDANTIC_DISABLE_PLUGINS": "__all__"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines()[-1] == "[] 0"


def test_triage_of_a_mixed_stream_ends_with_the_next_command(desk: Desk) -> None:
    stream = "\n".join(
        [
            desk.token,
            json.dumps(desk.request(requestState=desk.token)),
            json.dumps({"time": time.time(), "pod": "web-2", "message": "requestState rejected on tools/call: seal"}),
            "web-3 | 2026-11-29T22:51:00Z WARNING requestState rejected on prompts/get: \x1b[31mexpired",
            "unrelated",
        ]
    )
    path = desk.write("mixed.log", stream)
    code, out, _ = desk.run("triage", path)
    assert code == 0
    assert out.startswith("2 tokens: 2 accepted as far as checked, 0 rejected, 0 not verified; 2 refusals in logs\n")
    assert "\x1b" not in out
    assert "\nnext: " in out
    code, out, _ = desk.run("triage", path, "--output", "ndjson")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.get("line") for line in lines] == [1, 2, 3, 4, None]
    assert lines[-1]["schema"] == "mcpkeys.triage/1"
    assert lines[2]["instance"] == "web-2"


def test_triage_without_any_key_does_not_exit_0(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MCPKEYS_KEYSET")
    path = desk.write("tokens", desk.token)
    assert desk.json("triage", path)[0] == 2
    code, out, _ = desk.run("triage", str(desk.folder / "absent"), "--output", "ndjson")
    assert (code, json.loads(out)["error"]["code"]) == (2, "file")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o660, 0o777])
@pytest.mark.parametrize("option", ["--passphrase-file", "--sdk-key-file"])
def test_of_a_file_with_a_secret_that_others_may_read_or_write_stderr_is_told(
    desk: Desk, option: str, mode: int
) -> None:
    path = desk.write("secret.txt", "correct horse battery staple and more\n")
    bundle = ["--bundle", desk.write("any.bundle", "x")] if option == "--passphrase-file" else []
    line = ["inspect", desk.token, *bundle, option, path]
    before = desk.run(*line)
    os.chmod(path, mode)
    code, out, err = desk.run(*line)
    assert (code, out[:40]) == (before[0], before[1][:40])
    assert f"warning: {path} holds a secret" in err
    assert f"{mode:04o}" in err
    assert "warning" not in before[2]
    assert "battery" not in out + err


def test_a_pipe_may_hold_the_passphrase(desk: Desk) -> None:
    """As a shell's `<(...)` makes it."""
    reading, writing = os.pipe()
    os.write(writing, b"correct horse battery staple\n")
    os.close(writing)
    _, value = desk.json(
        "inspect", desk.token, "--bundle", desk.write("any.bundle", "x"), "--passphrase-file", f"/dev/fd/{reading}"
    )
    os.close(reading)
    assert value["error"]["code"] == "bundle-malformed"


def test_triage_says_that_a_log_and_captures_may_be_of_the_same_refusals(desk: Desk) -> None:
    """A log line names neither token nor call, so they are not matched; each counts, and the reader knows."""
    log = "requestState rejected on tools/call: seal\n"
    request = json.dumps(desk.request(requestState=desk.token[:-1] + ("A" if desk.token[-1] != "A" else "Q"))) + "\n"
    for fed, told in ((log, False), (request, False), (log + request, True)):
        path = desk.write("mixed.log", fed)
        value = desk.json("triage", path, "--audience", "acme-orders")[1]
        counts = value["summary"]["counts"]
        assert (counts["log_lines"], counts["tokens"]) == (fed.count(log), fed.count(request)), value
        assert any("may be of the same refusals" in note for note in value["notes"]) is told
        assert ("may be of the same refusals" in desk.run("triage", path)[1]) is told
