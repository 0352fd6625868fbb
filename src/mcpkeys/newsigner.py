"""Replacing the signer, in two stages: prepare (nothing changes), then switch, once every server pins both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from mcpkeys import signerfile
from mcpkeys.authoring import Author
from mcpkeys.encoding import to_ms
from mcpkeys.errors import SettingError
from mcpkeys.keyset import Keyset, Signer
from mcpkeys.revising import Fleet, Revised, Revision, done, named, revise, succeed, unsafe
from mcpkeys.stepping import Observed


def prepare(author: Author) -> tuple[Signer, bytes]:
    """A new signer and the file that holds it. Writes nothing. Raises what the sign KEKs answer."""
    keyset = author.read().keyset
    by = author.signer(keyset)
    signer, _ = author.new_signer(keyset.name, keyset.sign_keks)
    now, _ = author.now()
    return signer, signerfile.dumps(keyset, signer, by, at=to_ms(now))


def switch(
    author: Author,
    body: bytes,
    *,
    attest: str,
    reason: str,
    who: str,
    agreed: Callable[[Revision, Observed], None] = lambda revision, observed: None,
    dry: bool = False,
) -> tuple[Revised, bytes | None]:
    """Let the prepared signer sign from now on; also the file that leads back to the former one, once written.

    Raises as `revise`, and `SettingError` for a file that is not of this keyset, or a signer that is not pinned here.
    """

    def decide(observed: Observed) -> Revision:
        return _decide(observed, author.pins.signers, body, attest=attest, reason=reason, who=who)

    former: list[Keyset] = []

    def private(keyset: Keyset) -> Ed25519PrivateKey:
        former.append(keyset)
        return author.signer(replace(keyset, signer=signerfile.loads(body, keyset)))

    revised = revise(author, decide, agreed=agreed, private=private, dry=dry)
    if revised.written is None:
        return revised, None
    by = author.signer(revised.written)
    return revised, signerfile.dumps(revised.written, former[0].signer, by, at=to_ms(revised.observed.now))


def _decide(observed: Observed, pins: tuple[str, ...], body: bytes, *, attest: str, reason: str, who: str) -> Revision:
    keyset = observed.stored.keyset
    if signerfile.public_in(body) == keyset.signer.public:
        return done(
            f"nothing to do: {keyset.signer.public} signs already",
            "take the former signer out of MCPKEYS_SIGNERS once every instance holds this generation",
        )
    signer = signerfile.loads(body, keyset)
    if signer.public not in pins:
        raise SettingError(
            f"the new signer {signer.public} is not pinned here",
            why="this command, like every server, would refuse the very document it writes",
            next=f"MCPKEYS_SIGNERS={keyset.signer.public},{signer.public} here and at every server, then again",
            code="signer-unpinned",
        )
    fleet = Fleet.of(observed)
    if not attest.strip() and (keyset.evidence == "attest" or not fleet.empty):
        return unsafe(
            "set-signer-pins",
            f"nobody can see from here what {named(fleet.live) or 'servers'} pin: one that does not pin the new signer "
            "keeps its last ring and learns nothing any more",
            'restart every server with both signers pinned, then say so: --attest "deploy 4711 pins both"',
        )
    what = f"set: signer {keyset.signer.public} -> {signer.public}"
    overrides = [f"--attest {attest}"] if attest.strip() else []
    document = succeed(keyset, observed.now, what, who=who, reason=reason, overrides=overrides, signer=signer)
    effects = (
        "an instance that pins only the former signer keeps its last ring, logs it, and does not start again",
        "the former signer can sign nothing any more that a server accepts, once it is out of MCPKEYS_SIGNERS",
    )
    then = (
        "mcpkeys status --watch until every instance holds this generation; then take the former signer out of "
        "MCPKEYS_SIGNERS everywhere"
    )
    return Revision("do", what, then, document, "do", effects)
