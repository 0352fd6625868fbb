"""Two KEKs on two clouds: either one stopped, a new instance starts; both stopped, it says why in time."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from servers.moto import Moto
from servers.openbao import Bao
from servers.operated import command, instance, refresh

from mcpkeys.errors import KmsUnreachable
from mcpkeys_local.kekfile import create_kek


class Black:
    """A port that accepts and never answers: a cloud that hangs, which is worse than one that refuses."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._socket.getsockname()[1])
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        try:
            while True:
                self._held.append(self._socket.accept()[0])
        except OSError:
            return

    def close(self) -> None:
        # A blocked accept() does not end by close() alone.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for held in self._held:
            held.close()


@pytest.fixture
def black() -> Iterator[Black]:
    hole = Black()
    yield hole
    hole.close()


@contextmanager
def down(monkeypatch: pytest.MonkeyPatch, *clouds: str, port: int) -> Iterator[None]:
    """These clouds lead to `port` for a while."""
    with monkeypatch.context() as patch:
        for cloud in clouds:
            patch.setenv({"aws": "AWS_ENDPOINT_URL", "vault": "VAULT_ADDR"}[cloud], f"http://127.0.0.1:{port}")
        yield


@pytest.fixture
def fleet(aws: Moto, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """A keyset under a KEK in each cloud; its settings, AWS first."""
    keks = aws.create_key(), f"hashivault://{bao.transit_key()}"
    given = [word for kek in keks for word in ("--kek", kek)]
    answer = command("init", "fleet", "--keyset", str(tmp_path / "fleet.json"), *given)
    assert answer["ok"], answer
    for name, value in answer["settings"].items():
        monkeypatch.setenv(name, value)
    return dict(answer["settings"])


def keks_of(fleet: dict[str, str]) -> tuple[str, str]:
    first, second = fleet["MCPKEYS_KEKS"].split(",")
    return first, second


@pytest.mark.parametrize("stopped", ["aws", "vault"])
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_either_one_stopped_a_new_instance_starts_and_running_ones_go_on(
    fleet: dict[str, str], monkeypatch: pytest.MonkeyPatch, black: Black, stopped: str, how: str
) -> None:
    with instance(fleet, "running") as running:
        token = running.seal(b"round")
        with down(monkeypatch, stopped, port=1 if how == "refuses" else black.port):
            started = time.monotonic()
            with instance(fleet, "new") as new:
                # The next KEK is asked after 500 ms, or at once where the first refuses.
                assert time.monotonic() - started < 8
                assert new.unseal(token) == b"round"
                assert running.unseal(new.seal(b"other")) == b"other"
                refresh(running)
                report = command("status") if stopped == "aws" and how == "refuses" else None
                assert report is None or report["exit"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_both_stopped_a_new_instance_fails_in_ten_seconds_naming_each_and_running_ones_go_on(
    fleet: dict[str, str], monkeypatch: pytest.MonkeyPatch, black: Black, how: str
) -> None:
    with instance(fleet, "running") as running:
        token = running.seal(b"round")
        with down(monkeypatch, "aws", "vault", port=1 if how == "refuses" else black.port):
            started = time.monotonic()
            with pytest.raises(KmsUnreachable) as failed, instance(fleet, "new"):
                pass
            assert time.monotonic() - started < 10
            for kek in keks_of(fleet):
                assert kek in str(failed.value)
            refresh(running)
            payload = os.urandom(64)
            assert running.unseal(running.seal(payload)) == payload
            assert running.unseal(token) == b"round"
        refresh(running, canaries=True)


def test_the_one_that_is_down_is_named_by_doctor_and_skipped_in_an_emergency(
    fleet: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, vault_kek = keks_of(fleet)
    with instance(fleet, "running") as running:
        kid = running.ring.keyset.minting.kid
        with down(monkeypatch, "vault", port=1):
            answer = command("doctor", "--as-server")
            assert answer["exit"] == 4
            assert {finding["subject"] for finding in answer["findings"] if finding["level"] == "refused"} >= {
                vault_kek
            }
            burn = ("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--wait", "0s", "--yes")
            assert command(*burn)["exit"] == 4, "all or nothing"
            assert command(*burn, "--skip-kek", vault_kek)["written"]
            refresh(running)
            payload = os.urandom(64)
            assert running.unseal(running.seal(payload)) == payload
            later = command("rewrap", "--yes")
            assert later["exit"] == 4
            assert f"--skip-kek {vault_kek}" in later["next"]
        assert any("rewrap" in warning for warning in command("status")["warnings"])
        assert command("rewrap", "--yes")["written"]
        assert command("status")["warnings"] == []
    with down(monkeypatch, "aws", port=1), instance({**fleet, "MCPKEYS_KEKS": vault_kek}, "by the other one"):
        pass


def test_a_running_instance_proves_an_added_kek_by_its_canary(
    aws: Moto, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The KEK is pinned before it is added, so no restart is needed: the next canary is the proof."""
    create_kek(tmp_path / "kek.key")
    first, second = f"local://{tmp_path}/kek.key", f"hashivault://{bao.transit_key()}"
    settings = command("init", "fleet", "--keyset", str(tmp_path / "f.json"), "--kek", first)["settings"]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MCPKEYS_KEKS", f"{first},{second}")
    with instance({**settings, "MCPKEYS_KEKS": f"{first},{second}"}) as one:
        assert command("rewrap", "--add-kek", second, "--yes")["written"]
        assert command("rewrap", "--remove-kek", first, "--yes")["exit"] == 5
        refresh(one, canaries=True)
        answer: dict[str, Any] = command("rewrap", "--remove-kek", first, "--yes")
        assert answer["exit"] == 0, answer
