"""Write tests/vectors/*.json anew, from fixed inputs: `python tests/vectors/make.py`.

The files are the format's proof: tests/vectors/test_vectors.py holds the code to them, and tests/interop/reader.py,
which shares no code with the package, reads them. A change of one is a change of the format.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from mcpkeys import bundle, document, reports, sdktoken, token
from mcpkeys.encoding import b64u
from mcpkeys.keyset import (
    HistoryEntry,
    Key,
    Keyset,
    PastTtl,
    ReportKey,
    Rotation,
    RotationStep,
    Signer,
    StepEvidence,
    digest,
    dumps,
    signed_bytes,
    to_json,
)
from mcpkeys.kms import PURPOSES, Wrap, WrapContext
from mcpkeys.ring import Ring

HERE = Path(__file__).parent
NAME, NOW = "fleet", 1_796_000_000_123
LIMIT = 600
PASSPHRASE = "correct horse battery staple"


def fixed(label: str, count: int) -> bytes:
    """Bytes that anybody can make again: SHAKE128 of `mcpkeys vector ` and a label."""
    return hashlib.shake_128(b"mcpkeys vector " + label.encode()).digest(count)


def kid(label: str) -> str:
    return b64u(fixed(f"kid {label}", 9))


STATES = {"minting": "minting", "verifying": "verifying", "retired": "retired", "locked": "verifying"}
DATA_KEYS = {kid(label): fixed(f"data key {label}", 32) for label in STATES}


def sealed(label: str, payload: bytes, *, name: str = NAME, prefix: str = "one", nonce: str = "one") -> str:
    """A token under one of the data keys, its prefix and nonce fixed too."""
    head = token.header(kid(label), fixed(f"prefix {prefix}", 12))
    aead = token.xaes_key(DATA_KEYS.get(kid(label), fixed("strange data key", 32)), name).derive(
        fixed(f"prefix {prefix}", 12)
    )
    start = fixed(f"nonce {nonce}", 12)
    return token.encode(head, start + aead.encrypt(start, payload, head.encode()))


UNDER = [
    ("minting", NAME, "one"),
    ("verifying", NAME, "one"),
    ("minting", NAME, "two"),
    ("minting", "a", "one"),
    ("minting", "x" * 63, "one"),
    ("verifying", "fleet.2_b-c", "two"),
    ("minting", NAME, "one"),
]
"""Key, keyset name and prefix of each token."""


def tokens() -> dict[str, Any]:
    payloads = {
        "empty": b"",
        "one byte": b"\x00",
        "two bytes": b"\xff\xfe",
        "three bytes": b"abc",
        "claims as the SDK's boundary seals them": b'{"v":1,"iat":1796000000.5,"exp":1796000600.5,"m":"tools/call",'
        b'"t":"deploy","a":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a","s":"step=2"}',
        "every byte": bytes(range(256)),
        "4,096 bytes": fixed("payload", 4096),
    }
    made = [
        {
            "comment": comment,
            "keyset": name,
            "data_key": DATA_KEYS[kid(label)].hex(),
            "kid": kid(label),
            "prefix": fixed(f"prefix {prefix}", 12).hex(),
            "nonce": fixed(f"nonce {comment}", 12).hex(),
            "payload": payload.hex(),
            "token": sealed(label, payload, name=name, prefix=prefix, nonce=comment),
        }
        for (comment, payload), (label, name, prefix) in zip(
            payloads.items(),
            UNDER,
            strict=True,
        )
    ]
    return {"about": "mk1 tokens: docs/token-format.md. Bytes are hexadecimal.", "tokens": made}


def refusals() -> dict[str, Any]:
    good = sealed("minting", b"state")
    swapped = good[:4] + kid("verifying") + good[16:]
    cases: list[tuple[str, str, str]] = [
        ("empty", "", "malformed"),
        ("the version alone", "mk1.", "malformed"),
        ("a header without a body", good[:32], "malformed"),
        ("one character shorter than the shortest", sealed("minting", b"")[:-1], "malformed"),
        ("another version", "mk2." + good[4:], "malformed"),
        ("the version in capitals", "MK1." + good[4:], "malformed"),
        ("the SDK's own token", "v1." + good[4:], "malformed"),
        ("a space before it", " " + good, "malformed"),
        ("a line feed after it", good + "\n", "malformed"),
        ("a foreign character in the kid", good[:8] + "." + good[9:], "malformed"),
        ("a foreign character in the prefix", good[:20] + "+" + good[21:], "malformed"),
        ("a foreign character in the body", good[:40] + "*" + good[41:], "malformed"),
        ("not ASCII", good[:40] + "é" + good[41:], "malformed"),
        ("a digit that is not ASCII", good[:8] + "٣" + good[9:], "malformed"),
        ("half of a surrogate pair", good[:40] + "\ud800" + good[41:], "malformed"),
        ("padded", sealed("minting", b"stat") + "=", "malformed"),
        ("padded twice", sealed("minting", b"sta") + "==", "malformed"),
        ("the other alphabet", _standard(), "malformed"),
        ("bits beyond the last byte, two of them", _beyond(sealed("minting", b"stat")), "malformed"),
        ("bits beyond the last byte, four of them", _beyond(sealed("minting", b"sta")), "malformed"),
        ("a length that base64 does not have", _length_one(good), "malformed"),
        ("longer than the keyset allows", sealed("minting", fixed("long", token.max_payload(LIMIT) + 1)), "malformed"),
        ("longer than the keyset allows, and no token at all", "A" * (LIMIT + 1), "malformed"),
        ("longer than the keyset allows, of an unknown key", _lengthened(sealed("strange", b"x")), "malformed"),
        ("an unknown key", sealed("strange", b"state"), "unknown key"),
        ("an unknown key, its body no base64", sealed("strange", b"state")[:-1] + "*", "unknown key"),
        ("a key that this reader could not unwrap", sealed("locked", b"state"), "unknown key"),
        ("a retired key", sealed("retired", b"state"), "retired key"),
        ("a retired key, its body no base64", sealed("retired", b"state")[:-1] + "*", "retired key"),
        ("another tag", _flipped(good, len(good) - 4), "seal"),
        ("another ciphertext", _flipped(good, 50), "seal"),
        ("another nonce", _flipped(good, 33), "seal"),
        ("another prefix", _flipped(good, 20), "seal"),
        ("another key of the keyset", swapped, "seal"),
        ("of a keyset with another name", sealed("minting", b"state", name="fleet2"), "seal"),
        ("of a keyset without a name", sealed("minting", b"state", name=""), "seal"),
        ("cut short by three bytes", sealed("minting", b"stateful")[:-4], "seal"),
        ("lengthened by three bytes", sealed("minting", b"st") + "AAAA", "seal"),
        ("sealed without the header as associated data", _unbound(), "seal"),
        ("plain AES-256-GCM under the data key", _plain(), "seal"),
    ]
    return {
        "about": "Strings that are refused by a reader with this keyset and these keys, and the reason. A reader finds "
        "the reasons in this order: malformed (too long, too short, no header), unknown key, retired key, malformed "
        "(the body is not canonical unpadded base64url), seal. What is accepted shows that the keys are right.",
        "keyset": NAME,
        "max_token_chars": LIMIT,
        "keys": [
            {
                "kid": kid(label),
                "state": state,
                "data_key": None if label in ("retired", "locked") else DATA_KEYS[kid(label)].hex(),
            }
            for label, state in STATES.items()
        ],
        "accepted": [
            {"token": sealed(label, payload), "payload": payload.hex()}
            for label, payload in (
                ("minting", b"state"),
                ("verifying", b""),
                ("minting", fixed("long", token.max_payload(LIMIT))),
            )
        ],
        "refused": [{"comment": comment, "token": text, "reason": reason} for comment, text, reason in cases],
    }


def _flipped(text: str, at: int) -> str:
    alphabet = token.ALPHABET
    return text[:at] + alphabet[alphabet.index(text[at]) ^ 1] + text[at + 1 :]


def _beyond(text: str) -> str:
    """The same bytes to a lax decoder: the last character with a bit over."""
    assert (len(text) - 32) % 4 in (2, 3)
    return _flipped(text, len(text) - 1)


def _standard() -> str:
    """The right bytes in the standard alphabet: the first payload whose body needs another spelling there."""
    texts = (sealed("minting", b"state %d" % i) for i in range(100))
    text = next(text for text in texts if "-" in text[32:] and "_" in text[32:])
    return text[:32] + text[32:].replace("-", "+").replace("_", "/")


def _length_one(text: str) -> str:
    body = text[32:]
    return text + "A" * ((1 - len(body)) % 4)


def _lengthened(text: str) -> str:
    return text + "A" * (LIMIT + 1 - len(text))


def _unbound() -> str:
    head, nonce = token.header(kid("minting"), fixed("prefix one", 12)), fixed("nonce one", 12)
    aead = token.xaes_key(DATA_KEYS[kid("minting")], NAME).derive(fixed("prefix one", 12))
    return token.encode(head, nonce + aead.encrypt(nonce, b"state", b""))


def _plain() -> str:
    head, nonce = token.header(kid("minting"), fixed("prefix one", 12)), fixed("nonce one", 12)
    return token.encode(head, nonce + AESGCM(DATA_KEYS[kid("minting")]).encrypt(nonce, b"state", head.encode()))


def derivations() -> dict[str, Any]:
    names = ("", "a", NAME, "fleet.2_b-c", "x" * 63)
    secrets = [fixed("secret", 32), fixed("longer secret", 64), "a secret of more than 32 bytes, ünïcode"]
    return {
        "about": "HKDF-SHA256 (RFC 5869) without salt. xaes_key: of a data key, info `mcpkeys/mk1` 0x00 keyset name, "
        "32 bytes. from_secrets: of the SDK's raw secret, data key with info `mcpkeys/secret/key` (32 bytes), kid with "
        "info `mcpkeys/secret/kid` (9 bytes, base64url), keyset name empty.",
        "xaes_key": [
            {"data_key": key.hex(), "keyset": name, "xaes_key": token.xaes_key(key, name)._key.hex()}
            for name in names
            for key in (DATA_KEYS[kid("minting")],)
        ],
        "from_secrets": [
            {
                "secret": secret if isinstance(secret, str) else secret.hex(),
                "encoding": "utf-8" if isinstance(secret, str) else "hex",
                "data_key": key.hex(),
                "kid": name,
                "token": text,
                "payload": b"state".hex(),
            }
            for secret in secrets
            for name, key, text in [_from_secret(secret)]
        ],
    }


def _from_secret(secret: bytes | str) -> tuple[str, bytes, str]:
    ring = Ring.from_secrets([secret], now=0.0)
    (found,) = ring.keys
    prefix, nonce = fixed("prefix secret", 12), fixed("nonce secret", 12)
    minter = ring.minter(prefix)
    assert minter is not None
    text = token.encode(minter.header, nonce + minter.encrypt(nonce, b"state", minter.aad))
    return found, _secret_data_key(secret), text


def _secret_data_key(secret: bytes | str) -> bytes:
    """The data key that `Ring.from_secrets` derives, which it does not show."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), 32, salt=None, info=b"mcpkeys/secret/key").derive(sdktoken.secret_bytes([secret])[0])


