"""`mcpkeys policy gcp`: what each role gets, and nothing else."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from mcpkeys.errors import ConfigurationError, UriError
from mcpkeys_gcp.policy import gcp_bindings, gcp_policy

KEK = "gcpkms://projects/acme/locations/europe-west3/keyRings/mcpkeys/cryptoKeys/fleet"
SIGN = "gcpkms://projects/acme/locations/europe-west3/keyRings/mcpkeys/cryptoKeys/signer"
KEYSET = "gs://acme-keys/teams/blue's, fleet.json"
OBJECT = "projects/_/buckets/acme-keys/objects/teams/blue's, fleet.json"


def rights(role, **more) -> set[tuple[str, str]]:
    """(permission or predefined role, where)."""
    return {
        (right, binding.condition or binding.resource)
        for binding in gcp_bindings(role, "fleet", [KEK], KEYSET, **more)
        for right in (binding.permissions or (binding.role,))
    }


def test_a_server_decrypts_reads_the_keyset_and_writes_reports_and_nothing_else():
    key, reports = KEK.removeprefix("gcpkms://"), f'resource.name.startsWith("{OBJECT}.reports/")'
    assert rights("server", sign_keks=[SIGN]) == {
        ("roles/cloudkms.cryptoKeyDecrypter", key),
        ("storage.objects.get", f'resource.name == "{OBJECT}"'),
        ("storage.objects.create", reports),
        ("storage.objects.delete", reports),
    }


def test_an_inspector_writes_nothing():
    for right, _ in rights("inspector"):
        assert right in (
            "roles/cloudkms.cryptoKeyDecrypter",
            "roles/cloudkms.viewer",
            "storage.objects.get",
            "storage.objects.list",
        )


def test_only_an_operator_gets_the_signers_key():
    signer = SIGN.removeprefix("gcpkms://")
    for role in ("server", "inspector"):
        assert signer not in {b.resource for b in gcp_bindings(role, "fleet", [KEK], KEYSET, sign_keks=[SIGN])}
    assert signer in {b.resource for b in gcp_bindings("operator", "fleet", [KEK], KEYSET, sign_keks=[SIGN])}


def test_a_signer_that_a_server_could_open_is_warned_of():
    assert "WARNING" in gcp_policy("server", "fleet", [KEK], KEYSET)
    assert "--sign-kek" in gcp_policy("server", "fleet", [KEK], KEYSET)
    assert "WARNING" in gcp_policy("server", "fleet", [KEK], KEYSET, sign_keks=[KEK])
    assert "WARNING" not in gcp_policy("server", "fleet", [KEK], KEYSET, sign_keks=[SIGN])


@pytest.mark.parametrize("role", ["server", "operator", "inspector"])
def test_the_commands_run_as_a_shell_reads_them(role, tmp_path: Path):
    """Names with quotes, commas and spaces arrive in one piece."""
    (tmp_path / "gcloud").write_text(f'#!/bin/sh\nfor a; do printf "%s\\n" "$a"; done >> {tmp_path}/seen\n')
    (tmp_path / "gcloud").chmod(0o755)
    script = gcp_policy(role, "fleet", [KEK, "awskms:///arn:aws:kms:x"], KEYSET)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "MEMBER": "user:a@b", "PROJECT": "acme"}
    subprocess.run(["sh", "-c", script], env=env, check=True, timeout=20)
    seen = (tmp_path / "seen").read_text().splitlines()
    for binding in gcp_bindings(role, "fleet", [KEK], KEYSET):
        if binding.condition:
            assert f"--condition=^#^expression={binding.condition}#title={binding.role}" in seen
    assert shlex.split(script, comments=True)


def test_other_clouds_are_passed_over_and_nothing_at_all_is_an_error():
    with pytest.raises(ConfigurationError):
        gcp_policy("server", "fleet", ["awskms:///arn:aws:kms:r:1:key/k"], "s3://b/k")
    with pytest.raises(UriError):
        gcp_policy("server", "fleet", ["gcpkms://nonsense"], KEYSET)
    assert {b.resource for b in gcp_bindings("server", "fleet", [], KEYSET)} == {"gs://acme-keys"}
