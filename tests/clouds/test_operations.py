"""The operator's commands against real servers: rewrap, doctor and policy on OpenBao and AWS (moto)."""

from __future__ import annotations

import secrets
import time
from pathlib import Path
from typing import Any

import pytest
from servers.moto import Moto
from servers.openbao import Bao
from servers.operated import command, instance, refresh

from mcpkeys import document
from mcpkeys.keyset import Keyset


def init(env: pytest.MonkeyPatch, keyset: str, *keks: str, options: tuple[str, ...] = ()) -> dict[str, str]:
    given = [word for kek in keks for word in ("--kek", kek)]
    answer = command("init", "fleet", "--keyset", keyset, *given, *options)
    assert answer["ok"], answer
    for name, value in answer["settings"].items():
        env.setenv(name, value)
    return dict(answer["settings"])


def stored(path: Path) -> Keyset:
    return document.read(path.read_bytes())


def versions(keyset: Keyset) -> set[str]:
    items = (*keyset.live, keyset.report_key, keyset.signer)
    return {wrap.version for item in items for wrap in item.wrapped}


def codes(answer: dict[str, Any]) -> list[str]:
    return sorted(finding["code"] for finding in answer["findings"])


def test_a_rotated_transit_key_is_rewrapped_and_its_old_version_may_go(bao: Bao, monkeypatch, tmp_path) -> None:
    for derived in (False, True):
        path = tmp_path / f"fleet-{derived}.json"
        key = bao.transit_key(derived=derived)
        settings = init(monkeypatch, str(path), f"hashivault://{key}")
        with instance(settings) as one:
            token = one.seal(b"round")
            assert command("rewrap", "--yes")["verdict"] == "done"
            bao.api("POST", f"transit/keys/{key}/rotate", {})
            assert codes(command("doctor")) == ["rewrap-due", "rights-unneeded"]
            answer = command("rewrap", "--yes")
            assert (answer["exit"], answer["written"]) == (0, True), answer
            assert {row["action"] for row in answer["wraps"]} == {"renew"}
            assert versions(stored(path)) == {"2"}
            assert command("rewrap", "--yes")["verdict"] == "done", "repeating is a no-op"
            bao.api("POST", f"transit/keys/{key}/config", {"min_decryption_version": 2})
            refresh(one, canaries=True)
            assert one.unseal(token) == b"round"
            assert command("status")["warnings"] == []
        with instance(settings, "started later") as two:
            assert two.unseal(token) == b"round"


def test_a_version_that_is_gone_is_told_with_the_way_out(bao: Bao, monkeypatch, tmp_path) -> None:
    key = bao.transit_key()
    init(monkeypatch, str(tmp_path / "fleet.json"), f"hashivault://{key}")
    bao.api("POST", f"transit/keys/{key}/rotate", {})
    bao.api("POST", f"transit/keys/{key}/config", {"min_decryption_version": 2})
    answer = command("doctor")
    assert answer["exit"] == 2
    assert any("rewrap" in finding["next"] for finding in answer["findings"])


def test_a_fleet_moves_from_aws_to_vault_and_no_token_is_touched(aws: Moto, bao: Bao, monkeypatch, tmp_path) -> None:
    path = tmp_path / "fleet.json"
    old, new = aws.create_key(), f"hashivault://{bao.transit_key()}"
    settings = init(monkeypatch, str(path), old)
    with instance(settings, "a") as a:
        token = a.seal(b"minted under AWS")
        assert command("rewrap", "--add-kek", new, "--yes")["exit"] == 0
        refresh(a)
        both = {**settings, "MCPKEYS_KEKS": f"{new},{old}"}
        monkeypatch.setenv("MCPKEYS_KEKS", both["MCPKEYS_KEKS"])
        assert command("rewrap", "--remove-kek", old, "--yes")["exit"] == 5
    with instance(both, "a, restarted") as a:
        removed = command("rewrap", "--remove-kek", old, "--yes")
        assert removed["exit"] == 0, removed
        refresh(a)
        for name in aws.environ:
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("MCPKEYS_KEKS", new)
        assert command("rotate", "--phase", "1", "--yes")["written"]
        refresh(a)
        with instance({**settings, "MCPKEYS_KEKS": new}, "new") as b:
            assert b.unseal(token) == b"minted under AWS"
            assert b.unseal(a.seal(b"x")) == b"x"


