"""A moto server (AWS KMS, STS and S3) on a free loopback port, as a process of its own.

moto is laxer than AWS: `tests/aws/test_kms_answers.py` lists where, and proves those cases with AWS's own answers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from servers.aws_faults import FaultyProxy

REGION = "eu-central-1"
_SERVE = """
import sys
from moto.server import ThreadedMotoServer
# It checks a condition and then writes, without a lock. S3 does both at once; so does this, where no other thread may
# come between.
sys.setswitchinterval(60)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()  # ends with the process that started this one, however that ends
"""


@dataclass(frozen=True)
class Moto:
    """A running moto server: its address, the environment that leads boto3 to it, clients for the test's own use."""

    port: int
    environ: dict[str, str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        environ = {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN7EXAMPLE",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret-of-anyone",
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        object.__setattr__(self, "environ", environ)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @cache  # noqa: B019 - one server a session
    def client(self, service: str, region: str = REGION) -> Any:
        import boto3

        return boto3.Session(
            aws_access_key_id=self.environ["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.environ["AWS_SECRET_ACCESS_KEY"],
            region_name=region,
        ).client(service, endpoint_url=self.endpoint)

    def create_key(self, **kind: Any) -> str:
        """Make a KMS key; returns its `awskms:///` URI."""
        return "awskms:///" + self.client("kms").create_key(**kind)["KeyMetadata"]["Arn"]

    def create_bucket(self, name: str) -> str:
        """Make a bucket; returns its name."""
        self.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration={"LocationConstraint": REGION})
        return name


@contextmanager
def running_moto() -> Iterator[Moto]:
    """Start a server, stop it at the end. Not only for pytest: `make demo KEK=aws` uses it too."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    process = subprocess.Popen(
        [sys.executable, "-c", _SERVE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environ,
    )
    try:
        assert process.stdout is not None
        yield Moto(int(process.stdout.readline()))
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def moto() -> Iterator[Moto]:
    """One server for the test session. Tests keep apart by their own keys and buckets."""
    with running_moto() as server:
        yield server


@pytest.fixture
def aws(moto: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    """The server, with this process's environment leading to it."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return moto


@pytest.fixture
def faulty(aws: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """A proxy in front of the server that can be told to fail; boto3 finds it in the server's place."""
    proxy = FaultyProxy(aws.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()
