"""What VaultKms promises beyond the contract, on a real OpenBao."""

from __future__ import annotations

import base64
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from servers.fault_proxy import Answer, FaultProxy, Request
from servers.openbao import Bao

from mcpkeys.errors import KekUnusable, KmsDenied, KmsUnreachable, McpkeysError, UnwrapRefused, UriError
from mcpkeys.kms import Wrap, WrapContext
from mcpkeys.registry import open_kms
from mcpkeys_vault.kms import VaultKms
from mcpkeys_vault.policy import vault_policy
from mcpkeys_vault.uri import TransitKey, parse_kek

CONTEXT = WrapContext("seal", "fleet", "AbCdEfGhIjKl")


def soon() -> float:
    return time.monotonic() + 10


@pytest.mark.parametrize(
    ("uri", "canonical"),
    [
        ("hashivault://k", "hashivault://k"),
        ("hashivault://k?mount=transit", "hashivault://k"),
        ("hashivault://k?namespace=b/c/&mount=/x/y/", "hashivault://k?mount=x/y&namespace=b/c"),
        ("hashivault://k-1_a.b?namespace=admin", "hashivault://k-1_a.b?namespace=admin"),
    ],
)
def test_a_uri_has_one_canonical_form(uri: str, canonical: str) -> None:
    assert parse_kek(uri).uri == canonical


@pytest.mark.parametrize(
    "uri",
    [
        "hashivault://",
        "hashivault:///k",
        "hashivault://k/",
        "hashivault://a/b",
        "hashivault://../sys",
        "hashivault://k?",
        "hashivault://k?mount",
        "hashivault://k?mount=",
        "hashivault://k?mount=../sys",
        "hashivault://k?mount=a//b",
        "hashivault://k?mount=a&mount=b",
        "hashivault://k?address=https://evil",
        "hashivault://k?token=s.abc",
        "hashivault://k#x",
        "hashivault://k%2fx",
        "hashivault://k?mount=a?b",
        "hashivault://k y",
        "hashivault://ké",
        "awskms://k",
    ],
)
def test_what_is_no_kek_uri_is_refused_with_an_example(uri: str) -> None:
    with pytest.raises(UriError) as caught:
        parse_kek(uri)
    assert "hashivault://" in caught.value.next


@given(st.text(max_size=60))
def test_any_text_after_the_scheme_is_read_or_refused_and_canonical_forms_are_fixed_points(text: str) -> None:
    try:
        key = parse_kek("hashivault://" + text)
    except UriError:
        return
    assert parse_kek(key.uri) == key
    assert ".." not in key.mount.split("/")


@given(st.from_regex(r"[a-z]{1,8}", fullmatch=True), st.sampled_from(["transit", "a/b"]), st.sampled_from(["", "n/m"]))
def test_a_key_reads_back_from_its_uri(name: str, mount: str, namespace: str) -> None:
    key = TransitKey(name, mount, namespace)
    assert parse_kek(key.uri) == key


def test_servers_unwrap_with_a_single_call(at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch) -> None:
    for derived in (False, True):
        uri = f"hashivault://{bao.transit_key(derived=derived)}"
        monkeypatch.setenv("VAULT_TOKEN", bao.token)
        wraps = [VaultKms(uri).wrap(os.urandom(32), CONTEXT, deadline=soon()) for _ in range(3)]
        monkeypatch.setenv("VAULT_TOKEN", bao.token_for(vault_policy("server", "fleet", [uri], "-")))
        kms = VaultKms(uri)
        kms.unwrap(wraps[0], CONTEXT, deadline=soon())
        at_proxy.seen.clear()
        for wrap in wraps:
            kms.unwrap(wrap, CONTEXT, deadline=soon())
        key = uri.removeprefix("hashivault://")
        assert at_proxy.seen == [("POST", f"/v1/transit/decrypt/{key}")] * 3


