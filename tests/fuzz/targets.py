"""What is fuzzed: for each kind of input from outside, a function of bytes that raises only what is promised.

A target is called with arbitrary bytes, must return or raise one of its `allowed` errors, and checks with plain
assertions what has to hold of whatever was accepted.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from mcp.server.request_state import InvalidRequestState
from vectors import make

from mcpkeys import bundle, document, kms, registry, reports, rotation, store, strictjson
from mcpkeys.audience import better_name, check_audience
from mcpkeys.call import CallContext
from mcpkeys.capture import requests, scan
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.encoding import b64u, format_ms, parse_ms, to_ms, unb64u
from mcpkeys.errors import KeysetError, McpkeysError, SettingError, UriError
from mcpkeys.explanation import explain
from mcpkeys.fleet import describe
from mcpkeys.inspection import inspect_token
from mcpkeys.instance import Instance
from mcpkeys.keyset import Keyset, digest, dumps, signed_bytes, to_json
from mcpkeys.keyuse import KeyUse
from mcpkeys.paste import tidy
from mcpkeys.ring import Ring, RingKey
from mcpkeys.settings import load_settings
from mcpkeys.settings_file import read_config
from mcpkeys.situation import Situation
from mcpkeys.steps import Step
from mcpkeys.token import xaes_key
from mcpkeys.triage import Fleet, Triage

NOW = make.NOW / 1000


@dataclass(frozen=True)
class Target:
    """One kind of input.

    Attributes:
        name: also that of its corpus.
        run: takes the input.
        seeds: right inputs, and others that reach far.
        allowed: the errors that are promised.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    allowed: tuple[type[Exception], ...] = field(default=())

    def check(self, data: bytes) -> None:
        """Run; nothing comes out but what breaks the promise."""
        try:
            self.run(data)
        except self.allowed:
            return


def _text(data: bytes) -> str:
    """Any text, lone surrogates included."""
    return data.decode("utf-8", "surrogateescape")


def vectors(name: str) -> Any:
    return json.loads((Path(make.__file__).parent / f"{name}.json").read_text(encoding="ascii"))


# --- tokens ----------------------------------------------------------------------------------------------------


@cache
def _codec() -> tuple[EnvelopeCodec, dict[str, bytes]]:
    """A codec over the keys of the vectors, and every token that it may accept."""
    found = vectors("refusals")
    keys = [
        RingKey(
            key["kid"],
            key["state"],
            0,
            0,
            None if key["data_key"] is None else xaes_key(bytes.fromhex(key["data_key"]), found["keyset"]),
            KeyUse(),
        )
        for key in found["keys"]
    ]
    codec = EnvelopeCodec(Instance("fuzz"))
    codec._use(Ring(name=found["keyset"], keys=keys, max_token_chars=4096))
    known = {vector["token"]: bytes.fromhex(vector["payload"]) for vector in found["accepted"]}
    # Those refusals that differ by length only, and what the generator seals under the same keys.
    known |= {make.sealed("minting", payload): payload for payload in (b"", b"s", b"st", b"sta", b"stat", b"state")}
    for name, payload in known.items():
        assert codec.unseal(name) == payload
    return codec, known


def run_token(data: bytes) -> None:
    codec, known = _codec()
    text = data.decode("utf-8", "surrogatepass") if b"\xed" in data and _is_text(data) else _text(data)
    payload = codec.unseal(text)
    # Forging is out of reach: what opens is exactly what was sealed.
    assert known.get(text) == payload or text in _sealed_elsewhere(), text[:80]


def _is_text(data: bytes) -> bool:
    try:
        data.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return False
    return True


@cache
def _sealed_elsewhere() -> frozenset[str]:
    return frozenset(vector["token"] for vector in [*vectors("refusals")["refused"], *vectors("tokens")["tokens"]])


def seeds_token() -> list[bytes]:
    texts = [*_codec()[1], *_sealed_elsewhere()]
    return [text.encode("utf-8", "surrogatepass") for text in texts if len(text) < 1200]


# --- documents -------------------------------------------------------------------------------------------------


def run_json(data: bytes) -> None:
    value = strictjson.loads(data, max_bytes=1 << 20)
    canonical = strictjson.canonical(value)
    assert strictjson.loads(canonical, max_bytes=8 << 20) == value
    assert strictjson.canonical(strictjson.loads(canonical, max_bytes=8 << 20)) == canonical


