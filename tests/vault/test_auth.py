"""Tokens and logins against a real OpenBao: renewed in time, obtained anew when gone, told apart when refused."""

from __future__ import annotations

import base64
import json
import logging
import os
import secrets
import threading
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from servers.fault_proxy import FaultProxy
from servers.openbao import Bao

from mcpkeys.errors import KmsDenied, KmsUnreachable, SettingError
from mcpkeys.kms import WrapContext
from mcpkeys_vault.client import VaultClient, open_client
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.policy import vault_policy
from mcpkeys_vault.settings import VaultSettings

CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon() -> float:
    return time.monotonic() + 10


class Clock:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def write(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def kek(bao: Bao, **where: str) -> str:
    key = bao.transit_key(**where)
    return f"hashivault://{key}" + (f"?namespace={where['namespace']}" if "namespace" in where else "")


def approle(
    bao: Bao, env: pytest.MonkeyPatch, tmp_path: Path, policy: str, *, namespace: str = "", **role: object
) -> str:
    """An AppRole named at random; the environment logs in by it. Returns the mount."""
    mount, name = "approle-" + secrets.token_hex(4), "fleet"
    bao.api("POST", f"sys/auth/{mount}", {"type": "approle"}, namespace=namespace)
    bao.api("POST", f"sys/policies/acl/{mount}", {"policy": policy}, namespace=namespace)
    bao.api("POST", f"auth/{mount}/role/{name}", {"token_policies": [mount], **role}, namespace=namespace)
    role_id = bao.api("GET", f"auth/{mount}/role/{name}/role-id", namespace=namespace)["data"]["role_id"]
    secret_id = bao.api("POST", f"auth/{mount}/role/{name}/secret-id", {}, namespace=namespace)["data"]["secret_id"]
    env.delenv("VAULT_TOKEN", raising=False)
    env.setenv("MCPKEYS_VAULT_AUTH", "approle")
    env.setenv("MCPKEYS_VAULT_AUTH_MOUNT", mount)
    env.setenv("MCPKEYS_VAULT_ROLE_ID", role_id)
    env.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", write(tmp_path / "secret-id", secret_id + "\n"))
    return mount


def a_blob(bao: Bao, uri: str, env: pytest.MonkeyPatch) -> tuple[bytes, object]:
    env.setenv("VAULT_TOKEN", bao.token)
    key = os.urandom(32)
    wrap = VaultKms(uri).wrap(key, CONTEXT, deadline=soon())
    env.delenv("VAULT_TOKEN")
    return key, wrap


def current(client: VaultClient) -> str:
    token = client._credentials.token(soon())
    assert isinstance(token, str)
    return token


def test_an_approle_logs_in_once_for_many_threads_keks_and_the_store(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uris = [kek(bao), kek(bao)]
    blobs = [a_blob(bao, uri, monkeypatch) for uri in uris]
    approle(bao, monkeypatch, tmp_path, vault_policy("server", "fleet", uris, "-"))
    at_proxy.seen.clear()
    kmses = [VaultKms(uri) for uri in uris]
    gate = threading.Barrier(8)
    results: list[bool] = []

    def work(number: int) -> None:
        gate.wait(10)
        key, wrap = blobs[number % 2]
        results.append(kmses[number % 2].unwrap(wrap, CONTEXT, deadline=soon()) == key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert results == [True] * 8
    assert sum(path.endswith("/login") for _, path in at_proxy.seen) == 1


def test_a_revoked_login_token_is_replaced_by_one_login_and_the_call_succeeds(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    uri = kek(bao)
    key, wrap = a_blob(bao, uri, monkeypatch)
    approle(bao, monkeypatch, tmp_path, vault_policy("server", "fleet", [uri], "-"))
    kms = VaultKms(uri)
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    bao.api("POST", "auth/token/revoke", {"token": current(kms._client)})
    at_proxy.seen.clear()
    with caplog.at_level(logging.WARNING, "mcpkeys"):
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    assert sum(path.endswith("/login") for _, path in at_proxy.seen) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_policy_denial_costs_no_login(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri = kek(bao)
    _, wrap = a_blob(bao, uri, monkeypatch)
    approle(bao, monkeypatch, tmp_path, 'path "cubbyhole/x" { capabilities = ["read"] }')
    kms = VaultKms(uri)
    at_proxy.seen.clear()
    for _ in range(3):
        with pytest.raises(KmsDenied) as caught:
            kms.unwrap(wrap, CONTEXT, deadline=soon())
        assert caught.value.code == "permission"
        assert "transit/decrypt" in caught.value.next
    assert sum(path.endswith("/login") for _, path in at_proxy.seen) == 1


def test_an_expired_static_token_is_told_apart_from_a_policy(at_bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    uri = kek(at_bao)
    _, wrap = a_blob(at_bao, uri, monkeypatch)
    token = at_bao.token_for(vault_policy("server", "fleet", [uri], "-"))
    monkeypatch.setenv("VAULT_TOKEN", token)
    kms = VaultKms(uri)
    kms.unwrap(wrap, CONTEXT, deadline=soon())
    at_bao.api("POST", "auth/token/revoke", {"token": token})
    for _ in range(2):
        with pytest.raises(KmsDenied) as caught:
            kms.unwrap(wrap, CONTEXT, deadline=soon())
        assert caught.value.code == "credentials-expired"
        assert token not in str(caught.value)


def test_a_token_file_is_read_anew_when_its_token_is_refused(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uri = kek(at_bao)
    key, wrap = a_blob(at_bao, uri, monkeypatch)
    policy = vault_policy("server", "fleet", [uri], "-")
    first, second = at_bao.token_for(policy), at_bao.token_for(policy)
    sink = tmp_path / "sink"
    monkeypatch.setenv("MCPKEYS_VAULT_TOKEN_FILE", write(sink, first))
    kms = VaultKms(uri)
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    at_bao.api("POST", "auth/token/revoke", {"token": first})
    with pytest.raises(KmsDenied):
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    write(sink, second)
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_the_home_directorys_token_is_found(at_bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    write(tmp_path / ".vault-token", at_bao.token + "\n")
    assert VaultKms(kek(at_bao)).describe(deadline=soon()).exists


def test_no_token_at_all_is_told_with_what_to_set(at_bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VAULT_TOKEN")
    with pytest.raises(KmsDenied) as caught:
        VaultKms("hashivault://k").describe(deadline=soon())
    assert caught.value.code == "credentials-missing"
    assert "VAULT_TOKEN" in caught.value.next


def test_a_renewable_token_is_renewed_at_two_thirds_of_its_life(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = bao.token_for('path "auth/token/*" { capabilities = ["read", "update"] }', ttl="900s", renewable=True)
    monkeypatch.setenv("VAULT_TOKEN", token)
    clock = Clock()
    client = VaultClient(VaultSettings.from_environment(), clock=clock)
    assert current(client) == token
    clock.now += 595
    at_proxy.seen.clear()
    assert current(client) == token
    assert at_proxy.seen == []
    clock.now += 10
    assert current(client) == token
    assert at_proxy.seen == [("POST", "/v1/auth/token/renew-self")]
    clock.now += 590
    assert current(client) == token
    assert len(at_proxy.seen) == 1, "its life began anew"


def test_a_failing_renewal_keeps_the_living_token_and_is_not_tried_at_every_call(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = bao.token_for('path "auth/token/*" { capabilities = ["read", "update"] }', ttl="900s", renewable=True)
    monkeypatch.setenv("VAULT_TOKEN", token)
    clock = Clock()
    client = VaultClient(VaultSettings.from_environment(), clock=clock)
    current(client)
    clock.now += 601
    with at_proxy.answering(503, b'{"errors": ["Vault is sealed"]}'):
        at_proxy.seen.clear()
        for _ in range(5):
            assert current(client) == token
        assert len(at_proxy.seen) == 1
    clock.now += 6
    assert current(client) == token
    clock.now += 500
    at_proxy.seen.clear()
    assert current(client) == token
    assert at_proxy.seen == [], "renewed once Vault was back"


def test_a_login_token_that_nears_its_maximum_is_replaced_by_a_new_login(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = 'path "auth/token/*" { capabilities = ["read", "update"] }'
    approle(bao, monkeypatch, tmp_path, policy, token_ttl="60s", token_max_ttl="60s")
    clock = Clock()
    client = VaultClient(VaultSettings.from_environment(), clock=clock)
    first = current(client)
    clock.now += 41
    # The server's own clock has not moved: it renews to its maximum again. Say what it says when that is near.
    near = json.dumps({"auth": {"client_token": first, "lease_duration": 19, "renewable": True}}).encode()
    with at_proxy.answering(200, near, under="renew-self"):
        second = current(client)
    assert second != first
    clock.now += 39
    assert current(client) == second


def test_a_batch_token_is_replaced_without_trying_to_renew(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    approle(bao, monkeypatch, tmp_path, "# nothing", token_ttl="60s", token_type="batch")
    clock = Clock()
    client = VaultClient(VaultSettings.from_environment(), clock=clock)
    first = current(client)
    at_proxy.seen.clear()
    clock.now += 41
    assert current(client) != first
    assert [path.rsplit("/", 1)[1] for _, path in at_proxy.seen] == ["login"]


def test_a_refused_login_says_so_and_never_shows_the_secret_id(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    approle(at_bao, monkeypatch, tmp_path, "# nothing")
    wrong = "00000000-1111-" + secrets.token_hex(6)
    monkeypatch.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", write(tmp_path / "wrong", wrong))
    with pytest.raises(KmsDenied) as caught:
        VaultKms("hashivault://k").describe(deadline=soon())
    assert caught.value.code == "login-refused"
    assert wrong not in str(caught.value)


@pytest.mark.parametrize("content", ["", None])
def test_an_absent_or_empty_secret_file_is_named_without_a_call(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str | None
) -> None:
    approle(bao, monkeypatch, tmp_path, "# nothing")
    path = tmp_path / "nothing"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("MCPKEYS_VAULT_SECRET_ID_FILE", str(path))
    at_proxy.seen.clear()
    with pytest.raises(KmsDenied) as caught:
        VaultKms("hashivault://k").describe(deadline=soon())
    assert caught.value.code == "credentials-missing"
    assert at_proxy.seen == []


def test_a_sealed_vault_during_login_is_an_outage_not_a_refusal(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    approle(bao, monkeypatch, tmp_path, "# nothing")
    with (
        at_proxy.answering(503, b'{"errors": ["Vault is sealed"]}'),
        pytest.raises(KmsUnreachable) as caught,
    ):
        VaultKms("hashivault://k").describe(deadline=soon())
    assert caught.value.code == "vault-sealed"


class Issuer:
    """Signs JWTs with ES256, as an identity provider or a Kubernetes cluster does."""

    def __init__(self) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())

    @property
    def public(self) -> str:
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return self.key.public_key().public_bytes(serialization.Encoding.PEM, form).decode()

    def token(self, **claims: object) -> str:
        now = int(time.time())
        body = {"iss": "https://issuer.test", "aud": "vault", "sub": "fleet", "iat": now, "exp": now + 300, **claims}
        parts = [self._part({"alg": "ES256", "typ": "JWT"}), self._part(body)]
        r, s = decode_dss_signature(self.key.sign(".".join(parts).encode(), ec.ECDSA(hashes.SHA256())))
        signature = r.to_bytes(32, "big") + s.to_bytes(32, "big")
        return ".".join([*parts, base64.urlsafe_b64encode(signature).decode().rstrip("=")])

    @staticmethod
    def _part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("method", ["jwt", "kubernetes"])
def test_a_jwt_in_a_file_logs_in_and_is_read_anew_at_each_login(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str
) -> None:
    """Kubernetes' own login has the same request; without a cluster, OpenBao's jwt method stands at its mount."""
    uri = kek(at_bao)
    key, wrap = a_blob(at_bao, uri, monkeypatch)
    mount, issuer = f"{method}-{secrets.token_hex(4)}", Issuer()
    at_bao.api("POST", f"sys/auth/{mount}", {"type": "jwt"})
    at_bao.api(
        "POST",
        f"auth/{mount}/config",
        {"jwt_validation_pubkeys": [issuer.public], "bound_issuer": "https://issuer.test"},
    )
    at_bao.api("POST", f"sys/policies/acl/{mount}", {"policy": vault_policy("server", "fleet", [uri], "-")})
    role = {"role_type": "jwt", "user_claim": "sub", "bound_audiences": ["vault"], "token_policies": [mount]}
    at_bao.api("POST", f"auth/{mount}/role/fleet", role)
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH", method)
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH_MOUNT", mount)
    monkeypatch.setenv("MCPKEYS_VAULT_ROLE", "fleet")
    jwt = tmp_path / "jwt"
    expired = issuer.token(exp=int(time.time()) - 600, iat=int(time.time()) - 900)
    monkeypatch.setenv("MCPKEYS_VAULT_JWT_FILE", write(jwt, expired))
    kms = VaultKms(uri)
    with pytest.raises(KmsDenied) as caught:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert caught.value.code == "login-refused"
    assert expired not in str(caught.value)
    write(jwt, issuer.token())
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    at_bao.api("POST", "auth/token/revoke", {"token": current(kms._client)})
    write(jwt, issuer.token(nonce=1))
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_login_and_transit_may_lie_in_different_namespaces(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    team = "ns" + secrets.token_hex(4)
    at_bao.api("POST", f"sys/namespaces/{team}")
    at_bao.api("POST", "sys/namespaces/sub", namespace=team)
    uri = kek(at_bao, namespace=f"{team}/sub")
    key, wrap = a_blob(at_bao, uri, monkeypatch)
    policy = vault_policy("server", "fleet", [uri], "-", namespace=team)
    approle(at_bao, monkeypatch, tmp_path, policy, namespace=team)
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH_NAMESPACE", team)
    assert VaultKms(uri).unwrap(wrap, CONTEXT, deadline=soon()) == key
    monkeypatch.setenv("MCPKEYS_VAULT_AUTH_NAMESPACE", "root")
    with pytest.raises(KmsDenied):
        VaultKms(uri).unwrap(wrap, CONTEXT, deadline=soon())
    monkeypatch.delenv("MCPKEYS_VAULT_AUTH_NAMESPACE")
    monkeypatch.setenv("VAULT_NAMESPACE", team)
    assert VaultKms(uri).unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_a_callers_own_hvac_client_is_used(at_bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    import hvac

    monkeypatch.delenv("VAULT_TOKEN")
    monkeypatch.setenv("VAULT_ADDR", "http://127.0.0.1:1")
    session = hvac.Client(url=at_bao.address, token=at_bao.token)
    assert VaultKms(kek(at_bao), session=session).describe(deadline=soon()).exists


def test_equal_settings_share_a_client_and_other_tokens_do_not(at_bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    one = open_client()
    assert open_client() is one
    monkeypatch.setenv("VAULT_TOKEN", "s.another")
    assert open_client() is not one


@pytest.mark.parametrize(
    ("env", "named"),
    [
        ({}, "VAULT_ADDR"),
        ({"VAULT_ADDR": "vault:8200"}, "VAULT_ADDR"),
        ({"VAULT_ADDR": "https://u:p@vault:8200"}, "VAULT_ADDR"),
        ({"VAULT_ADDR": "http://vault.example.org:8200"}, "VAULT_ADDR"),
        ({"VAULT_ADDR": "https://vault:8200", "BAO_ADDR": "https://bao:8200"}, "BAO_ADDR"),
        ({"VAULT_ADDR": "https://vault:8200", "VAULT_SKIP_VERIFY": "true"}, "VAULT_SKIP_VERIFY"),
        ({"VAULT_ADDR": "https://vault:8200", "VAULT_CACERT": "/no/such/file.pem"}, "VAULT_CACERT"),
        ({"VAULT_ADDR": "https://vault:8200", "MCPKEYS_VAULT_AUTH": "ldap"}, "MCPKEYS_VAULT_AUTH"),
        ({"VAULT_ADDR": "https://vault:8200", "MCPKEYS_VAULT_AUTH": "approle"}, "MCPKEYS_VAULT_SECRET_ID_FILE"),
        ({"VAULT_ADDR": "https://vault:8200", "MCPKEYS_VAULT_AUTH": "kubernetes"}, "MCPKEYS_VAULT_ROLE"),
        ({"VAULT_ADDR": "https://vault:8200", "MCPKEYS_VAULT_AUTH": "jwt"}, "MCPKEYS_VAULT_JWT_FILE"),
    ],
)
def test_a_wrong_setting_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(SettingError, match=named) as caught:
        VaultSettings.from_environment(env)
    assert caught.value.next


def test_settings_show_no_secret() -> None:
    token, secret_id = secrets.token_hex(16), secrets.token_hex(16)
    env = {"BAO_ADDR": "https://bao:8200", "BAO_TOKEN": token}
    assert VaultSettings.from_environment(env).token == token
    assert token not in repr(VaultSettings.from_environment(env))
    login = {"MCPKEYS_VAULT_AUTH": "approle", "MCPKEYS_VAULT_ROLE_ID": "r", "MCPKEYS_VAULT_SECRET_ID": secret_id}
    assert secret_id not in repr(VaultSettings.from_environment(env | login))


def test_plain_http_elsewhere_needs_a_word() -> None:
    env = {"VAULT_ADDR": "http://vault.mesh:8200/", "MCPKEYS_VAULT_ALLOW_HTTP": "1"}
    assert VaultSettings.from_environment(env).address == "http://vault.mesh:8200"


def test_a_proxy_of_the_environment_is_not_used_for_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:1")
    assert VaultSettings.from_environment({"VAULT_ADDR": "http://127.0.0.1:8200"}).proxy == ""
    assert VaultSettings.from_environment({"VAULT_ADDR": "https://vault.test"}).proxy == "http://127.0.0.1:1"