def test_a_mistyped_key_is_never_created_even_by_a_token_that_could(at_bao: Bao) -> None:
    name = "typo-" + secrets.token_hex(4)
    kms = VaultKms(f"hashivault://{name}")
    for _ in range(2):
        with pytest.raises(KekUnusable) as caught:
            kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
        assert caught.value.code == "kek-not-found"
        with pytest.raises(KekUnusable):
            kms.generate(CONTEXT, deadline=soon())
    assert at_bao.api("GET", f"transit/keys/{name}", ok=False)["_status"] == 404


def test_a_key_deleted_since_is_not_made_anew(at_bao: Bao) -> None:
    name = at_bao.transit_key()
    kms = VaultKms(f"hashivault://{name}")
    kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    at_bao.api("POST", f"transit/keys/{name}/config", {"deletion_allowed": True})
    at_bao.api("DELETE", f"transit/keys/{name}")
    with pytest.raises(KekUnusable):
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert at_bao.api("GET", f"transit/keys/{name}", ok=False)["_status"] == 404


def test_without_the_right_to_read_the_key_nothing_is_wrapped_and_the_right_is_named(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = at_bao.transit_key()
    rules = 'path "transit/encrypt/*" { capabilities = ["create", "update"] }'
    monkeypatch.setenv("VAULT_TOKEN", at_bao.token_for(rules))
    with pytest.raises(KmsDenied) as caught:
        VaultKms(f"hashivault://{name}").wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert f"read on transit/keys/{name}" in caught.value.next


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"type": "rsa-2048"}, "rsa-2048"),
        ({"type": "ed25519"}, "ed25519"),
        ({"derived": True, "convergent_encryption": True}, "convergent"),
    ],
)
def test_a_key_that_cannot_bind_is_no_kek(at_bao: Bao, options: dict[str, object], why: str) -> None:
    kms = VaultKms(f"hashivault://{at_bao.transit_key(**options)}")
    with pytest.raises(KekUnusable, match=why):
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    with pytest.raises(KekUnusable, match=why):
        kms.generate(CONTEXT, deadline=soon())
    state = kms.describe(deadline=soon())
    assert state.exists
    assert not state.enabled


@pytest.mark.parametrize("kind", ["aes128-gcm96", "aes256-gcm96", "chacha20-poly1305", "xchacha20-poly1305"])
def test_every_authenticated_cipher_of_transit_is_a_kek(at_bao: Bao, kind: str) -> None:
    kms, key = VaultKms(f"hashivault://{at_bao.transit_key(type=kind)}"), os.urandom(32)
    wrap = kms.wrap(key, CONTEXT, deadline=soon())
    assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key
    with pytest.raises(UnwrapRefused):
        kms.unwrap(wrap, replace(CONTEXT, purpose="sign"), deadline=soon())


def test_a_plain_key_binds_by_associated_data_and_not_by_the_context_it_ignores(at_bao: Bao) -> None:
    name = at_bao.transit_key()
    wrap = VaultKms(f"hashivault://{name}").wrap(os.urandom(32), CONTEXT, deadline=soon())
    aad = base64.b64encode(CONTEXT.aad()).decode()
    body = {"ciphertext": wrap.blob.decode(), "context": aad}
    assert at_bao.api("POST", f"transit/decrypt/{name}", body, ok=False)["_status"] == 400


def test_a_blob_marked_as_bound_the_other_way_is_refused(at_bao: Bao) -> None:
    for derived in (False, True):
        kms = VaultKms(f"hashivault://{at_bao.transit_key(derived=derived)}")
        wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
        blob = wrap.blob.removeprefix(b"derived:") if derived else b"derived:" + wrap.blob
        with pytest.raises(UnwrapRefused):
            kms.unwrap(replace(wrap, blob=blob), CONTEXT, deadline=soon())


def test_a_wrap_that_names_another_version_than_its_blob_is_refused_without_a_call(
    at_proxy: FaultProxy, bao: Bao
) -> None:
    kms = VaultKms(f"hashivault://{bao.transit_key()}")
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    at_proxy.seen.clear()
    with pytest.raises(UnwrapRefused):
        kms.unwrap(replace(wrap, version="2"), CONTEXT, deadline=soon())
    assert at_proxy.seen == []