def run_keyset(data: bytes) -> None:
    """Raw, and once more signed by a signer that is pinned: what only the operator can write is read as strictly."""
    try:
        _read(data)
    except KeysetError:
        signed = _signed(data)
        if signed is None:
            raise
        _read(signed)


def _read(data: bytes) -> None:
    keyset = document.read(data)
    assert document.read(dumps(keyset)) == keyset
    assert strictjson.canonical(to_json(keyset)) == strictjson.canonical(strictjson.loads(data, max_bytes=1 << 20))
    _use(keyset)


def _use(keyset: Keyset) -> None:
    """What every reader does with an accepted document."""
    assert digest(keyset).startswith("sha256:")
    assert keyset.minting in keyset.live
    ring = Ring.from_keyset(keyset, {})
    assert ring.minting is None
    repr(ring), keyset.running, keyset.retired


def _signed(data: bytes) -> bytes | None:
    try:
        value = json.loads(data)
        if not isinstance(value, dict) or not isinstance(value.get("signer"), dict):
            return None
        value["signer"]["public"] = "ed25519:" + b64u(make.SIGNER.public_key().public_bytes_raw())
        value["signature"] = b64u(make.SIGNER.sign(signed_bytes(value)))
        return json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError, UnicodeEncodeError):  # not JSON, or nothing that has a canonical form
        return None


def seeds_keyset() -> list[bytes]:
    found = vectors("keysets")
    minimal = json.loads(found["document"]) | {"rotation": None, "history": [], "past_ttls": [], "previous": None}
    return [found["document"].encode(), json.dumps(minimal | {"max_stale_seconds": None}).encode()] + [
        vector["document"].encode() for vector in found["refused"]
    ]


def run_report(data: bytes) -> None:
    """Raw, and once more authenticated: what another instance of the fleet can write is read as strictly."""
    key = make.REPORT_KEY
    try:
        reports.decode(data, [key], keyset=make.NAME)
    except reports.BadReport:
        try:
            value = json.loads(data)
            value.pop("mac", None)
            value["mac"] = reports.mac(key, value)
            body = json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError, AttributeError, TypeError):
            return
        report = reports.decode(body, [key], keyset=make.NAME)
        assert reports.decode(reports.encode(report, key), [key], keyset=make.NAME) == report
        _hold_against(report)


STEPS = [Step(to=to, expect=1) for to in (1, 2, 3, "rollback", "auto")] + [
    Step(to=2, allow_missing=(b64u(make.fixed("instance", 16)),)),
    Step(to="emergency", kid=make.kid("minting"), reason="leaked"),
]


def _hold_against(report: reports.Report) -> None:
    """What an operator's commands do with a report: every step, and the view of the fleet, with times to be written."""
    keyset, received = make.keyset(), [reports.ReceivedReport(report, NOW)]
    for step in STEPS:
        found = rotation.plan(keyset, received, step, NOW)
        if found.earliest is not None:
            format_ms(to_ms(found.earliest))
    view = describe(keyset, received, NOW)
    for at in (view.phase_since, view.earliest):
        if at is not None:
            format_ms(to_ms(at))
    for key in view.keys:
        for ms in (key.created_at, key.state_since, key.last_mint, key.last_unseal):
            if ms is not None:
                format_ms(ms)


def seeds_report() -> list[bytes]:
    found = vectors("reports")
    return [found["report"].encode(), *(vector["report"].encode() for vector in found["refused"])]


@cache
def _bundle_key() -> tuple[dict[str, Any], bytes, Any]:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    head = json.loads(vectors("bundle")["bundle"])
    key = bundle._derive(make.PASSPHRASE, unb64u(head["scrypt"]["salt"]), head["scrypt"]["n"])
    return head, key, AESGCM(key)


def run_bundle(data: bytes) -> None:
    """The head, which is read before anything is authentic."""
    bundle._head(data)


def run_bundle_content(data: bytes) -> None:
    """What is sealed inside, which a holder of the passphrase can write."""
    head, key, aead = _bundle_key()
    bare = {name: value for name, value in head.items() if name != "sealed"}
    sealed = aead.encrypt(unb64u(head["nonce"]), data, bundle.LABEL + strictjson.canonical(bare))
    body = json.dumps({**bare, "sealed": b64u(sealed)}).encode()
    derive = bundle._derive
    bundle._derive = lambda passphrase, salt, n: key  # type: ignore[assignment]
    try:
        opened = bundle.open_bundle(body, make.PASSPHRASE, now=NOW)
    finally:
        bundle._derive = derive
    assert "Bundle(" in repr(opened)
    opened.ring()


