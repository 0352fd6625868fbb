"""A bundle: a keyset and some of its data keys in one file, for inspection on a machine without a network.

    key = scrypt(passphrase, salt, n, r=8, p=1, 32 bytes)            RFC 7914
    sealed = AES-256-GCM(key, nonce, content, associated data = `mcpkeys/bundle/1` 0x00 + RFC 8785 form of the head)

The head is readable and authenticated: what the bundle is of, and until when it may be used. Whoever holds a bundle
and its passphrase can open the service's tokens, and mint them: unless asked otherwise it leaves out the key that mints
now, and what it holds should soon be of no use. The expiry binds honest readers; nothing can bind a holder for ever.
"""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from mcpkeys import document, reports, strictjson
from mcpkeys import keyset as keysets
from mcpkeys.encoding import b64u, format_ms, parse_ms, to_ms, unb64u
from mcpkeys.errors import ConfigurationError
from mcpkeys.keyset import KID, Keyset
from mcpkeys.reports import ReceivedReport
from mcpkeys.ring import Ring
from mcpkeys.sdktoken import SdkRing

SCHEMA: Final = "mcpkeys.bundle/1"
LABEL: Final = b"mcpkeys/bundle/1\x00"
SCRYPT_N: Final = 1 << 17
SCRYPT_READABLE: Final = (1 << 15, 1 << 16, 1 << 17)
"""128 bytes * r * n: 32, 64 or 128 MiB. A file that asks for more work than that is refused before any is done."""

MIN_PASSPHRASE_CHARS: Final = 12
MAX_PASSPHRASE_CHARS: Final = 1024
MAX_EXPIRES_SECONDS: Final = 7 * 86_400
MAX_BYTES: Final = 24 << 20
MAX_REPORTS: Final = 1000
_NEXT_MAKE: Final = "make a new one where the KEK may be used: mcpkeys bundle --out FILE --expires 24h"


class BundleError(ConfigurationError):
    """A bundle that cannot be used: damaged, expired, a wrong passphrase."""

    code = "bundle-invalid"


@dataclass(frozen=True, slots=True)
class Bundle:
    """An opened bundle. Holds keys: its `repr` shows none.

    Attributes:
        keyset: the verified document.
        data_keys: kid -> 32 bytes.
        reports: of the fleet, as they were when the bundle was made; authentic as far as the bundle is.
        created_at, expires_at: milliseconds.
    """

    keyset: Keyset
    data_keys: Mapping[str, bytes]
    reports: tuple[ReceivedReport, ...]
    created_at: int
    expires_at: int

    def ring(self, sdk: SdkRing | None = None) -> Ring:
        """A ring for `inspect_token`; keys that the bundle leaves out are not unwrapped in it."""
        return Ring.from_keyset(self.keyset, self.data_keys, sdk=sdk)

    def __repr__(self) -> str:
        return f"Bundle(keyset={self.keyset.name!r}, generation={self.keyset.generation}, kids={[*self.data_keys]})"

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("keys are never pickled or copied")


def selected(keyset: Keyset, *, include_minting: bool) -> tuple[str, ...]:
    """The kids that a bundle holds: verifying and retired while their wraps are kept, the minting one on request."""
    return tuple(key.kid for key in keyset.keys if key.wrapped and (include_minting or key.state != "minting"))


def seal(
    keyset: Keyset,
    data_keys: Mapping[str, bytes],
    received: Sequence[ReceivedReport],
    passphrase: str,
    *,
    now: float,
    expires: float,
    urandom: Callable[[int], bytes] = os.urandom,
) -> bytes:
    """The bytes of a new bundle.

    Args:
        data_keys: kid -> 32 bytes.
        received: at most 1,000 of them are taken along, the newest first.
        passphrase: 12 to 1,024 characters.
        now, expires: seconds since the epoch, and seconds from then, at most 7 days.

    Raises:
        BundleError: the passphrase or the expiry is out of bounds.
    """
    if not 0 < expires <= MAX_EXPIRES_SECONDS:
        raise BundleError(
            "a bundle expires within 7 days",
            why="what it holds can open and forge tokens",
            next="--expires 24h; make another one when it is over",
            code="bundle-expiry",
        )
    _check_passphrase(passphrase)
    newest = sorted(received, key=lambda entry: -entry.modified_at)[:MAX_REPORTS]
    content = {
        "keyset": keysets.to_json(keyset),
        "keys": {kid: b64u(key) for kid, key in data_keys.items()},
        "reports": [
            {"report": reports.to_json(entry.report), "modified_at": int(entry.modified_at * 1000)} for entry in newest
        ],
    }
    salt, nonce = urandom(16), urandom(12)
    head: dict[str, Any] = {
        "schema": SCHEMA,
        "keyset": keyset.name,
        "generation": keyset.generation,
        "kids": sorted(data_keys),
        "created_at": format_ms(to_ms(now)),
        "expires_at": format_ms(to_ms(now + expires)),
        "scrypt": {"n": SCRYPT_N, "r": 8, "p": 1, "salt": b64u(salt)},
        "nonce": b64u(nonce),
    }
    aead = AESGCM(_derive(passphrase, salt, SCRYPT_N))
    sealed = aead.encrypt(nonce, json.dumps(content).encode(), LABEL + strictjson.canonical(head))
    return json.dumps({**head, "sealed": b64u(sealed)}, indent=2).encode() + b"\n"


