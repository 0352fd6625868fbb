"""AwsKms against LocalStack: the contract once more, with nothing widened, and what moto cannot show."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from servers.aws_faults import FaultyProxy
from servers.moto import REGION, Moto

from mcpkeys.errors import KekUnusable, UnwrapRefused
from mcpkeys.kms import Kms, Wrap
from mcpkeys.testing import KmsContract
from mcpkeys.testing.kms import a_context
from mcpkeys_aws.kms import AwsKms

# One group: one server, whatever the number of workers.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.xdist_group("localstack")]


def soon() -> float:
    return time.monotonic() + 20


def key_id(uri: str) -> str:
    return uri.rsplit("/", 1)[-1]


@pytest.fixture
def stack(localstack: Moto, monkeypatch: pytest.MonkeyPatch) -> Moto:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in localstack.environ.items():
        monkeypatch.setenv(name, value)
    return localstack


class TestAwsKmsOnLocalStack(KmsContract):
    call_seconds = 20.0
    tamper_positions = 0  # every byte

    @pytest.fixture(autouse=True)
    def server(self, stack: Moto) -> None:
        self.stack = stack
        self.key, self.other = stack.create_key(), stack.create_key()

    def make_kms(self) -> AwsKms:
        return AwsKms(self.key)

    def make_foreign_kms(self) -> AwsKms:
        return AwsKms(self.other)

    def make_missing_kms(self) -> AwsKms:
        return AwsKms(self.key[:-12] + os.urandom(6).hex())

    def secrets(self) -> tuple[bytes, ...]:
        return (self.stack.environ["AWS_SECRET_ACCESS_KEY"].encode(),)

    @contextmanager
    def disabled(self, kms: Kms) -> Iterator[Kms]:
        self.stack.client("kms").disable_key(KeyId=key_id(self.key))
        yield kms
        self.stack.client("kms").enable_key(KeyId=key_id(self.key))

    @contextmanager
    def gone(self, kms: Kms) -> Iterator[Kms]:
        self.stack.client("kms").schedule_key_deletion(KeyId=key_id(self.key), PendingWindowInDays=7)
        yield kms

    @contextmanager
    def rotated(self, kms: Kms) -> Iterator[Kms]:
        self.stack.client("kms").rotate_key_on_demand(KeyId=key_id(self.key))
        yield kms


def test_a_key_of_one_region_opens_by_its_replica_in_another(stack: Moto) -> None:
    here = stack.create_key(MultiRegion=True)
    answer = stack.client("kms").replicate_key(KeyId=key_id(here), ReplicaRegion="us-east-1")
    there = "awskms:///" + answer["ReplicaKeyMetadata"]["Arn"]
    context, key = a_context(), os.urandom(32)
    wrap = AwsKms(here).wrap(key, context, deadline=soon())
    replica = AwsKms(there)
    assert replica.unwrap(wrap, context, deadline=soon()) == key
    made = replica.generate(context, deadline=soon())
    assert made is not None
    assert made.kek == there
    assert AwsKms(here).unwrap(made, context, deadline=soon()) == replica.unwrap(made, context, deadline=soon())
    again = replica.rewrap(wrap, context, deadline=soon())
    assert again is not None
    assert AwsKms(here).unwrap(again, context, deadline=soon()) == key
    assert "multi-region replica" in replica.describe(deadline=soon()).detail
    with pytest.raises(UnwrapRefused):
        replica.unwrap(wrap, replace(context, keyset="other"), deadline=soon())


def test_another_multi_region_key_does_not_open_it(stack: Moto) -> None:
    one, two = stack.create_key(MultiRegion=True), stack.create_key(MultiRegion=True)
    context = a_context()
    wrap = AwsKms(one).wrap(os.urandom(32), context, deadline=soon())
    with pytest.raises(UnwrapRefused):
        AwsKms(two).unwrap(Wrap(two, "", wrap.blob), context, deadline=soon())


def test_a_wrong_region_and_a_wrong_account_are_told(stack: Moto) -> None:
    uri = stack.create_key()
    context = a_context()
    wrap = AwsKms(uri).wrap(os.urandom(32), context, deadline=soon())
    for wrong in (uri.replace(REGION, "eu-west-1"), uri[:-36] + "00000000-0000-4000-8000-000000000000"):
        kms = AwsKms(wrong)
        with pytest.raises(KekUnusable) as caught:
            kms.unwrap(Wrap(wrong, "", wrap.blob), context, deadline=soon())
        assert "region" in caught.value.next
        assert not kms.describe(deadline=soon()).exists


def test_a_missing_an_extra_and_a_changed_part_of_the_context_are_refused(stack: Moto) -> None:
    """That characters do not move from a part's name into its value is AWS's to refuse: both servers let them."""
    kms, context = AwsKms(stack.create_key()), a_context()
    wrap = kms.wrap(os.urandom(32), context, deadline=soon())
    client = stack.client("kms")
    pairs = context.pairs()
    missing = {name: value for name, value in pairs.items() if name != "mcpkeys:kid"}
    for wrong in (missing, {}, {**pairs, "extra": ""}, {**pairs, "mcpkeys:purpose": "sign"}):
        with pytest.raises(client.exceptions.InvalidCiphertextException):
            client.decrypt(CiphertextBlob=wrap.blob, KeyId=key_id(kms.uri), EncryptionContext=wrong)


def test_a_rewrap_from_a_key_that_did_not_wrap_is_refused(stack: Moto) -> None:
    one, two, context = AwsKms(stack.create_key()), AwsKms(stack.create_key()), a_context()
    wrap = one.wrap(os.urandom(32), context, deadline=soon())
    with pytest.raises(UnwrapRefused):
        two.rewrap(Wrap(two.uri, "", wrap.blob), context, deadline=soon())


def test_making_a_data_key_shows_it_to_nobody_here_either(stack: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = FaultyProxy(stack.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    made = AwsKms(stack.create_key()).generate(a_context(), deadline=soon())
    proxy.close()
    assert made is not None
    (call,) = proxy.seen
    assert "Plaintext" not in json.loads(call.answer)


def test_an_alias_that_moves_is_noticed_by_resolving_again(stack: Moto) -> None:
    one, two, alias = stack.create_key(), stack.create_key(), "alias/fleet-" + os.urandom(4).hex()
    client = stack.client("kms")
    client.create_alias(AliasName=alias, TargetKeyId=key_id(one))
    kms = AwsKms(f"awskms:///{alias}?region={REGION}")
    assert kms.resolve(soon()) == one
    client.update_alias(AliasName=alias, TargetKeyId=key_id(two))
    assert kms.resolve(soon()) == two
