"""An independent reader of keyset documents, written from docs/keyset.md: which ones a server may use, and which not.

The token's reader (reader.py) checks the signature; this one everything that an authentic document can still do wrong.
"""

import json
import re

from interop import reader

KID = re.compile(r"[A-Za-z0-9_-]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
URI = re.compile(r"[a-z]+://.+")
B64U = re.compile(r"[A-Za-z0-9_-]*")
WRAPPED = [{"kek": URI, "version": str, "blob": B64U}]
EVIDENCE = {"kind": {"reports", "attest", "none"}, "confirmed": [str], "missing": [str], "proven_gone": [str]}
STEP = {"phase": {1, 2, 3}, "entered_at": TIME, "evidence": {**EVIDENCE, "word": str}}
STATES = {"minting", "verifying", "retired"}
ROTATION = {
    "id": KID,
    "phase": {1, 2, 3, "rolling_back"},
    "ended": {None, "done", "rolled_back", "emergency"},
    "from": KID,
    "to": KID,
    "roster": [B64U],
    "expect": (None, int),
    "steps": [STEP],
}
ENTRY = {"at": TIME, "who": str, "what": str, "generation": int, "reason": str, "overrides": [str]}
KEYSET = {
    "schema": {"mcpkeys.keyset/1"},
    "name": re.compile(r"[a-z0-9][a-z0-9._-]{0,62}"),
    "audience": str,
    "generation": int,
    "previous": (None, re.compile(r"sha256:[0-9a-f]{64}")),
    "ttl_seconds": int,
    "skew_seconds": int,
    "refresh_seconds": int,
    "max_stale_seconds": (None, int),
    "max_token_chars": int,
    "evidence": {"reports", "attest"},
    "keks": [URI],
    "sign_keks": [URI],
    "keys": [{"kid": KID, "state": STATES, "created_at": TIME, "state_since": TIME, "wrapped": WRAPPED}],
    "report_key": {"kid": KID, "wrapped": WRAPPED},
    "rotation": (None, ROTATION),
    "past_ttls": [{"ttl_seconds": int, "until": TIME}],
    "history": [ENTRY],
    "signer": {"public": re.compile(r"ed25519:[A-Za-z0-9_-]{43}"), "kid": KID, "wrapped": WRAPPED},
    "signature": re.compile(r"[A-Za-z0-9_-]{86}"),
}


def fits(value, shape):
    """Whether a JSON value has a shape: a type, a pattern, a set of values, alternatives, a list's item, an object."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and value.keys() == shape.keys() and all(fits(value[k], shape[k]) for k in shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return any(value is None if one is None else fits(value, one) for one in shape)
    if isinstance(shape, set):
        return not isinstance(value, (bool, list, dict)) and value in shape
    if isinstance(shape, re.Pattern):
        return isinstance(value, str) and shape.fullmatch(value) is not None
    return type(value) is shape


def once(pairs):
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


def small(digits):
    if abs(int(digits)) >= 1 << 53:
        raise ValueError("an integer beyond 2^53 - 1")
    return int(digits)


def refuse(text):
    raise ValueError(f"no integer: {text}")


def usable(text, signer):
    """Whether a server that pins this signer may use the document."""
    try:
        text.encode()
        document = json.loads(text, object_pairs_hook=once, parse_int=small, parse_float=refuse, parse_constant=refuse)
        if not fits(document, KEYSET) or not reader.verify_keyset(text, signer):
            return False
    except ValueError:
        return False
    states = [key["state"] for key in document["keys"]]
    kids = [one["kid"] for one in (*document["keys"], document["report_key"], document["signer"])]
    wrapped = all(key["wrapped"] for key in document["keys"] if key["state"] != "retired")
    return states.count("minting") == 1 and len(set(kids)) == len(kids) and wrapped and 1 <= len(document["keks"]) <= 8
