"""No key is shown: not by repr, logs, pickles or copies, nor by an error report that prints each frame's locals."""

from __future__ import annotations

import copy
import faulthandler
import io
import logging
import os
import pickle
import tempfile
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from mcp.server.request_state import InvalidRequestState
from servers.fakefleet import Fleet, refresh

from mcpkeys import EnvelopeCodec
from mcpkeys.authoring import Author
from mcpkeys.errors import McpkeysError
from mcpkeys.keks import Keks, Unwrapped
from mcpkeys.loading import Pins
from mcpkeys.refresh import Moment
from mcpkeys.testing import FakeClock, FakeKek
from mcpkeys.testing.leaks import Listener, leaked, shown


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    clock = FakeClock()
    made = Fleet(clock=clock, keks=[FakeKek(f"fake:///kek-{n}", clock=clock) for n in (1, 2)])
    made.create()
    yield made
    made.close()


def secrets_of(fleet: Fleet) -> list[bytes]:
    return [*fleet.keys.values(), fleet.private.private_bytes_raw()]


def author(fleet: Fleet) -> Author:
    pins = Pins(fleet.name, (fleet.keyset.signer.public,))
    return Author(
        fleet.place.open(), Keks([kek.open() for kek in fleet.keks], clock=fleet.clock), pins, clock=fleet.clock
    )


def test_a_codec_and_all_that_hangs_on_it_show_none(fleet: Fleet) -> None:
    codec = fleet.open()
    seen = []
    queue = [codec, codec.ring, codec.refresher, codec.refresher.loader, codec.refresher.loader.keks]
    queue += [*codec.ring.keys.values(), codec._minter, *codec.ring.openers.values()]
    for thing in queue:
        seen += [repr(thing), str(thing)]
    seen.append(repr(codec.status()))
    assert not leaked(" ".join(seen), secrets_of(fleet))


@pytest.mark.parametrize("copying", [pickle.dumps, copy.copy, copy.deepcopy])
def test_keys_are_never_pickled_or_copied(fleet: Fleet, copying) -> None:
    codec = fleet.open()
    plain = EnvelopeCodec.from_secrets([b"a secret of at least thirty-two bytes"])
    loader = codec.refresher.loader
    things = [codec, codec.ring, codec.ring.keys[codec.ring.minting], plain, plain.ring, loader, *loader._held.values()]
    for thing in [*things, codec._minter, Unwrapped(loader.report_key, "fake:///kek-1")]:
        with pytest.raises(TypeError):
            copying(thing)


def test_a_token_that_is_refused_shows_neither_key_nor_state(fleet: Fleet) -> None:
    codec = fleet.open()
    token = codec.seal(b"a state that nobody else may read")
    for damaged in (token[:-1] + ("A" if token[-1] != "A" else "B"), token[:40], "mk1." + "A" * 90):
        with pytest.raises(InvalidRequestState) as raised:
            codec.unseal(damaged)
        report = shown(raised.value, skip=(__file__,))
        assert not leaked(report, secrets_of(fleet))
        assert "nobody else may read" not in report


FAULTS = {
    "outage": lambda kek: setattr(kek.faults, "outage", True),
    "denied": lambda kek: setattr(kek.faults, "denied", True),
    "disabled": lambda kek: setattr(kek, "enabled", False),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("which", [0, 1, "both"])
def test_a_failing_kek_shows_none_of_the_keys_that_another_opened(fleet: Fleet, fault: str, which: object) -> None:
    fleet.learn(keks=[fleet.keks[0]] if which == 0 else None)
    for number, kek in enumerate(fleet.keks):
        if which in (number, "both"):
            FAULTS[fault](kek)
    with Listener() as heard:
        try:
            codec = fleet.open()
        except McpkeysError as error:
            assert not leaked(shown(error, skip=(__file__,)), secrets_of(fleet))  # noqa: PT017
        else:
            for switch in fleet.keks:
                switch.faults.outage = True
            fleet.learn()
            refresh(codec)
            error = codec.refresher.last_error
            assert error is not None
            assert not leaked(shown(error, skip=(__file__,)), secrets_of(fleet))
    assert not leaked(heard.text, secrets_of(fleet))


@pytest.mark.parametrize("operation", ["put_report", "read"])
def test_a_store_that_fails_while_keys_are_held_shows_none(fleet: Fleet, operation: str) -> None:
    codec = fleet.open()

    def broken(*args, **kwargs):
        raise ZeroDivisionError(args, kwargs)

    setattr(codec.refresher.loader.store, operation, broken)
    with Listener() as heard:
        refresh(codec)
        refresh(codec)
        try:
            codec.refresher._put("serving", codec.ring, "fleet", Moment(0.0, 0.0), 1)
        except ZeroDivisionError as error:
            assert not leaked(shown(error, skip=(__file__,)), secrets_of(fleet))  # noqa: PT017
            logging.getLogger("x").exception("as an application would")
    assert not leaked(heard.text, secrets_of(fleet))


@pytest.mark.parametrize("step", ["report key", "signer", "data key", "create", "write"])
def test_an_operator_s_failing_step_shows_none(fleet: Fleet, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The KMS breaks at each call in turn; what was unwrapped or drawn before is in no frame that the error crosses."""
    drawn: list[bytes] = []
    generate, urandom = Ed25519PrivateKey.generate, os.urandom

    def signer() -> Ed25519PrivateKey:
        private = generate()
        drawn.append(private.private_bytes_raw())
        return private

    def drawing(size: int) -> bytes:
        value = urandom(size)
        if size == 32:
            drawn.append(value)
        return value

    monkeypatch.setattr(Ed25519PrivateKey, "generate", signer)
    failed = 0
    for call in range(12):
        at = author(fleet)
        at._urandom = drawing
        kek = fleet.keks[-1]
        calls, enter = [], type(kek.open())._enter

        def counted(self, operation, deadline, *, writes=False, calls=calls, call=call, enter=enter):
            calls.append(operation)
            if len(calls) > call:
                raise McpkeysError("broken in the middle")
            return enter(self, operation, deadline, writes=writes)

        monkeypatch.setattr(type(kek.open()), "_enter", counted)
        try:
            if step == "report key":
                at.report_key(fleet.keyset)
            elif step == "signer":
                monkeypatch.setattr(at, "_opened", lambda uris: [kek.open() for kek in fleet.keks])
                at.signer(fleet.keyset)
            elif step == "data key":
                at.data_key("fleet", fleet.keyset.keks, now_ms=1)
            elif step == "create":
                monkeypatch.setattr(at, "_opened", lambda uris: [kek.open() for kek in fleet.keks])
                at.create("fleet", audience="a", sign_keks=fleet.keyset.sign_keks, now_ms=1)
            else:
                fleet.place.faults.outage = True
                at.write(fleet.keyset, "1", fleet.private)
        except McpkeysError as error:
            failed += 1
            report = shown(error, skip=(__file__,))
            assert not leaked(report, [*secrets_of(fleet), *drawn])
        finally:
            monkeypatch.setattr(type(kek.open()), "_enter", enter)
    assert failed


def test_a_dump_of_all_threads_shows_none(fleet: Fleet) -> None:
    codec = fleet.open()
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        assert not leaked(file.read().decode("latin-1"), secrets_of(fleet))
    assert codec.ready()


def test_the_leak_finder_finds(fleet: Fleet) -> None:
    out = io.StringIO()
    print(next(iter(fleet.keys.values())), file=out)
    assert leaked(out.getvalue(), secrets_of(fleet))
