"""`mcpkeys rotate` as a tired operator meets it: waiting, losing races, outages, the dead, an emergency.

Time is the test's: sleeping moves it, and the fleet refreshes meanwhile, as far as the test lets it.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mcpkeys import reports
from mcpkeys.authoring import Author
from mcpkeys.errors import Conflict, StoreUnreachable
from mcpkeys.keks import Keks
from mcpkeys.keyset import digest
from mcpkeys.loading import Pins
from mcpkeys.registry import open_store
from mcpkeys.reports import Report


class World:
    """A keyset of `shell` and a fleet that exists as its reports alone."""

    def __init__(self, shell: Any, patch: pytest.MonkeyPatch) -> None:
        self.shell = shell
        self.offset = 0.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], None] = self.refresh
        self.alive: list[str] = []
        self.seq = 0
        self.since: dict[tuple[str, str], int] = {}
        shell.init("--ttl", "600s", "--skew", "60s", "--refresh", "30s")
        environ = shell.environ
        self.author = Author(
            open_store(environ["MCPKEYS_KEYSET"]),
            Keks.open((environ["MCPKEYS_KEKS"],)),
            Pins("fleet", (environ["MCPKEYS_SIGNERS"],)),
        )
        patch.setattr(Author, "now", lambda author: (self.now(), 0.01))
        patch.setattr("mcpkeys.stepping.SystemClock", lambda: SimpleNamespace(time=self.now))
        patch.setattr("mcpkeys_cli.patience.time", SimpleNamespace(monotonic=self.now, sleep=self.sleep, time=self.now))

    def now(self) -> float:
        return time.time() + self.offset

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.offset += seconds
        self.meanwhile()

    def refresh(self, *only: str, state: reports.ReportState = "serving") -> None:
        """Every living instance (or `only` these) reads the keyset and reports."""
        keyset = self.author.read().keyset
        key = self.author.report_key(keyset)
        folder = Path(f"{self.shell.keyset}.reports")
        for instance in only or self.alive:
            self.seq += 1
            report = Report(
                keyset="fleet",
                instance=instance,
                label=f"pod-{instance[:4]}",
                pid=1,
                state=state,
                seq=self.seq,
                generation=keyset.generation,
                digest=digest(keyset),
                verifies=tuple(key.kid for key in keyset.live),
                mints=keyset.minting.kid,
                minting_since=self.since.setdefault((instance, keyset.minting.kid), int(self.now() * 1000)),
                clock=int(self.now() * 1000),
                clock_started=int(self.now() * 1000),
            )
            self.author.store.put_report(instance, reports.encode(report, key), deadline=time.monotonic() + 5)
            os.utime(folder / f"{instance}.json", (self.now(), self.now()))

    def rotate(self, *arguments: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.shell.json("rotate", *arguments, "--yes")
        return answer


def instance(number: int, first: str = "A") -> str:
    """22 characters of base64url, as 16 bytes make them."""
    return f"{first}{number:020d}A"


@pytest.fixture
def world(shell: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(shell, monkeypatch)


def test_three_commands_wait_through_a_whole_rotation(world: World) -> None:
    world.alive = [instance(1), instance(2)]
    world.refresh()
    for phase in ("1", "2", "3"):
        answer = world.rotate("--phase", phase, "--wait", "30m")
        assert (answer["exit"], answer["written"], answer["rolled_out"]) == (0, True, True), answer
    assert sum(world.slept) >= 90 + 660, "a phase lasts 3 refreshes, OLD's tokens a ttl and skew"
    assert world.shell.json("status")["rotation"]["ended"] == "done"


def test_a_wait_outlasts_who_lags_and_ends_with_6(world: World) -> None:
    world.alive = [instance(1), instance(2)]
    world.refresh()
    world.rotate("--phase", "1")
    lagging = reports_of(world, instance(2))

    def one_refreshes() -> None:
        world.refresh(instance(1))
        rewrite(world, instance(2), lagging)

    world.meanwhile = one_refreshes
    world.sleep(200)
    at_once = world.rotate("--phase", "2")
    assert (at_once["exit"], at_once["code"], at_once["written"]) == (5, "gate-lagging", False)
    assert [entry["instance"] for entry in at_once["blocking"]] == [instance(2)]
    waited = world.rotate("--phase", "2", "--wait", "5m")
    assert (waited["exit"], waited["code"], waited["verdict"]) == (6, "gate-lagging", "not_yet")
    assert waited["error"]["why"].startswith("pod-A000"), "who is in the way"
    world.meanwhile = world.refresh
    assert world.rotate("--phase", "2", "--wait", "5m")["exit"] == 0, "the same command, once it has caught up"


def test_a_wait_does_not_wait_for_the_dead(world: World) -> None:
    world.alive = [instance(1), instance(2)]
    world.refresh()
    world.rotate("--phase", "1")
    world.alive = [instance(1)]
    world.sleep(200)
    world.slept.clear()
    answer = world.rotate("--phase", "2", "--wait", "2h")
    assert (answer["exit"], answer["code"], world.slept) == (5, "gate-silent", [])
    assert answer["next"] == f"mcpkeys rotate --phase 2 --allow-missing={instance(2)}"


def test_a_roll_out_is_not_followed_for_ever_where_all_that_is_missing_is_silent(world: World) -> None:
    world.alive = [instance(1), instance(2)]
    world.refresh()
    world.alive = [instance(1)]
    world.sleep(200)
    world.slept.clear()
    answer = world.rotate("--phase", "1", "--wait", "2h")
    assert (answer["exit"], answer["error"]["code"], answer["rolled_out"]) == (6, "roll-out", False)
    assert answer["behind"] == [instance(2)]
    assert sum(world.slept) < 200


def test_a_hundred_dead_are_grouped_and_released_by_the_command_that_status_names(world: World) -> None:
    dead = [instance(number, first="-A_0"[number % 4]) for number in range(100)]
    world.alive = [*dead, instance(200), instance(201)]
    world.refresh()
    world.rotate("--phase", "1")
    world.alive = [instance(200), instance(201)]
    world.sleep(300)
    shown = world.shell.run("status").out
    assert "100 alike" in shown
    assert len(shown.split("next:")[0].splitlines()) < 30, "a person sees it at a glance"
    following = world.shell.json("status")["next"]
    words = shlex.split(following)
    assert sorted(word.partition("=")[2] for word in words if word.startswith("--allow-missing=")) == sorted(dead)
    answer = world.shell.json(*words[1:], "--wait", "5m", "--yes")
    assert (answer["exit"], answer["written"], answer["rolled_out"]) == (0, True, True), answer
    history = world.author.read().keyset.history[-1]
    assert sorted(history.overrides) == sorted(f"--allow-missing {name}" for name in dead), "on record"


def test_cron_that_loses_a_race_sees_what_is_due_then(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.alive = [instance(1)]
    world.refresh()
    write, raced = Author.write, []

    def other_first(author: Author, *arguments: Any) -> Any:
        if not raced:
            raced.append(True)
            monkeypatch.setattr(Author, "write", write)
            assert world.rotate("--auto", "--once", "--max-age", "0s")["written"]
        return write(author, *arguments)

    monkeypatch.setattr(Author, "write", other_first)
    answer = world.rotate("--auto", "--once", "--max-age", "0s")
    assert raced
    assert (answer["exit"], answer["step"], answer["written"]) == (6, 2, False), "phase 1 is the other's; 2 is early"
    assert world.author.read().keyset.generation == 2, "one step, once"


def test_a_named_phase_that_loses_a_race_to_another_step_says_who_won(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.alive = [instance(1)]
    world.refresh()
    write = Author.write

    def other_first(author: Author, *arguments: Any) -> Any:
        monkeypatch.setattr(Author, "write", write)
        assert world.shell.json("set", "--refresh", "20s", "--yes")["ok"]
        return write(author, *arguments)

    monkeypatch.setattr(Author, "write", other_first)
    answer = world.rotate("--phase", "1")
    assert (answer["exit"], answer["error"]["code"]) == (5, "conflict")
    assert "generation 2" in answer["error"]["why"]


def test_a_burn_that_loses_a_race_burns_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.alive = [instance(1)]
    world.refresh()
    kid = world.author.read().keyset.minting.kid
    write = Author.write

    def other_first(author: Author, *arguments: Any) -> Any:
        monkeypatch.setattr(Author, "write", write)
        assert world.rotate("--phase", "1")["written"]
        raise Conflict("another writer was faster")

    monkeypatch.setattr(Author, "write", other_first)
    answer = world.rotate("--emergency", "--kid", kid, "--reason", "leaked")
    assert (answer["exit"], answer["written"], answer["generation"]) == (0, True, 3), answer
    assert kid in world.author.read().keyset.retired


def test_a_wait_outlives_an_outage_and_one_that_does_not_wait_says_4(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.alive = [instance(1)]
    world.refresh()
    world.rotate("--phase", "1")
    world.sleep(120)
    read, down = Author.read, [True]

    def reading(author: Author) -> Any:
        if down:
            raise StoreUnreachable("the store does not answer")
        return read(author)

    def back_after_a_while() -> None:
        if sum(world.slept) > 180:
            down.clear()
            world.refresh()

    monkeypatch.setattr(Author, "read", reading)
    world.meanwhile = back_after_a_while
    assert world.rotate("--phase", "2")["exit"] == 4
    assert world.rotate("--phase", "2", "--wait", "10s")["exit"] == 4
    answer = world.rotate("--phase", "2", "--wait", "10m")
    assert (answer["exit"], answer["written"]) == (0, True), answer


def test_nobody_waits_half_an_hour_for_a_question_that_cannot_be_asked(world: World) -> None:
    world.alive = [instance(1)]
    world.refresh()
    world.rotate("--phase", "1")
    world.slept.clear()
    answer = world.shell.json("rotate", "--phase", "2", "--wait", "30m")
    assert (answer["exit"], answer["error"]["code"], world.slept) == (2, "confirmation-needed", [])


def test_an_emergency_is_not_out_until_everyone_confirms_or_is_named(world: World) -> None:
    world.alive = [instance(1), instance(2, first="-")]
    world.refresh()
    kid = world.author.read().keyset.minting.kid
    world.meanwhile = lambda: world.refresh(instance(1))
    burn = ("--emergency", "--kid", kid, "--reason", "in a core dump")
    answer = world.rotate(*burn)
    assert (answer["exit"], answer["error"]["code"], answer["written"]) == (6, "roll-out", True)
    assert answer["still_accepting"] == [instance(2, first="-")]
    assert answer["min_generation"] == 2
    assert answer["exposure_seconds"] is None, "cut off from the store, for ever"
    assert answer["revoke"], "which KEK's rights"
    shown = world.shell.run("rotate", *burn, "--yes").out
    for told in ("NOT OUT", "MCPKEYS_MIN_GENERATION=2", "revoke in the KMS", world.shell.environ["MCPKEYS_KEKS"]):
        assert told in shown
    behind = world.shell.json("status")["behind"]
    assert [entry["instance"] for entry in behind] == [instance(2, first="-")]
    released = world.shell.json(*shlex.split(answer["next"])[1:])
    assert (released["exit"], released["still_accepting"]) == (0, []), released
    world.meanwhile = world.refresh
    assert world.rotate(*burn, "--wait", "2m")["exit"] == 0, "or it confirms"


@pytest.mark.parametrize("age", [60, 2 * 3600])
def test_an_emergency_tells_who_had_said_farewell_before_it_made_that_unreadable(world: World, age: int) -> None:
    world.alive = [instance(1)]
    world.refresh()
    world.refresh(instance(2), state="farewell")
    world.offset += age
    world.refresh()
    kid = world.author.read().keyset.minting.kid
    world.meanwhile = world.refresh
    ran = world.shell.run("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes", "--output", "json")
    answer = ran.json
    if age > 3600:
        assert (answer["exit"], answer["withdrawn"]) == (0, []), "dropped with the old report key"
        return
    assert (answer["exit"], answer["withdrawn"], answer["behind"]) == (6, [instance(2)], [instance(2)])
    assert sum(world.slept) < 10, "nobody waits for who left"
    assert f"--allow-missing={instance(2)}" in answer["next"]
    assert world.shell.json(*shlex.split(answer["next"])[1:])["exit"] == 0


def test_the_text_of_an_emergency_says_so_too(world: World) -> None:
    world.refresh(instance(2), state="farewell")
    kid = world.author.read().keyset.minting.kid
    shown = world.shell.run("rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes").out
    assert f"pod-{instance(2)[:4]} had said farewell" in shown
    for told in ("--allow-missing", "mcpkeys purge --silent-for"):
        assert told in shown


def test_the_next_command_carries_the_pins_that_were_given_as_options(world: World) -> None:
    environ = {name: "" for name in world.shell.environ if name.startswith("MCPKEYS_")}
    pins = world.shell.environ
    given = ("--name", "fleet", "--keyset", pins["MCPKEYS_KEYSET"], "--kek", pins["MCPKEYS_KEKS"])
    given += ("--signer", pins["MCPKEYS_SIGNERS"])
    status = world.shell.json("status", *given, env=environ)
    assert shlex.split(status["next"]) == ["mcpkeys", "rotate", "--phase", "1", *given]
    assert world.shell.json(*shlex.split(status["next"])[1:], "--yes", env=environ)["written"]


def reports_of(world: World, name: str) -> bytes:
    return Path(f"{world.shell.keyset}.reports/{name}.json").read_bytes()


def rewrite(world: World, name: str, body: bytes) -> None:
    """The instance reports again and still holds what it held; its clock goes on."""
    keyset = world.author.read().keyset
    key = world.author.report_key(keyset)
    report = reports.decode(body, [key], keyset="fleet")
    at = int(world.now() * 1000)
    from dataclasses import replace

    fresh = replace(report, clock=at, clock_started=at, seq=report.seq + len(world.slept))
    path = Path(f"{world.shell.keyset}.reports/{name}.json")
    path.write_bytes(reports.encode(fresh, key))
    os.utime(path, (world.now(), world.now()))
