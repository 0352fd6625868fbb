"""With one AWS KEK, or a derived key of Vault's, the operator's machine never holds a data key: proven on the wire."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable

from cli.conftest import Shell
from endtoend.wire import BaoWire, Call, aws_calls, counted
from servers.aws_faults import FaultyProxy
from servers.moto import Moto
from servers.openbao import Bao

from mcpkeys import document
from mcpkeys.keks import Job, Keks, Unwrapped
from mcpkeys.kms import WrapContext
from mcpkeys.testing.leaks import leaked


def data_keys(shell: Shell) -> list[bytes]:
    """What every live key of the keyset really is, as the KMS tells a server."""
    keyset = document.read(shell.keyset.read_bytes())
    jobs = [Job(WrapContext("seal", keyset.name, key.kid), key.wrapped) for key in keyset.live]
    answers = Keks.open(keyset.keks).unwrap(jobs).values()
    keys = [answer.key for answer in answers if isinstance(answer, Unwrapped)]
    assert len(keys) == len(jobs)
    return keys


def shown(calls: Iterable[Call], keys: list[bytes]) -> bool:
    """Whether a data key passed, in either direction."""
    text = "".join(call.sent.decode("latin-1") + call.got.decode("latin-1") for call in calls)
    return any(base64.b64encode(key).decode() in text for key in keys) or leaked(text, keys)


def life(shell: Shell, kek: str, seen: Callable[[], list[Call]], forget: Callable[[], object]) -> dict[str, list[Call]]:
    """init, rotate --phase 1, rewrap and an emergency, each with its KMS calls."""
    passed: dict[str, list[Call]] = {}

    def run(name: str, *arguments: str) -> None:
        forget()
        answer = shell.json(*arguments)
        assert answer["exit"] == 0, answer
        passed[name] = seen()
        shell.environ |= answer.get("settings", {})

    run("init", "init", "fleet", "--keyset", str(shell.keyset), "--kek", kek, "--refresh", "1")
    run("rotate", "rotate", "--phase", "1", "--expect", "0", "--yes")
    run("rewrap", "rewrap", "--renew", "--yes")
    kid = document.read(shell.keyset.read_bytes()).minting.kid
    run("emergency", "rotate", "--emergency", "--kid", kid, "--reason", "leaked", "--yes", "--expect", "0")
    return passed


def test_aws_sends_and_returns_no_data_key(shell: Shell, aws: Moto, faulty: FaultyProxy) -> None:
    passed = life(shell, aws.create_key(), lambda: aws_calls(faulty), faulty.seen.clear)
    everything = [call for calls in passed.values() for call in calls]
    assert {call.action for call in everything if call.purpose == "seal"} == {
        "GenerateDataKeyWithoutPlaintext",
        "ReEncrypt",
    }
    assert {call.purpose for call in everything if call.action in ("Decrypt", "Encrypt")} == {"sign", "report"}
    assert not [call for call in everything if call.action in ("GenerateDataKey", "GenerateRandom")]
    assert counted(passed["init"]) == {
        ("GenerateDataKeyWithoutPlaintext", "seal"): 1,
        ("Encrypt", "sign"): 1,
        ("Decrypt", "sign"): 1,
        ("Encrypt", "report"): 1,
        ("Decrypt", "report"): 1,
    }
    assert counted(passed["rotate"]) == {
        ("GenerateDataKeyWithoutPlaintext", "seal"): 1,
        ("Decrypt", "report"): 2,
        ("Decrypt", "sign"): 1,
    }
    faulty.seen.clear()
    keys = data_keys(shell)
    assert shown(aws_calls(faulty), keys), "the search finds a key where one passes"
    assert not shown(everything, keys)


def test_vaults_derived_key_sends_and_returns_no_data_key(shell: Shell, bao: Bao, at_bao: BaoWire) -> None:
    kek = f"hashivault://{bao.transit_key(derived=True)}"

    def forget() -> None:
        at_bao.calls = []

    def seen() -> list[Call]:
        return list(at_bao.calls)

    rotated: list[str] = []

    def forget_and_rotate() -> None:
        if len(rotated) == 2:  # before rewrap: there is a newer version to wrap under
            bao.api("POST", f"transit/keys/{kek.removeprefix('hashivault://')}/rotate", {})
        rotated.append("")
        forget()

    passed = life(shell, kek, seen, forget_and_rotate)
    everything = [call for calls in passed.values() for call in calls]
    assert {call.action for call in everything if call.purpose == "seal"} == {"datakey/wrapped", "rewrap"}
    assert {call.purpose for call in everything if call.action in ("decrypt", "encrypt")} == {"sign", "report"}
    assert counted(passed["rewrap"])["rewrap", "seal"] == 2
    forget()
    keys = data_keys(shell)
    assert shown(at_bao.calls, keys), "the search finds a key where one passes"
    assert not shown(everything, keys)


def test_a_plain_transit_key_needs_the_operator_to_see_it(shell: Shell, bao: Bao, at_bao: BaoWire) -> None:
    """The contrast: no Vault call carries associated data and hides the key, so the search must find it here."""
    kek = f"hashivault://{bao.transit_key()}"
    answer = shell.json("init", "fleet", "--keyset", str(shell.keyset), "--kek", kek)
    assert answer["exit"] == 0, answer
    assert ("encrypt", "seal") in counted(at_bao.calls)
    assert shown(at_bao.calls, data_keys(shell))