def test_a_derived_key_generates_and_rewraps_unseen_and_a_plain_one_does_not_offer_it(
    at_proxy: FaultProxy, bao: Bao
) -> None:
    plain = VaultKms(f"hashivault://{bao.transit_key()}")
    assert plain.generate(CONTEXT, deadline=soon()) is None
    assert plain.rewrap(plain.wrap(b"x" * 32, CONTEXT, deadline=soon()), CONTEXT, deadline=soon()) is None
    name = bao.transit_key(derived=True)
    derived = VaultKms(f"hashivault://{name}")
    at_proxy.seen.clear()
    wrap = derived.generate(CONTEXT, deadline=soon())
    assert wrap is not None
    bao.api("POST", f"transit/keys/{name}/rotate", {})
    newer = derived.rewrap(wrap, CONTEXT, deadline=soon())
    assert newer is not None
    assert newer.version == "2"
    paths = {path.split("/")[3] for _, path in at_proxy.seen if "transit" in path}
    assert paths == {"keys", "datakey", "rewrap"}, "nothing that answers a plaintext was called"
    assert ("POST", f"/v1/transit/datakey/wrapped/{name}") in at_proxy.seen
    key = derived.unwrap(wrap, CONTEXT, deadline=soon())
    assert derived.unwrap(newer, CONTEXT, deadline=soon()) == key
    with pytest.raises(UnwrapRefused):
        derived.rewrap(wrap, replace(CONTEXT, purpose="sign"), deadline=soon())


def test_a_version_below_min_decryption_version_names_the_kek_the_version_and_rewrap(at_bao: Bao) -> None:
    name = at_bao.transit_key()
    kms = VaultKms(f"hashivault://{name}")
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    for _ in range(2):
        at_bao.api("POST", f"transit/keys/{name}/rotate", {})
    assert kms.unwrap(wrap, CONTEXT, deadline=soon())
    state = kms.describe(deadline=soon())
    assert (state.newest, state.oldest_usable) == ("3", "1")
    at_bao.api("POST", f"transit/keys/{name}/config", {"min_decryption_version": 2})
    assert kms.describe(deadline=soon()).oldest_usable == "2"
    with pytest.raises(KekUnusable) as caught:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert caught.value.code == "kek-version-too-old"
    assert f"hashivault://{name}" in caught.value.what
    assert "version 1" in caught.value.what
    assert "mcpkeys rewrap" in caught.value.next
    at_bao.api("POST", f"transit/keys/{name}/config", {"min_decryption_version": 3, "min_encryption_version": 3})
    at_bao.api("POST", f"transit/keys/{name}/trim", {"min_available_version": 3})
    with pytest.raises(KekUnusable) as caught:
        kms.unwrap(wrap, CONTEXT, deadline=soon())
    assert "mcpkeys rewrap" in caught.value.next
    assert kms.describe(deadline=soon()).oldest_usable == "3"


def test_an_exportable_key_is_described_with_a_warning(at_bao: Bao) -> None:
    name = at_bao.transit_key(exportable=True, allow_plaintext_backup=True)
    detail = VaultKms(f"hashivault://{name}").describe(deadline=soon()).detail
    assert "warning: exportable" in detail
    assert "warning: allow_plaintext_backup" in detail


@pytest.mark.parametrize(
    ("uri", "code"),
    [("hashivault://k?mount=nowhere", "mount-not-found"), ("hashivault://k?namespace=nowhere", "namespace-not-found")],
)
def test_a_wrong_mount_or_namespace_is_a_wrong_configuration(at_bao: Bao, uri: str, code: str) -> None:
    kms = VaultKms(uri)
    with pytest.raises(KekUnusable) as caught:
        kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    assert caught.value.code == code
    with pytest.raises(KekUnusable) as caught:
        kms.unwrap(Wrap(kms.uri, "1", b"vault:v1:" + base64.b64encode(os.urandom(60))), CONTEXT, deadline=soon())
    assert caught.value.code == code