def seeds_bundle() -> list[bytes]:
    found = vectors("bundle")
    return [found["bundle"].encode(), *(vector["bundle"].encode() for vector in found["refused"])]


def seeds_bundle_content() -> list[bytes]:
    head, _, aead = _bundle_key()
    bare = {name: value for name, value in head.items() if name != "sealed"}
    bound = bundle.LABEL + strictjson.canonical(bare)
    return [aead.decrypt(unb64u(head["nonce"]), unb64u(head["sealed"]), bound)]


# --- what people and their machines write ------------------------------------------------------------------------

URIS = (
    *("local:///etc/mcpkeys/kek.key", "awskms:///arn:aws:kms:eu-west-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab"),
    *("awskms:///alias/fleet?region=eu-west-1", "awskms:///arn:aws:kms:eu-west-1:111122223333:key/mrk-1234abcd12ab34cd56ef1234567890ab"),
    *("gcpkms://projects/p/locations/l/keyRings/r/cryptoKeys/k", "hashivault://orders?mount=transit&namespace=a/b"),
    *("file:///var/lib/mcpkeys/fleet.json", "/var/lib/fleet.json", "s3://bucket/key.json", "gs://bucket/key.json"),
    *("vaultkv://secret/mcpkeys/fleet", "vaultkv://secret/fleet?namespace=n", "fleet.json", "nosuch://x"),
)  # fmt: skip


def run_uri(data: bytes) -> None:
    text = _text(data)
    for scheme_of, opened in ((kms.scheme_of, registry.open_kms), (store.scheme_of, registry.open_store)):
        try:
            scheme_of(text)
        except UriError:
            pass
        else:
            try:
                backend = opened(text)
            except McpkeysError:
                continue
            assert isinstance(backend.uri, str)
            assert opened(backend.uri).uri == backend.uri, "the canonical form is its own"
            repr(backend)
            backend.close()
    kms.identity(text)


def run_settings(data: bytes) -> None:
    """`NAME=value` lines as an environment; the same values as arguments."""
    environ = {}
    for line in data.split(b"\0"):
        name, _, value = _text(line).partition("=")
        environ[name] = value
    environ.pop("MCPKEYS_CONFIG", None)
    settings = load_settings(environ)
    again = load_settings(settings.environ())
    assert (again.name, again.keyset, again.keks, again.signers) == (
        settings.name,
        settings.keyset,
        settings.keks,
        settings.signers,
    )


def seeds_settings() -> list[bytes]:
    signer = "ed25519:" + b64u(make.SIGNER.public_key().public_bytes_raw())
    right = {
        "MCPKEYS_NAME": "fleet",
        "MCPKEYS_KEYSET": "s3://acme/fleet.json",
        "MCPKEYS_KEKS": ",".join(URIS[:2]),
        "MCPKEYS_SIGNERS": json.dumps([signer]),
        "MCPKEYS_MIN_GENERATION": "7",
        "MCPKEYS_INSTANCE": "pod-7",
    }
    return [
        "\0".join(f"{name}={value}" for name, value in right.items()).encode(),
        b"MCPKEYS_NAMES=x",
        b"MCPKEYS_KEKS=[",
    ]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="mcpkeys-fuzz-"))


def run_config(data: bytes) -> None:
    path = _folder() / "fleet.toml"
    path.write_bytes(data)
    path.chmod(0o600)
    read_config(path)


def seeds_config() -> list[bytes]:
    signer = "ed25519:" + b64u(make.SIGNER.public_key().public_bytes_raw())
    return [
        f'name = "fleet"\nkeyset = "s3://a/b"\nkeks = ["{URIS[1]}"]\nsigners = ["{signer}"]\n'.encode(),
        b"min_generation = 7\n",
        b'MCPKEYS_NAME = "fleet"\ninstance = "x"\n',
        b"[table]\nname = 1\n",
        b"name = 2026-11-29T22:51:00Z\n",
    ]


def run_audience(data: bytes) -> None:
    text = _text(data)
    for finding in check_audience(text, known=["acme-orders", text[1:]], strict=True, hostname="pod-7"):
        assert finding.what
    better_name(text)
    tidy(text)


def run_encoding(data: bytes) -> None:
    text = _text(data)
    for read, write in ((unb64u, b64u), (parse_ms, format_ms)):
        try:
            value = read(text)
        except ValueError:
            continue
        assert write(value) == text  # type: ignore[arg-type]


# --- inspection ----------------------------------------------------------------------------------------------------