def contexts() -> dict[str, Any]:
    made = []
    for purpose in PURPOSES:
        for name in ("a", "ab", "abc", NAME, "x" * 63):
            context = WrapContext(purpose, name, kid(f"context {purpose} {name}"))
            made.append(
                {
                    "purpose": purpose,
                    "keyset": name,
                    "kid": context.kid,
                    "aws_encryption_context": context.pairs(),
                    "associated_data": context.aad().hex(),
                    "vault_associated_data": base64.b64encode(context.aad()).decode(),
                    "vault_policy_glob": base64.b64encode(context.aad_front()).decode() + "*",
                }
            )
    return {"about": "What a wrapped key is bound to, as each KMS is told.", "contexts": made}


KEK = fixed("kek", 32)
SIGNER = Ed25519PrivateKey.from_private_bytes(fixed("signer", 32))
STRANGER = Ed25519PrivateKey.from_private_bytes(fixed("strange signer", 32))
REPORT_KEY = fixed("report key", 32)
URI = "local:///etc/mcpkeys/kek.key"


def _wrap(purpose: Any, name: str, key: bytes) -> tuple[Wrap, ...]:
    nonce = fixed(f"wrap nonce {purpose} {name}", 12)
    aad = WrapContext(purpose, NAME, name).aad()
    return (Wrap(URI, "", b"\x01" + nonce + AESGCM(KEK).encrypt(nonce, key, aad)),)