def test_renewing_under_one_aws_key_shows_no_data_key(aws: Moto, monkeypatch, tmp_path) -> None:
    """AWS shows no versions: nothing is due by itself, and --renew re-encrypts inside AWS."""
    path = tmp_path / "fleet.json"
    settings = init(monkeypatch, str(path), aws.create_key())
    calls: list[str] = []
    from mcpkeys_aws import calls as aws_calls

    start = aws_calls.AwsCalls.start

    def recording(self, action, work, deadline):
        calls.append(action)
        return start(self, action, work, deadline)

    monkeypatch.setattr(aws_calls.AwsCalls, "start", recording)
    nothing = command("rewrap", "--yes")
    assert (nothing["verdict"], "--renew" in nothing["why"]) == ("done", True)
    calls.clear()
    before = stored(path)
    assert command("rewrap", "--renew", "--yes")["written"]
    assert calls.count("kms:ReEncrypt") == 3
    # Reports twice (two looks) and the signer once: never a data key.
    assert calls.count("kms:Decrypt") == 3
    after = stored(path)
    assert before.minting.wrapped[0].blob != after.minting.wrapped[0].blob
    with instance(settings):
        pass


def test_doctor_as_a_server_under_the_printed_policy_finds_nothing(bao: Bao, monkeypatch) -> None:
    path = f"acme/{secrets.token_hex(5)}/fleet"
    kek, keyset = f"hashivault://{bao.transit_key()}", f"vaultkv://secret/{path}"
    init(monkeypatch, keyset, kek)
    root = codes(command("doctor", "--as-server"))
    assert root == ["rights-unneeded", "rights-unneeded", "server-may-wrap", "signer-open"]
    assert command("doctor", "--as-server")["exit"] == 2, "a server that opens the signer is refused"
    for role, options in (("server", ("--as-server",)), ("operator", ())):
        policy = command("policy", "vault", "--role", role)["policy"]
        monkeypatch.setenv("VAULT_TOKEN", bao.token_for(policy))
        answer = command("doctor", *options)
        assert (answer["exit"], answer["findings"]) == (0, []), role
        sources = [check["detail"] for check in answer["checks"] if check["check"] == "credentials"]
        assert sources
        assert all("token at http://127.0.0.1" in source for source in sources)
        assert not any(bao.token in source for source in sources)
    monkeypatch.setenv("VAULT_TOKEN", bao.token_for(command("policy", "vault", "--role", "inspector")["policy"]))
    assert command("doctor", "--as-server")["exit"] == 7, "who may not report is no server"


def test_doctor_tells_a_bad_token_and_an_absent_server_apart(bao: Bao, monkeypatch, tmp_path) -> None:
    init(monkeypatch, str(tmp_path / "fleet.json"), f"hashivault://{bao.transit_key()}")
    monkeypatch.setenv("VAULT_TOKEN", "s.nothing")
    assert command("doctor")["exit"] == 7
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    started = time.monotonic()
    answer = command("doctor")
    assert answer["exit"] == 4
    assert time.monotonic() - started < 30


def test_doctor_on_aws_finds_credentials_and_proves_compare_and_swap(aws: Moto, monkeypatch) -> None:
    bucket = aws.create_bucket(f"b{secrets.token_hex(6)}")
    init(monkeypatch, f"s3://{bucket}/fleet.json", aws.create_key())
    answer = command("doctor")
    assert (answer["exit"], answer["findings"]) == (0, [])
    details = {check["check"]: check["detail"] for check in answer["checks"] if check["result"] == "pass"}
    assert "found by env" in details["credentials"]
    assert "compare-and-swap" in details
    # moto asks for no permission: a server that can open the signer is found out.
    assert codes(command("doctor", "--as-server")) == ["server-may-wrap", "signer-open"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    assert command("doctor")["exit"] == 7


def test_an_alias_in_the_servers_settings_is_refused_by_doctor(aws: Moto, monkeypatch, tmp_path) -> None:
    key = aws.create_key()
    settings = init(monkeypatch, str(tmp_path / "fleet.json"), key)
    aws.client("kms").create_alias(AliasName="alias/fleet", TargetKeyId=key.removeprefix("awskms:///"))
    monkeypatch.setenv("MCPKEYS_KEKS", "awskms:///alias/fleet?region=eu-central-1")
    answer = command("doctor", "--as-server")
    assert (answer["exit"], codes(answer)) == (2, ["setting-invalid"])
    assert "MCPKEYS_KEKS" in answer["findings"][0]["what"]
    # Commands resolve an alias that is to be added, and pin the key it names now.
    monkeypatch.setenv("MCPKEYS_KEKS", settings["MCPKEYS_KEKS"])
    second = aws.create_key()
    aws.client("kms").create_alias(AliasName="alias/second", TargetKeyId=second.removeprefix("awskms:///"))
    answer = command("rewrap", "--add-kek", "awskms:///alias/second?region=eu-central-1", "--yes")
    assert answer["keks"] == [key, second]
