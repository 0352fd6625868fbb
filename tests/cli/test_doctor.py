"""`mcpkeys doctor` on local files, and its rules on fakes: what is tried, what is found, what the exit code says."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from servers.operated import instance, refresh

from mcpkeys import document
from mcpkeys.diagnosis import Diagnosis
from mcpkeys.kekcheck import check_kek
from mcpkeys.kms import Wrap
from mcpkeys.storecheck import check_store
from mcpkeys.testing.fakekms import FakeKek, FakeKms
from mcpkeys.testing.fakestore import FakeStore


def codes(answer: dict[str, Any]) -> list[str]:
    return sorted(finding["code"] for finding in answer["findings"])


def passed(answer: dict[str, Any]) -> set[str]:
    return {check["check"] for check in answer["checks"] if check["result"] == "pass"}


def test_all_well_as_operator(shell):
    shell.init()
    before = shell.keyset.read_bytes()
    answer = shell.json("doctor")
    assert (answer["exit"], answer["findings"]) == (0, [])
    assert {"state", "wrap", "unwrap", "context", "read", "keyset", "reports", "sign", "versions"} <= passed(answer)
    clock = next(check for check in answer["checks"] if check["check"] == "clock")
    assert (clock["result"], clock["detail"]) == ("skipped", "not checked: the store's clock is this machine's")
    assert shell.keyset.read_bytes() == before


def test_all_well_as_server_but_for_the_signer_that_a_local_file_cannot_guard(shell):
    shell.init()
    answer = shell.json("doctor", "--as-server")
    assert (answer["exit"], codes(answer)) == (0, ["signer-open"])
    assert {"open the seal key", "open the report key", "context", "report"} <= passed(answer)
    assert not list(Path(f"{shell.keyset}.reports").glob("*.json")), "the throwaway report is gone"


def test_a_signer_out_of_a_servers_reach_is_no_finding(shell, tmp_path):
    sign = tmp_path / "sign.key"
    shell.init("--sign-kek", f"local://{sign}")
    os.rename(sign, tmp_path / "operators-only")
    answer = shell.json("doctor", "--as-server")
    assert (answer["exit"], answer["findings"]) == (0, [])
    operator = shell.json("doctor")
    assert operator["exit"] == 2
    assert "sign.key" in operator["error"]["why"]


@pytest.mark.parametrize(
    ("damage", "code", "exit_code"),
    [
        ("kek gone", "kek-unusable", 2),
        ("kek exposed", "kek-unusable", 2),
        ("kek replaced", "unwrap-refused", 2),
        ("keyset gone", "keyset-not-found", 2),
        ("keyset forged", "keyset-forged", 2),
        ("other signer", "keyset-signer", 2),
        ("other name", "keyset-name", 2),
        ("below min generation", "keyset-rollback", 2),
        ("unknown scheme", "scheme-unknown", 2),
        ("setting missing", "setting-missing", 2),
    ],
)
@pytest.mark.parametrize("role", [(), ("--as-server",)])
def test_each_trouble_is_named_and_has_a_next_step(shell, tmp_path, damage, code, exit_code, role):
    shell.init()
    if damage == "kek gone":
        shell.kek.unlink()
    elif damage == "kek exposed":
        shell.kek.chmod(0o644)
    elif damage == "kek replaced":
        shell.kek.write_bytes(os.urandom(32))
    elif damage == "keyset gone":
        shell.keyset.unlink()
    elif damage == "keyset forged":
        shell.keyset.write_text(shell.keyset.read_text().replace("600", "601"))
    elif damage == "other signer":
        shell.environ["MCPKEYS_SIGNERS"] = "ed25519:" + "A" * 43
    elif damage == "other name":
        shell.environ["MCPKEYS_NAME"] = "other"
    elif damage == "below min generation":
        shell.environ["MCPKEYS_MIN_GENERATION"] = "7"
    elif damage == "unknown scheme":
        shell.environ["MCPKEYS_KEKS"] += ",nowhere:///key"
    else:
        del shell.environ["MCPKEYS_SIGNERS"]
    answer = shell.json("doctor", *role)
    assert (answer["exit"], code in codes(answer)) == (exit_code, True), codes(answer)
    for finding in answer["findings"]:
        assert finding["what"], finding
        assert finding["next"], finding


def test_a_kek_that_is_pinned_in_vain_and_one_that_is_not_pinned(shell, tmp_path):
    from mcpkeys_local.kekfile import create_kek

    create_kek(tmp_path / "second.key")
    create_kek(tmp_path / "third.key")
    shell.init("--kek", f"local://{tmp_path}/second.key")
    shell.environ["MCPKEYS_KEKS"] = f"local://{shell.kek},local://{tmp_path}/third.key"
    answer = shell.json("doctor")
    assert codes(answer) == ["kek-unpinned", "kek-unused"]
    assert answer["exit"] == 0


def test_what_the_fleet_says_of_its_keks_is_told(shell, tmp_path):
    from mcpkeys_local.kekfile import create_kek

    create_kek(tmp_path / "second.key")
    shell.init("--kek", f"local://{tmp_path}/second.key")
    with instance(shell.environ, keks=[f"local://{shell.kek}"]) as one:
        assert codes(shell.json("doctor")) == ["kek-unproven"]
        os.rename(shell.kek, tmp_path / "away")
        refresh(one, canaries=True)
        os.rename(tmp_path / "away", shell.kek)
        assert "wrap-health" in codes(shell.json("doctor"))


def test_a_folder_in_which_anybody_may_replace_files_is_warned_of(shell, tmp_path):
    shell.init()
    tmp_path.chmod(0o777)
    answer = shell.json("doctor")
    assert (answer["exit"], codes(answer)) == (0, ["hazard", "hazard"])
    assert str(tmp_path) in answer["findings"][0]["what"]
    tmp_path.chmod(0o1777)
    assert shell.json("doctor")["findings"] == []


def test_text_ends_with_the_next_step(shell):
    shell.init()
    assert shell.run("doctor").out.rstrip().splitlines()[-1] == "next: mcpkeys status"
    shell.kek.unlink()
    ran = shell.run("doctor")
    assert ran.code == 2
    assert "next:" in ran.err.rstrip().splitlines()[-1]


# --- the rules, on fakes ------------------------------------------------------------------------------------------


def seen_by(kek: FakeKek, role: str = "operator", **faults: Any) -> Diagnosis:
    seen, kms = Diagnosis(role), kek.open()  # type: ignore[arg-type]
    for name, value in faults.items():
        setattr(kms.faults, name, value)
    check_kek(seen, kms, None, "fleet")
    return seen


def test_exit_codes_tell_an_outage_and_a_denial_apart():
    assert seen_by(FakeKek()).exit_code == 0
    assert seen_by(FakeKek(), outage=True).exit_code == 4
    # Who may do nothing may not even see the state: a warning; that it cannot wrap is what counts.
    assert seen_by(FakeKek(), denied=True).exit_code == 7
    disabled = FakeKek()
    disabled.enabled = False
    assert seen_by(disabled).exit_code == 2


def test_a_kms_that_ignores_the_context_is_found_out():
    class Loose(FakeKek):
        def seal(self, key, context):
            wrap = super().seal(key, type(context)("seal", "any", "AAAAAAAAAAAA"))
            return Wrap(self.uri, wrap.version, wrap.blob)

        def unseal(self, blob, context):
            return super().unseal(blob, type(context)("seal", "any", "AAAAAAAAAAAA"))

    seen = seen_by(Loose())
    assert [finding.code for finding in seen.findings] == ["context-not-bound"]
    assert "kid, keyset, purpose" in seen.findings[0].what


def test_a_server_that_may_wrap_is_warned_of():
    assert [f.code for f in seen_by(FakeKek(), "server").findings] == ["server-may-wrap"]
    assert seen_by(FakeKek(), "server", read_only=True).findings == []


def test_a_plugin_that_breaks_is_a_finding_and_leaks_nothing():
    class Broken(FakeKms):
        def describe(self, *, deadline):
            raise RuntimeError("hunter2")

    seen = Diagnosis("operator")
    check_kek(seen, Broken(), None, "fleet")
    assert [finding.code for finding in seen.findings] == ["plugin-broken"]
    assert "hunter2" not in str(seen)


@pytest.mark.parametrize(("off", "found"), [(0, False), (40, True), (-40, True), (10, False)])
def test_a_clock_that_differs_is_named_with_its_direction(off, found, monkeypatch):
    store = FakeStore()
    monkeypatch.setattr(store, "now", lambda *, deadline: (time.time() - off, 1.0))
    seen = Diagnosis("operator")
    check_store(seen, store, None, None)
    assert [finding.code for finding in seen.findings] == (["clock-skew"] if found else [])
    if found:
        assert ("ahead" if off > 0 else "behind") in seen.findings[0].what


def test_a_clock_is_checked_only_against_another_one(monkeypatch):
    store = FakeStore()
    for own, result in ((True, "pass"), (False, "skipped")):
        monkeypatch.setattr(store, "own_clock", own, raising=False)
        seen = Diagnosis("operator")
        check_store(seen, store, None, None)
        assert [check.result for check in seen.checks if check.check == "clock"] == [result]


def test_a_server_that_may_not_report_is_refused(shell):
    shell.init()
    keyset = document.read(shell.keyset.read_bytes())
    store, key = FakeStore(), os.urandom(32)
    seen = Diagnosis("server")
    check_store(seen, store, keyset, key)
    assert seen.exit_code == 0
    assert store.place.stored_reports == {}
    store.faults.read_only = True
    check_store(seen, store, keyset, key)
    assert seen.exit_code == 7


def test_a_hook_of_a_plugin_is_used_where_there_is_one():
    class Knowing(FakeKms):
        def credentials(self, *, deadline):
            return "found by a friend"

        def excess_rights(self, role, *, deadline):
            return ["delete on everything"]

    seen = Diagnosis("operator")
    check_kek(seen, Knowing(), None, "fleet")
    assert ("credentials", "found by a friend") in {(check.check, check.detail) for check in seen.checks}
    assert [(f.code, f.level) for f in seen.findings] == [("rights-unneeded", "warned")]
