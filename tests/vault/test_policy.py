"""The printed policies, enforced by a real OpenBao: what each role can do and, above all, cannot."""

from __future__ import annotations

import base64
import os
import secrets
import time
from dataclasses import replace

import pytest
from servers.openbao import Bao

from mcpkeys.errors import KmsDenied, StoreDenied, UriError
from mcpkeys.kms import WrapContext
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.policy import vault_policy
from mcpkeys_vault.rights import excess_rights
from mcpkeys_vault.store import VaultKvStore

KID = "AbCdEfGhIjKl"


def soon() -> float:
    return time.monotonic() + 10


class World:
    """One Transit key and one keyset, both filled in as root; `role()` continues under a printed policy."""

    def __init__(self, bao: Bao, env: pytest.MonkeyPatch, *, derived: bool, namespace: str = "") -> None:
        self.bao, self.env = bao, env
        key = bao.transit_key(derived=derived, namespace=namespace)
        suffix = f"?namespace={namespace}" if namespace else ""
        self.kek = f"hashivault://{key}{suffix}"
        self.path = f"acme/{secrets.token_hex(5)}/fleet"
        self.keyset = f"vaultkv://secret/{self.path}{suffix}"
        self.key, self.data_key = key, os.urandom(32)
        contexts = [WrapContext(p, k, KID) for p in ("seal", "report", "sign") for k in ("fleet", "fleet2", "flee")]
        self.wraps = {c: self.kms().wrap(self.data_key, c, deadline=soon()) for c in contexts}
        self.version = self.store().replace(b"{}", None, deadline=soon())
        self.instance = secrets.token_urlsafe(16)
        self.store().put_report(self.instance, b"{}", deadline=soon())

    def kms(self) -> VaultKms:
        return VaultKms(self.kek)

    def store(self) -> VaultKvStore:
        return VaultKvStore(self.keyset)

    def role(self, role: str) -> str:
        token = self.bao.token_for(vault_policy(role, "fleet", [self.kek], self.keyset))
        self.env.setenv("VAULT_TOKEN", token)
        return token

    def opens(self, purpose: str, keyset: str = "fleet") -> bool:
        context = WrapContext(purpose, keyset, KID)
        try:
            return self.kms().unwrap(self.wraps[context], context, deadline=soon()) == self.data_key
        except KmsDenied:
            return False


