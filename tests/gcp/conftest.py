"""Nothing of these tests leaves the machine, and nothing of the machine's Google settings reaches them."""

from __future__ import annotations

import os

import pytest

for _name in (
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_CLOUD_PROJECT",
    "GOOGLE_CLOUD_QUOTA_PROJECT",
    "STORAGE_EMULATOR_HOST",
    "MCPKEYS_GCP_KMS_ENDPOINT",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
):
    os.environ.pop(_name, None)
os.environ["NO_GCE_CHECK"] = "true"
os.environ["GCE_METADATA_HOST"] = "127.0.0.1:1"
os.environ["CLOUDSDK_CONFIG"] = "/nonexistent/gcloud"


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", "/nonexistent/gcloud")