def test_keys_of_the_same_name_in_two_namespaces_are_two_keks(at_bao: Bao) -> None:
    name = "ns" + secrets.token_hex(4)
    at_bao.api("POST", f"sys/namespaces/{name}")
    key = at_bao.transit_key()
    at_bao.transit_key(key, namespace=name)
    root, inner = VaultKms(f"hashivault://{key}"), VaultKms(f"hashivault://{key}?namespace={name}")
    wrap = inner.wrap(b"x" * 32, CONTEXT, deadline=soon())
    assert inner.unwrap(wrap, CONTEXT, deadline=soon()) == b"x" * 32
    with pytest.raises(UnwrapRefused):
        root.unwrap(replace(wrap, kek=root.uri), CONTEXT, deadline=soon())


@pytest.mark.parametrize(
    ("status", "said", "kind", "code", "throttled"),
    [
        (503, "Vault is sealed", KmsUnreachable, "vault-sealed", False),
        (429, 'request path "transit": rate limit quota exceeded', KmsUnreachable, "vault-throttled", True),
        (472, "", KmsUnreachable, "vault-standby", False),
        (473, "", KmsUnreachable, "vault-standby", False),
        (307, "", KmsUnreachable, "vault-standby", False),
        (500, "local node not active but active cluster node not found", KmsUnreachable, "vault-standby", False),
        (500, "internal error", KmsUnreachable, "kms-unreachable", False),
        (502, "", KmsUnreachable, "kms-unreachable", False),
        (504, "", KmsUnreachable, "kms-unreachable", False),
        (405, "unsupported operation", KmsUnreachable, "kms-unreachable", False),
        (412, "required index state not present", KmsUnreachable, "vault-behind", False),
        (403, "1 error occurred:\n\t* permission denied\n\n", KmsDenied, "permission", False),
    ],
)
def test_every_answer_has_its_own_code(
    at_proxy: FaultProxy, bao: Bao, status: int, said: str, kind: type[McpkeysError], code: str, throttled: bool
) -> None:
    import json

    kms = VaultKms(f"hashivault://{bao.transit_key()}")
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    body = json.dumps({"errors": [said] if said else []}).encode()
    with at_proxy.answering(status, body, under="/transit/decrypt"), pytest.raises(kind) as caught:
        kms.unwrap(wrap, CONTEXT, deadline=time.monotonic() + 1)
    assert caught.value.code == code
    assert getattr(caught.value, "throttled", False) is throttled
    assert "\n" not in str(caught.value)
    assert caught.value.next


def test_a_node_that_lags_is_asked_again(at_proxy: FaultProxy, bao: Bao) -> None:
    kms, key = VaultKms(f"hashivault://{bao.transit_key()}"), os.urandom(32)
    wrap = kms.wrap(key, CONTEXT, deadline=soon())
    answers = [(412, {"Content-Type": "application/json"}, b'{"errors": []}')] * 2
    with at_proxy.faulty(lambda request, forward: answers.pop() if answers else forward()):
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_a_redirect_is_not_followed_so_no_token_leaves_for_another_host(at_proxy: FaultProxy, bao: Bao) -> None:
    other = FaultProxy(f"127.0.0.1:{bao.port}")
    try:
        kms = VaultKms(f"hashivault://{bao.transit_key()}")
        wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
        moved = (307, {"Location": other.address + "/v1/x"}, b"")
        with at_proxy.faulty(lambda request, forward: moved), pytest.raises(KmsUnreachable):
            kms.unwrap(wrap, CONTEXT, deadline=soon())
        assert other.seen == []
    finally:
        other.close()