def keyset() -> Keyset:
    """A keyset in the second phase of a rotation, with every field in use."""
    instance = b64u(fixed("instance", 16))
    born = NOW - 86_400_000

    def key(label: str, state: Any, since: int) -> Key:
        return Key(kid(label), state, born, since, _wrap("seal", kid(label), DATA_KEYS[kid(label)]))

    public = "ed25519:" + b64u(SIGNER.public_key().public_bytes_raw())
    return document.sign(
        Keyset(
            name=NAME,
            audience="acme-orders — Bestellungen",
            ttl_seconds=600,
            skew_seconds=60,
            refresh_seconds=30,
            max_stale_seconds=900,
            max_token_chars=LIMIT,
            evidence="reports",
            generation=7,
            previous="sha256:" + fixed("previous", 32).hex(),
            keks=(URI,),
            sign_keks=(URI,),
            keys=(
                key("verifying", "verifying", NOW - 1000),
                key("minting", "minting", NOW - 1000),
                replace(key("retired", "retired", born), wrapped=()),
            ),
            report_key=ReportKey(kid("report"), _wrap("report", kid("report"), REPORT_KEY)),
            rotation=Rotation(
                kid("rotation"),
                2,
                None,
                kid("verifying"),
                kid("minting"),
                (instance,),
                1,
                (
                    RotationStep(1, NOW - 60_000, StepEvidence("none")),
                    RotationStep(2, NOW - 1000, StepEvidence("reports", confirmed=(instance,))),
                ),
            ),
            past_ttls=(PastTtl(1200, NOW + 5000),),
            history=(
                HistoryEntry(born, "ops@acme", "init", 1),
                HistoryEntry(NOW - 1000, "ops@acme \u2028 \x7f 😀", "rotate --phase 2", 7, 'because "why"\n', ("x",)),
            ),
            signer=Signer(public, kid("signer"), _wrap("sign", kid("signer"), SIGNER.private_bytes_raw())),
        ),
        SIGNER,
    )


