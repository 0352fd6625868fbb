"""The one-line set-up takes ttl and audience from the keyset, from arguments, variables or the file."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mcp.server import MCPServer, Server
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity, authenticated_principal
from servers.localkeyset import LocalKeyset, local_keyset

import mcpkeys
from mcpkeys.codec import EnvelopeCodec
from mcpkeys.errors import ConfigurationError, SettingError
from mcpkeys.security import KeysetSecurity, request_state_boundary, request_state_security


def test_ttl_and_audience_are_the_keysets(tmp_path: Path) -> None:
    keyset = local_keyset(tmp_path, ttl_seconds=437, audience="acme-billing")
    security = request_state_security(**keyset.pins)
    with security.codec as codec:
        assert isinstance(security, RequestStateSecurity)
        assert (security.ttl, security.audience) == (437.0, "acme-billing")
        assert security.bind_principal is authenticated_principal
        payload = b"\x01\x02state"
        assert codec.unseal(codec.seal(payload)) == payload
        MCPServer("any-name", request_state_security=security)


def test_everything_from_variables(keyset: LocalKeyset, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in keyset.environ.items():
        monkeypatch.setenv(name, value)
    with mcpkeys.request_state_security().codec as codec:
        assert codec.ring.name == "fleet"


def test_everything_from_the_file(keyset: LocalKeyset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "fleet.toml"
    config.write_text(
        f'name = "fleet"\nkeyset = "{keyset.path}"\nkeks = ["{keyset.kek}"]\nsigners = ["{keyset.signer}"]\n'
    )
    config.chmod(0o644)
    monkeypatch.setenv("MCPKEYS_CONFIG", str(config))
    with mcpkeys.request_state_security().codec as codec:
        assert codec.ring.generation == 1


def test_nothing_set_says_what_to_set() -> None:
    with pytest.raises(SettingError) as caught:
        request_state_security()
    assert "MCPKEYS_KEYSET" in str(caught.value)


def test_the_boundary_carries_the_keysets_audience_and_its_policy(keyset: LocalKeyset) -> None:
    boundary = request_state_boundary(**keyset.pins)
    with boundary.security.codec:
        assert isinstance(boundary, RequestStateBoundary)
        assert boundary._audience == boundary.security.audience == "acme-orders"
        server = Server("low")
        server.middleware.append(boundary)


def test_the_callers_binding_is_passed_on(keyset: LocalKeyset) -> None:
    security = request_state_security(**keyset.pins, bind_principal=None)
    with security.codec:
        assert security.bind_principal is None


def test_a_refused_audience_closes_the_codec_and_leaves_no_instance(tmp_path: Path) -> None:
    keyset = local_keyset(tmp_path, audience="mcp-server")
    with pytest.raises(ConfigurationError) as caught:
        request_state_security(**keyset.pins)
    assert caught.value.code == "audience-placeholder"
    assert all('"farewell"' in report.read_text() for report in keyset.reports())


def test_a_warned_audience_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keyset = local_keyset(tmp_path, audience="server")
    with caplog.at_level(logging.WARNING, "mcpkeys"), request_state_security(**keyset.pins).codec:
        assert "could be anybody's" in caplog.text


def test_a_codec_without_a_keyset_has_no_ttl_to_take() -> None:
    with pytest.raises(ValueError, match="no keyset"):
        KeysetSecurity(EnvelopeCodec.from_secrets(["a secret of at least 32 bytes, for tests"]))


def test_two_services_share_one_keyset_and_one_audience_on_purpose(keyset: LocalKeyset) -> None:
    one, other = request_state_security(**keyset.pins), request_state_security(**keyset.pins)
    with one.codec, other.codec:
        assert one.audience == other.audience
        assert other.codec.unseal(one.codec.seal(b"shared")) == b"shared"