@pytest.fixture(params=["bound by associated_data", "bound by derivation"])
def world(request: pytest.FixtureRequest, at_bao: Bao, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(at_bao, monkeypatch, derived="derivation" in request.param)


def test_a_server_unwraps_its_own_data_keys_and_report_key_and_nothing_else(world: World) -> None:
    world.role("server")
    assert world.opens("seal")
    assert world.opens("report")
    assert not world.opens("sign"), "a server that opens the signer can forge keysets"
    for other in ("fleet2", "flee"):
        for purpose in ("seal", "report", "sign"):
            assert not world.opens(purpose, other)


def test_a_server_cannot_wrap_nor_read_nor_make_a_transit_key(world: World) -> None:
    world.role("server")
    with pytest.raises(KmsDenied, match="keys"):
        world.kms().wrap(os.urandom(32), WrapContext("seal", "fleet", KID), deadline=soon())
    with pytest.raises(KmsDenied):
        world.kms().describe(deadline=soon())
    b64 = base64.b64encode(b"x" * 32).decode()
    for path in (f"transit/encrypt/{world.key}", "transit/encrypt/other", f"transit/datakey/plaintext/{world.key}"):
        assert (
            world.bao.api("POST", path, {"plaintext": b64}, token=os.environ["VAULT_TOKEN"], ok=False)["_status"] == 403
        )


def test_no_way_of_saying_it_leads_around_the_purpose(world: World) -> None:
    """What a compromised server would send to Vault itself to have the signer opened."""
    token = world.role("server")
    context = WrapContext("sign", "fleet", KID)
    wrap = world.wraps[context]
    ciphertext = wrap.blob.decode().removeprefix("derived:")
    aad = base64.b64encode(context.aad()).decode()
    allowed = base64.b64encode(WrapContext("seal", "fleet", KID).aad()).decode()
    front = base64.b64encode(WrapContext("seal", "fleet", "").aad_front()).decode()
    attempts = [
        {"batch_input": [{"ciphertext": ciphertext, "associated_data": aad, "context": aad}]},
        {"ciphertext": ciphertext, "associated_data": aad, "context": aad},
        {"ciphertext": ciphertext, "associated_data": [aad], "context": [aad]},
        {
            "ciphertext": ciphertext,
            "associated_data": allowed,
            "context": allowed,
            "Associated_Data": aad,
            "Context": aad,
        },
        {"ciphertext": ciphertext, "ASSOCIATED_DATA": aad, "CONTEXT": aad},
        {"ciphertext": ciphertext, "associated_data": [allowed, aad], "context": [allowed, aad]},
        {"ciphertext": ciphertext, "associated_data": front + "\n" + aad, "context": front + "\n" + aad},
        {"ciphertext": ciphertext, "associated_data": {"0": aad}, "context": {"0": aad}},
        {"ciphertext": ciphertext},
    ]
    for attempt in attempts:
        answer = world.bao.api("POST", f"transit/decrypt/{world.key}", attempt, token=token, ok=False)
        assert answer["_status"] >= 400, attempt
    query = f"transit/decrypt/{world.key}?associated_data={aad}&context={aad}"
    answer = world.bao.api("POST", query, {"ciphertext": ciphertext}, token=token, ok=False)
    assert answer["_status"] >= 400
    right = {"ciphertext": world.wraps[replace(context, purpose="seal")].blob.decode().removeprefix("derived:")}
    right["context" if b"derived:" in wrap.blob else "associated_data"] = allowed
    assert world.bao.api("POST", f"transit/decrypt/{world.key}", right, token=token)["_status"] == 200


def test_a_server_reads_the_keyset_and_writes_only_reports(world: World) -> None:
    token = world.role("server")
    store = world.store()
    found = store.read(None, fresh=True, deadline=soon())
    assert found is not None
    assert found.body == b"{}"
    with pytest.raises(StoreDenied):
        store.replace(b"forged", world.version, deadline=soon())
    own = secrets.token_urlsafe(16)
    store.put_report(own, b'{"mine":1}', deadline=soon())
    store.put_report(own, b'{"mine":2}', deadline=soon())
    with pytest.raises(StoreDenied):
        store.delete_report(own, deadline=soon())
    with pytest.raises(StoreDenied):
        list(store.reports(deadline=soon()))
    for method, path in (
        ("DELETE", f"secret/data/{world.path}"),
        ("DELETE", f"secret/metadata/{world.path}"),
        ("POST", f"secret/metadata/{world.path}"),
        ("PUT", f"secret/destroy/{world.path}"),
        ("POST", "secret/config"),
        ("GET", f"secret/data/{world.path}2"),
    ):
        answer = world.bao.api(method, path, {"versions": [1]} if method != "GET" else None, token=token, ok=False)
        assert answer["_status"] == 403, path
    kept = world.bao.api("GET", f"secret/metadata/{world.path}.reports/{own}")["data"]
    assert kept["max_versions"] == 1
    assert list(kept["versions"]) == ["2"], "one version of a report is kept"


def test_an_operator_does_the_whole_of_its_work_and_creates_no_key(world: World) -> None:
    token = world.role("operator")
    kms, store = world.kms(), world.store()
    assert kms.describe(deadline=soon()).enabled
    for purpose in ("seal", "sign", "report"):
        context = WrapContext(purpose, "fleet", KID)
        assert world.opens(purpose)
        wrap = kms.wrap(world.data_key, context, deadline=soon())
        assert kms.unwrap(wrap, context, deadline=soon()) == world.data_key
        again = kms.rewrap(wrap, context, deadline=soon())
        assert again is None or kms.unwrap(again, context, deadline=soon()) == world.data_key
        made = kms.generate(context, deadline=soon())
        assert made is None or len(kms.unwrap(made, context, deadline=soon())) == 32
    with pytest.raises(KmsDenied):
        kms.wrap(world.data_key, WrapContext("seal", "fleet2", KID), deadline=soon())
    version = store.replace(b'{"g":2}', world.version, deadline=soon())
    assert store.read(version, fresh=True, deadline=soon()) is None
    assert [found.name for found in store.reports(deadline=soon())] == [world.instance]
    store.delete_report(world.instance, deadline=soon())
    assert not list(store.reports(deadline=soon()))
    missing = "missing-" + secrets.token_hex(4)
    b64 = base64.b64encode(b"x").decode()
    assert (
        world.bao.api("POST", f"transit/encrypt/{missing}", {"plaintext": b64}, token=token, ok=False)["_status"] == 403
    )
    assert world.bao.api("GET", f"transit/keys/{missing}", ok=False)["_status"] == 404


def test_an_inspector_reads_all_and_writes_nothing(world: World) -> None:
    world.role("inspector")
    assert world.opens("seal")
    assert world.opens("report")
    assert not world.opens("sign")
    store = world.store()
    assert store.read(None, fresh=True, deadline=soon()) is not None
    assert [found.name for found in store.reports(deadline=soon())] == [world.instance]
    with pytest.raises(StoreDenied):
        store.replace(b"x", world.version, deadline=soon())
    with pytest.raises(StoreDenied):
        store.put_report(world.instance, b"x", deadline=soon())
    with pytest.raises(StoreDenied):
        store.delete_report(world.instance, deadline=soon())
    with pytest.raises(KmsDenied):
        world.kms().wrap(b"x", WrapContext("seal", "fleet", KID), deadline=soon())


@pytest.mark.parametrize("role", ["server", "operator", "inspector"])
def test_a_printed_policy_has_no_right_that_doctor_would_call_excess(world: World, role: str) -> None:
    world.role(role)
    assert excess_rights(role, [world.kek], world.keyset, deadline=soon()) == []


def test_every_right_beyond_the_role_is_named(world: World) -> None:
    world.role("operator")
    excess = excess_rights("server", [world.kek], world.keyset, deadline=soon())
    assert f"update on transit/encrypt/{world.key}" in excess
    assert f"update on secret/data/{world.path}" in excess
    world.env.setenv("VAULT_TOKEN", world.bao.token)
    assert any(right.startswith("root on") for right in excess_rights("server", [world.kek], "-", deadline=soon()))
    world.env.setenv("VAULT_TOKEN", world.bao.token_for('path "cubbyhole/x" { capabilities = ["read"] }'))
    with pytest.raises(KmsDenied, match="rights"):
        excess_rights("server", [world.kek], world.keyset, deadline=soon())


def test_a_policy_of_the_root_reaches_a_key_and_a_keyset_in_a_namespace(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "team" + secrets.token_hex(4)
    at_bao.api("POST", f"sys/namespaces/{name}")
    at_bao.api("POST", "sys/mounts/secret", {"type": "kv", "options": {"version": "2"}}, namespace=name)
    world = World(at_bao, monkeypatch, derived=False, namespace=name)
    world.role("server")
    assert world.opens("seal")
    assert not world.opens("sign")
    assert world.store().read(None, fresh=False, deadline=soon()) is not None
    with pytest.raises(StoreDenied):
        world.store().replace(b"x", world.version, deadline=soon())


def test_paths_are_relative_to_the_namespace_that_holds_the_policy() -> None:
    kek, keyset = "hashivault://k?namespace=acme/team", "vaultkv://kv/fleet?namespace=acme"
    assert 'path "acme/team/transit/decrypt/k"' in vault_policy("server", "fleet", [kek], keyset)
    inside = vault_policy("server", "fleet", [kek], keyset, namespace="acme")
    assert 'path "team/transit/decrypt/k"' in inside
    assert 'path "kv/data/fleet"' in inside
    with pytest.raises(UriError):
        vault_policy("server", "fleet", [kek], keyset, namespace="other")


def test_other_clouds_urls_print_no_vault_rules() -> None:
    text = vault_policy("server", "fleet", ["awskms:///arn:aws:kms:eu-west-1:111122223333:key/x"], "s3://b/k")
    assert "transit" not in text
    assert "data/" not in text