def keysets() -> dict[str, Any]:
    good = keyset()
    value = to_json(good)

    def resigned(change: Callable[[dict[str, Any]], Any], by: Ed25519PrivateKey = SIGNER) -> str:
        changed = json.loads(json.dumps(value))
        change(changed)
        changed["signature"] = b64u(by.sign(signed_bytes(changed)))
        return json.dumps(changed, ensure_ascii=False)

    def edited(change: Callable[[dict[str, Any]], Any]) -> str:
        changed = json.loads(json.dumps(value))
        change(changed)
        return json.dumps(changed, ensure_ascii=False)

    text = dumps(good).decode()
    swap = lambda doc: doc["keys"][0].update(state="minting") or doc["keys"][1].update(state="verifying")  # noqa: E731
    by_stranger = "ed25519:" + b64u(STRANGER.public_key().public_bytes_raw())
    refused = [
        ("not JSON", "{", "keyset-malformed"),
        ("an array", "[]", "keyset-malformed"),
        ("another schema", resigned(lambda doc: doc.update(schema="mcpkeys.keyset/2")), "keyset-malformed"),
        ("a name twice", text.replace('"generation": 7', '"generation": 7, "generation": 7', 1), "keyset-malformed"),
        ("a number that is no integer", text.replace('"generation": 7', '"generation": 7.0', 1), "keyset-malformed"),
        (
            "an integer too large",
            text.replace('"generation": 7', '"generation": 9007199254740992', 1),
            "keyset-malformed",
        ),
        ("NaN", text.replace('"generation": 7', '"generation": NaN', 1), "keyset-malformed"),
        ("half of a surrogate pair", text.replace("acme-orders", "\\ud800", 1), "keyset-malformed"),
        ("the states of two keys exchanged", edited(swap), "keyset-forged"),
        ("another generation", text.replace('"generation": 7', '"generation": 8', 1), "keyset-forged"),
        ("a field added", edited(lambda doc: doc.update(extra=1)), "keyset-forged"),
        ("the signature of another document", edited(lambda doc: doc.update(signature="A" * 86)), "keyset-forged"),
        ("a stranger's signature", resigned(lambda doc: None, STRANGER), "keyset-forged"),
        (
            "a stranger that names itself",
            resigned(lambda doc: doc["signer"].update(public=by_stranger), STRANGER),
            "keyset-signer",
        ),
        ("two keys that mint", resigned(lambda doc: doc["keys"][0].update(state="minting")), "keyset-malformed"),
        ("no key that mints", resigned(lambda doc: doc["keys"][1].update(state="verifying")), "keyset-malformed"),
        ("a kid twice", resigned(lambda doc: doc["keys"][2].update(kid=doc["keys"][0]["kid"])), "keyset-malformed"),
        (
            "a live key without a wrapped form",
            resigned(lambda doc: doc["keys"][0].update(wrapped=[])),
            "keyset-malformed",
        ),
        ("an unknown field", resigned(lambda doc: doc.update(extra=1)), "keyset-malformed"),
        ("a field missing", resigned(lambda doc: doc.pop("audience")), "keyset-malformed"),
        ("a time without milliseconds", resigned(_coarse), "keyset-malformed"),
        ("true for a number", resigned(lambda doc: doc.update(skew_seconds=True)), "keyset-malformed"),
        ("no KEK", resigned(lambda doc: doc.update(keks=[])), "keyset-malformed"),
    ]
    return {
        "about": "Keyset documents: docs/keyset.md. `signed_bytes` is what the signature covers: `mcpkeys/keyset/1` "
        "0x00 and the RFC 8785 form without `signature`. Refused ones carry the error's code; readers pin `signer`.",
        "signer": good.signer.public,
        "signer_private": SIGNER.private_bytes(
            serialization.Encoding.Raw, serialization.PrivateFormat.Raw, serialization.NoEncryption()
        ).hex(),
        "document": text,
        "signed_bytes": signed_bytes(value).hex(),
        "signature": good.signature,
        "digest": digest(good),
        "refused": [{"comment": comment, "document": body, "code": code} for comment, body, code in refused],
    }