@cache
def _scene() -> tuple[Keyset, Ring, list[reports.ReceivedReport]]:
    keyset = make.keyset()
    kids = {key.kid for key in keyset.live}
    ring = Ring.from_keyset(keyset, {kid: key for kid, key in make.DATA_KEYS.items() if kid in kids})
    ring.max_token_chars = 65536
    return keyset, ring, [reports.ReceivedReport(make.report(), NOW)]


def run_claims(data: bytes) -> None:
    """`data` as the authentic content of a token, which only a holder of a key can write."""
    keyset, ring, received = _scene()
    call = CallContext(
        method="tools/call", params={"name": "deploy", "arguments": {"a": 1}}, audience="acme-orders", principal=None
    )
    found = inspect_token(make.sealed("minting", data), ring, call, now=NOW)
    assert found.verdict in ("accepted", "rejected")
    json.dumps(found.as_dict())
    told = explain(found, Situation(keyset, received, call, NOW, now_is_capture=True))
    json.dumps(told.as_dict())


def seeds_claims() -> list[bytes]:
    claims = {
        "v": 1,
        "iat": NOW - 5,
        "exp": NOW + 595,
        "m": "tools/call",
        "t": "deploy",
        "a": "RBNvo1WzZ4oRRq0W9-hkng",
        "s": "x",
        "aud": "acme-orders",
        "p": b64u(bytes(24)),
    }
    whole = json.dumps(claims).encode()
    return [whole, b"{}", b"[]", b"", b"\xff", *(json.dumps({**claims, n: None}).encode() for n in claims)]


def run_capture(data: bytes) -> None:
    """Lines of a log or capture, as `triage` takes them; and the whole as `inspect --request` does."""
    keyset, ring, received = _scene()
    triage = Triage(Fleet(ring, NOW, keyset, received, "acme-orders", None))
    for captured in scan(data.splitlines(keepends=True)):
        record = triage.feed(captured)
        if record is not None:
            json.dumps(record.as_dict())
    summary = triage.summary()
    assert summary.counts["tokens"] >= 0
    for captured in requests(_text(data)):
        assert captured.kind


def seeds_capture() -> list[bytes]:
    token = make.sealed("minting", seeds_claims()[0])
    request = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "deploy", "arguments": {"a": 1}, "requestState": token},
    }
    har = {
        "log": {
            "entries": [
                {
                    "startedDateTime": "2026-11-29T22:51:00.123Z",
                    "request": {"postData": {"text": json.dumps(request)}},
                    "response": {"content": {"text": "{}"}},
                }
            ]
        }
    }
    return [
        token.encode(),
        json.dumps(request).encode(),
        json.dumps(har, indent=1).encode(),
        json.dumps({"ts": NOW, "pod": "a", "body": json.dumps(request)}).encode(),
        b"2026-11-29 22:51:00,123 WARNING mcp.server: requestState rejected on tools/call: expired\n",
        b'{"time":"2026-11-29T22:51:00Z","message":"requestState rejected on tools/call: seal","instance":"x"}\n',
        json.dumps({**request, "params": {"name": "deploy"}}).encode() + b"\n" + token.encode(),
    ]


TARGETS = {
    target.name: target
    for target in (
        Target("token", run_token, seeds_token, (InvalidRequestState,)),
        Target("json", run_json, lambda: [*seeds_keyset(), b'{"a":[1,{"b":"\\u0000"}]}'], (strictjson.NotStrict,)),
        Target("keyset", run_keyset, seeds_keyset, (KeysetError,)),
        Target("report", run_report, seeds_report, (reports.BadReport,)),
        Target("bundle", run_bundle, seeds_bundle, (bundle.BundleError,)),
        Target(
            "bundle-content",
            run_bundle_content,
            seeds_bundle_content,
            (bundle.BundleError, KeysetError, reports.BadReport),
        ),
        Target("uri", run_uri, lambda: [uri.encode() for uri in URIS]),
        Target("settings", run_settings, seeds_settings, (SettingError,)),
        Target("config", run_config, seeds_config, (SettingError,)),
        Target(
            "audience",
            run_audience,
            lambda: [b"acme-orders", b"server", b"mcp-server", "ünï".encode(), b"a-7f9c5d-x2x4z"],
        ),
        Target("encoding", run_encoding, lambda: [b"AAAA", b"2026-11-29T22:51:00.123Z", b"AAA_", b"AA"]),
        Target("claims", run_claims, seeds_claims),
        Target("capture", run_capture, seeds_capture),
    )
}
