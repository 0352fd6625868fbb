"""No credential and no key in logs at DEBUG, messages or tracebacks with local variables; TLS is verified."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from servers.fault_proxy import FaultProxy
from servers.openbao import Bao, dev_server

from mcpkeys.errors import KmsUnreachable, McpkeysError, SettingError
from mcpkeys.kms import WrapContext
from mcpkeys.testing.leaks import Listener, leaked, shown
from mcpkeys_vault.client import open_client
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.policy import vault_policy

CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon() -> float:
    return time.monotonic() + 10


def test_logins_and_their_failures_show_neither_secret_id_nor_token_nor_key(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri, key = f"hashivault://{bao.transit_key()}", os.urandom(32)
    wrap = VaultKms(uri).wrap(key, CONTEXT, deadline=soon())
    mount = "approle-" + secrets.token_hex(4)
    bao.api("POST", f"sys/auth/{mount}", {"type": "approle"})
    bao.api("POST", f"sys/policies/acl/{mount}", {"policy": vault_policy("operator", "fleet", [uri], "-")})
    bao.api("POST", f"auth/{mount}/role/r", {"token_policies": [mount]})
    secret_id = bao.api("POST", f"auth/{mount}/role/r/secret-id", {})["data"]["secret_id"]
    (tmp_path / "secret-id").write_text(secret_id)
    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH", "approle")
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH_MOUNT", mount)
    role_id = bao.api("GET", f"auth/{mount}/role/r/role-id")["data"]["role_id"]
    monkeypatch.setenv("MCPKEYS_VAULT_ROLE_ID", role_id)
    monkeypatch.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", str(tmp_path / "secret-id"))
    errors: list[BaseException] = []

    def attempt(kms: VaultKms) -> None:
        for call in (
            lambda: kms.unwrap(wrap, CONTEXT, deadline=time.monotonic() + 1),
            lambda: kms.wrap(key, CONTEXT, deadline=time.monotonic() + 1),
        ):
            try:
                call()
            except McpkeysError as error:
                errors.append(error)

    answers = [
        (200, b'{"auth": {"client_token": ""}}', "/login"),
        (400, f'{{"errors": ["unknown secret id {secret_id}"]}}'.encode(), "/login"),
        (500, b"<html>", "/login"),
        (200, b"garbage", "/transit/"),
        (500, b"{}", "/transit/"),
    ]
    with Listener() as listener:
        for status, body, under in answers:
            with at_proxy.answering(status, body, under=under):
                attempt(VaultKms(uri))
        with at_proxy.faulty(lambda request, forward: None):
            attempt(VaultKms(uri))
        kms = VaultKms(uri)
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
        token = kms._client._credentials.token(soon())
        bao.api("POST", "auth/token/revoke", {"token": token})
        bao.api("DELETE", f"auth/{mount}/role/r")
        attempt(kms)
    assert isinstance(token, str)
    assert len(errors) == 14
    hidden = [key, secret_id.encode(), token.encode()]
    assert listener.text, "DEBUG records are listened to"
    assert not leaked(listener.text, hidden)
    for error in errors:
        assert not leaked(shown(error, skip=(__file__,)), hidden), repr(error)
    client = open_client()
    assert not leaked(repr(client) + repr(vars(client)) + repr(vars(client._credentials)), hidden)


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bao, Path]]:
    directory = tmp_path_factory.mktemp("tls")
    with dev_server("root", tls=directory) as bao:
        yield bao, directory / "vault-ca.pem"


def test_a_ca_bundle_that_matches_is_needed_and_named_when_it_does_not(
    tls: tuple[Bao, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bao, ca = tls
    monkeypatch.setenv("VAULT_ADDR", bao.address)
    monkeypatch.setenv("VAULT_TOKEN", bao.token)
    for bundle in (None, tmp_path / "other.pem"):
        if bundle is not None:
            bundle.write_text(Path(__import__("certifi").where()).read_text())
            monkeypatch.setenv("BAO_CACERT", str(bundle))
        with pytest.raises(KmsUnreachable) as caught:
            VaultKms("hashivault://k").describe(deadline=soon())
        assert caught.value.code == "vault-tls"
        assert "VAULT_CACERT" in caught.value.next
    monkeypatch.delenv("BAO_CACERT")
    monkeypatch.setenv("VAULT_CACERT", str(ca))
    assert not VaultKms("hashivault://k").describe(deadline=soon()).exists


def test_verification_cannot_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    import hvac

    monkeypatch.setenv("VAULT_ADDR", "https://127.0.0.1:1")
    monkeypatch.setenv("VAULT_SKIP_VERIFY", "1")
    with pytest.raises(SettingError, match="VAULT_SKIP_VERIFY"):
        VaultKms("hashivault://k")
    with pytest.raises(SettingError, match="verifies no certificate"):
        VaultKms("hashivault://k", session=hvac.Client(url="https://127.0.0.1:1", token="t", verify=False))