def _coarse(doc: dict[str, Any]) -> None:
    doc["keys"][0]["created_at"] = "2026-11-29T22:51:00Z"


def wraps() -> dict[str, Any]:
    good = keyset()
    named: list[tuple[Any, str, tuple[Wrap, ...], bytes]] = [
        ("seal", key.kid, key.wrapped, DATA_KEYS[key.kid]) for key in good.live
    ]
    named.append(("sign", good.signer.kid, good.signer.wrapped, SIGNER.private_bytes_raw()))
    named.append(("report", good.report_key.kid, good.report_key.wrapped, REPORT_KEY))
    return {
        "about": "Keys wrapped by a local KEK: 0x01, nonce (12 bytes), AES-256-GCM ciphertext and tag; associated data "
        "as in contexts.json. The blobs are those of keysets.json.",
        "kek": KEK.hex(),
        "wraps": [
            {"purpose": purpose, "keyset": NAME, "kid": name, "blob": b64u(wrapped[0].blob), "key": key.hex()}
            for purpose, name, wrapped, key in named
        ],
    }


def report() -> reports.Report:
    """A report with every field in use."""
    return reports.Report(
        keyset=NAME,
        instance=b64u(fixed("instance", 16)),
        label="pod-ü-7",
        pid=4711,
        state="serving",
        seq=42,
        generation=7,
        digest=digest(keyset()),
        verifies=(kid("verifying"), kid("minting")),
        mints=kid("minting"),
        minting_since=NOW - 900,
        last_mint={kid("minting"): NOW - 10},
        last_unseal={kid("minting"): NOW - 5, kid("verifying"): NOW - 700},
        prefixes=(b64u(fixed("prefix one", 12)),),
        ttl_observed=600_000,
        clock=NOW,
        clock_started=NOW - 12,
        canary={URI: reports.Canary(NOW - 3_600_000, True)},
        unwraps_by=(URI,),
        max_stale=900_000,
    )