def open_bundle(body: bytes, passphrase: str, *, now: float, signers: Collection[str] = ()) -> Bundle:
    """The bundle that these bytes hold.

    Args:
        body: at most 24 MiB.
        now: seconds since the epoch.
        signers: pinned signers of the keyset inside; empty pins none.

    Raises:
        BundleError: `bundle-malformed`, `bundle-expired`, or `bundle-passphrase` (wrong passphrase, or changed file:
            the two cannot be told apart).
        KeysetError: the document inside is not the pinned one.
    """
    head, sealed = _head(body)
    expires_at, created_at = parse_ms(head["expires_at"]), parse_ms(head["created_at"])
    scrypt = head["scrypt"]
    aead = AESGCM(_derive(passphrase, unb64u(scrypt["salt"]), scrypt["n"]))
    try:
        content = aead.decrypt(unb64u(head["nonce"]), sealed, LABEL + strictjson.canonical(head))
    except InvalidTag:
        raise BundleError(
            "the bundle does not open",
            why="the passphrase is wrong, or the file was changed: the two cannot be told apart",
            next=f"try the passphrase again, or {_NEXT_MAKE}",
            code="bundle-passphrase",
        ) from None
    # Only now is the expiry known to be the one that was sealed.
    if to_ms(now) >= expires_at:
        raise BundleError(
            f"the bundle expired at {head['expires_at']}",
            why="a bundle can forge tokens, so it is made for a day, not for ever",
            next=_NEXT_MAKE,
            code="bundle-expired",
        )
    try:
        value = strictjson.loads(content, max_bytes=MAX_BYTES)
        keyset = document.read(json.dumps(value["keyset"], ensure_ascii=False).encode(), signers=signers)
        data_keys = {kid: unb64u(text) for kid, text in value["keys"].items()}
        received = tuple(_report(entry, keyset.name) for entry in value["reports"])
        if any(len(key) != 32 for key in data_keys.values()):
            raise ValueError
    except (strictjson.NotStrict, KeyError, TypeError, ValueError, AttributeError):
        raise _malformed("it opens, but does not hold a keyset and its keys") from None
    return Bundle(keyset, data_keys, received, created_at, expires_at)


def _report(entry: Any, keyset: str) -> ReceivedReport:
    return ReceivedReport(reports.from_json(entry["report"], keyset=keyset), entry["modified_at"] / 1000)


def _head(body: bytes) -> tuple[dict[str, Any], bytes]:
    """The head as it was authenticated, and what is sealed. Every cap is checked here, before any work."""
    try:
        head = strictjson.loads(body, max_bytes=MAX_BYTES)
        sealed = unb64u(head.pop("sealed"))
        if head["schema"] != SCHEMA:
            raise ValueError("another kind of file, or made by a newer mcpkeys")
        names = {"schema", "keyset", "generation", "kids", "created_at", "expires_at", "scrypt", "nonce"}
        if set(head) != names or set(head["scrypt"]) != {"n", "r", "p", "salt"}:
            raise ValueError("a field too many or too few")
        scrypt = head["scrypt"]
        if scrypt["n"] not in SCRYPT_READABLE or scrypt["r"] != 8 or scrypt["p"] != 1:
            raise ValueError("scrypt parameters that mcpkeys never writes")
        if len(unb64u(scrypt["salt"])) != 16 or len(unb64u(head["nonce"])) != 12 or len(sealed) < 16:
            raise ValueError("salt, nonce or sealed content of another length")
        parse_ms(head["created_at"]), parse_ms(head["expires_at"])
        if not all(KID.fullmatch(kid) for kid in head["kids"]):
            raise ValueError("a kid of another shape")
    except (strictjson.NotStrict, ValueError) as exc:
        raise _malformed(str(exc)) from None
    except (KeyError, TypeError, AttributeError):
        raise _malformed("a field is missing or of another type") from None
    return head, sealed


def _malformed(why: str) -> BundleError:
    return BundleError("this is not a bundle", why=why, next=_NEXT_MAKE, code="bundle-malformed")


def _check_passphrase(passphrase: str) -> None:
    if not MIN_PASSPHRASE_CHARS <= len(passphrase) <= MAX_PASSPHRASE_CHARS:
        raise BundleError(
            f"a passphrase has {MIN_PASSPHRASE_CHARS} to {MAX_PASSPHRASE_CHARS:,} characters",
            why=f"this one has {len(passphrase):,}; whoever guesses it can open and forge tokens",
            next="five random words, or: openssl rand -base64 18",
            code="bundle-passphrase",
        )


def _derive(passphrase: str, salt: bytes, n: int) -> bytes:
    """32 bytes. The passphrase in Unicode normalization form C: the same word typed on another system is the same."""
    text = unicodedata.normalize("NFC", passphrase[:MAX_PASSPHRASE_CHARS]).encode("utf-8", "surrogatepass")
    return Scrypt(salt=salt, length=32, n=n, r=8, p=1).derive(text)