def test_a_broken_connection_is_tried_once_more(at_proxy: FaultProxy, bao: Bao) -> None:
    kms, key = VaultKms(f"hashivault://{bao.transit_key()}"), os.urandom(32)
    wrap = kms.wrap(key, CONTEXT, deadline=soon())
    breaks = [None]
    with at_proxy.faulty(lambda request, forward: breaks.pop() if breaks else forward()):
        assert kms.unwrap(wrap, CONTEXT, deadline=soon()) == key


def test_a_real_quota_is_told_as_throttling(at_bao: Bao) -> None:
    mount = "t" + secrets.token_hex(4)
    key = at_bao.transit_key(mount=mount)
    kms = VaultKms(f"hashivault://{key}?mount={mount}")
    wrap = kms.wrap(os.urandom(32), CONTEXT, deadline=soon())
    at_bao.api("POST", f"sys/quotas/rate-limit/{mount}", {"rate": 0.1, "interval": "60s", "path": mount})
    try:
        caught: list[KmsUnreachable] = []
        for _ in range(10):
            try:
                kms.unwrap(wrap, CONTEXT, deadline=soon())
            except KmsUnreachable as error:
                caught.append(error)
        assert caught
        assert all(error.throttled and error.code == "vault-throttled" for error in caught)
    finally:
        at_bao.api("DELETE", f"sys/quotas/rate-limit/{mount}")


def test_the_registry_opens_it_and_says_what_is_missing_without_hvac(
    at_bao: Bao, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(open_kms("hashivault://k"), VaultKms)
    from mcpkeys.errors import PluginError

    monkeypatch.setattr("mcpkeys_vault.client.find_spec", lambda name: None)
    with pytest.raises(PluginError, match="hvac") as caught:
        open_kms("hashivault://k")
    assert "mcpkeys[vault]" in caught.value.next


def test_opening_imports_no_client_library() -> None:
    import subprocess
    import sys

    code = (
        "import sys, mcpkeys_vault.kms as k, mcpkeys_vault.store as s; k.VaultKms('hashivault://k');"
        "s.VaultKvStore('vaultkv://a/b'); print(sorted({'hvac', 'requests'} & set(sys.modules)))"
    )
    env = {**os.environ, "VAULT_ADDR": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=30)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_vault_that_refuses_forwarding_by_header_is_used_without_and_told_once(
    at_proxy: FaultProxy, bao: Bao, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Vault Enterprise's default; its words as its own proxy looks for them."""
    from mcpkeys_vault.store import VaultKvStore

    monkeypatch.setenv("VAULT_NAMESPACE", "root")  # a client of its own
    monkeypatch.setenv("VAULT_TOKEN", bao.token_for('path "*" { capabilities = ["read", "create", "update", "list"] }'))
    refusal = b'{"errors": ["forwarding via header X-Vault-Forward disabled"]}'

    def fault(request: Request, forward: Callable[[], Answer]) -> Answer:
        asked = {name.lower() for name in request[2]}
        if asked & {"x-vault-forward", "x-vault-inconsistent"}:
            return 400, {"Content-Type": "application/json"}, refusal
        return forward()

    store = VaultKvStore(f"vaultkv://secret/{secrets.token_hex(6)}")
    with at_proxy.faulty(fault), caplog.at_level("WARNING", "mcpkeys"):
        version = store.replace(b"x", None, deadline=soon())
        assert store.read(version, fresh=True, deadline=soon()) is None
        assert not list(store.reports(deadline=soon()))
    assert len([record for record in caplog.records if "allow_forwarding_via_header" in record.getMessage()]) == 1


def test_something_that_is_no_vault_is_an_outage_and_not_a_missing_key(at_proxy: FaultProxy, bao: Bao) -> None:
    kms = VaultKms(f"hashivault://{bao.transit_key()}")
    with at_proxy.answering(404, b"<html>not found</html>", under="/transit/"):
        with pytest.raises(KmsUnreachable):
            kms.describe(deadline=soon())
        with pytest.raises(KmsUnreachable):
            kms.wrap(b"x" * 32, CONTEXT, deadline=soon())