def reported() -> dict[str, Any]:
    body = reports.encode(report(), REPORT_KEY).decode()
    value = reports.to_json(report())
    return {
        "about": "A report: HMAC-SHA256 under the report key over `mcpkeys/report/1` 0x00 and the RFC 8785 form "
        "without `mac`.",
        "report_key": REPORT_KEY.hex(),
        "keyset": NAME,
        "report": body,
        "mac": reports.mac(REPORT_KEY, value),
        "refused": [
            {"comment": "another sequence number", "report": body.replace('"seq": 42', '"seq": 43')},
            {"comment": "another instance", "report": body.replace(report().instance, b64u(fixed("other", 16)))},
            {"comment": "without a mac", "report": json.dumps(value)},
            {"comment": "under another key", "report": reports.encode(report(), fixed("strange", 32)).decode()},
            {
                "comment": "of another keyset",
                "report": reports.encode(replace(report(), keyset="b"), REPORT_KEY).decode(),
            },
        ],
    }


def bundled() -> dict[str, Any]:
    data_keys = {name: DATA_KEYS[name] for name in (kid("minting"), kid("verifying"))}
    calls = itertools.count()
    body = bundle.seal(
        keyset(),
        data_keys,
        [reports.ReceivedReport(report(), NOW / 1000)],
        PASSPHRASE,
        now=NOW / 1000,
        expires=86_400,
        urandom=lambda count: fixed(f"bundle {next(calls)}", count),
    ).decode()
    return {
        "about": "A bundle: the key is scrypt (RFC 7914) of the passphrase in NFC; AES-256-GCM with `mcpkeys/bundle/1` "
        "0x00 and the RFC 8785 form of the head, everything but `sealed`, as associated data.",
        "passphrase": PASSPHRASE,
        "bundle": body,
        "data_keys": {name: key.hex() for name, key in sorted(data_keys.items())},
        "expires_at_ms": NOW + 86_400_000,
        "refused": [
            {"comment": "the expiry moved", "bundle": _later(body)},
            {"comment": "a generation moved", "bundle": body.replace('"generation": 7', '"generation": 8', 1)},
        ],
    }


def _later(body: str) -> str:
    value = json.loads(body)
    value["expires_at"] = value["expires_at"].replace("2026", "2027")
    return json.dumps(value)


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "tokens.json": tokens,
    "refusals.json": refusals,
    "derivations.json": derivations,
    "contexts.json": contexts,
    "keysets.json": keysets,
    "local-wraps.json": wraps,
    "reports.json": reported,
    "bundle.json": bundled,
}


def rendered(name: str) -> str:
    """The text of one file."""
    return json.dumps(FILES[name](), indent=1) + "\n"


if __name__ == "__main__":
    for file in FILES:
        (HERE / file).write_text(rendered(file), encoding="ascii")
        print(f"{file}: {os.path.getsize(HERE / file):,} bytes")
