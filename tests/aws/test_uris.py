"""How AWS keys and objects are named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpkeys.errors import UriError
from mcpkeys.kms import identity
from mcpkeys_aws import arn
from mcpkeys_aws.kms import AwsKms
from mcpkeys_aws.store import S3Store

KEY = "1234abcd-12ab-34cd-56ef-1234567890ab"
MRK = "mrk-" + "1234abcd" * 4


@pytest.mark.parametrize(
    ("partition", "region"),
    [
        ("aws", "eu-central-1"),
        ("aws", "ap-southeast-4"),
        ("aws-cn", "cn-northwest-1"),
        ("aws-us-gov", "us-gov-west-1"),
        ("aws-iso", "us-iso-east-1"),
        ("aws-iso-b", "us-isob-east-1"),
        ("aws-iso-e", "eu-isoe-west-1"),
        ("aws-iso-f", "us-isof-south-1"),
        ("aws-eusc", "eusc-de-east-1"),
    ],
)
def test_keys_of_every_partition_are_named_by_their_arn_and_called_in_their_region(partition: str, region: str) -> None:
    uri = f"awskms:///arn:{partition}:kms:{region}:111122223333:key/{KEY}"
    name = arn.parse(uri)
    assert (name.uri, name.region, name.pinned) == (uri, region, True)
    assert arn.partition_of(uri) == partition
    assert not AwsKms(uri).unresolved


@pytest.mark.parametrize(
    ("uri", "hint"),
    [
        (f"awskms://arn:aws:kms:eu-central-1:111122223333:key/{KEY}", "three slashes"),
        (f"awskms:///{KEY}", "full ARN"),
        (f"awskms:///key/{KEY}", "full ARN"),
        ("awskms:///alias/fleet", "region"),
        ("awskms:///arn:aws:kms:eu-central-1:111122223333:alias/fleet", "alias/NAME"),
        (f"awskms:///arn:aws:s3:eu-central-1:111122223333:key/{KEY}", "not the ARN of a KMS key"),
        (f"awskms:///arn:aws:kms:eu-central-1:1111:key/{KEY}", "not the ARN of a KMS key"),
        (f"awskms:///arn:aws:kms:eu-central-1:111122223333:key/{KEY.upper()}", "lower case"),
        (f"awskms:///arn:aws:kms:eu-central-1:111122223333:key/{KEY}?region=eu-west-1", "not the ARN"),
        (f"awskms:///arn:aws:kms:eu-central-1:111122223333:key/{KEY}/", "not the ARN"),
        (f"awskms:///arn:aws:kms:eu-central-1:111122223333:key/{KEY}\n", "not the ARN"),
        (f"awskms:///arn:aws:kms:evil.example/:111122223333:key/{KEY}", "not the ARN"),
        ("awskms:///", "full ARN"),
    ],
)
def test_a_wrong_key_uri_is_told_what_is_wrong_with_it(uri: str, hint: str) -> None:
    with pytest.raises(UriError) as caught:
        AwsKms(uri)
    assert hint in caught.value.why
    assert "awskms:///arn:aws:kms:" in caught.value.next


@given(st.text(max_size=120))
def test_no_text_names_a_key_without_naming_itself(text: str) -> None:
    try:
        name = arn.parse("awskms:///" + text)
    except UriError:
        return
    assert name.uri == "awskms:///" + text
    assert name.region in text


def test_an_alias_is_known_as_unresolved() -> None:
    kms = AwsKms("awskms:///alias/prod/fleet-1?region=eu-central-1")
    assert kms.unresolved
    assert kms.uri == "awskms:///alias/prod/fleet-1?region=eu-central-1"


def test_replicas_of_one_multi_region_key_are_one_kek() -> None:
    here, there = (arn.uri_of(f"arn:aws:kms:{region}:111122223333:key/{MRK}") for region in ("eu-west-1", "us-east-1"))
    assert here != there
    assert identity(here) == identity(there)
    assert identity(here) != identity(arn.uri_of(f"arn:aws:kms:eu-west-1:111122223334:key/{MRK}"))
    assert identity(here) != identity(arn.uri_of(f"arn:aws-cn:kms:eu-west-1:111122223333:key/{MRK}"))


@pytest.mark.parametrize("uri", ["s3://acme-keys/fleet.keyset.json", "s3://a.b-c/d e/f?x=1#y", "s3://abc/ä"])
def test_an_object_is_named_literally(uri: str) -> None:
    assert S3Store(uri).uri == uri


@pytest.mark.parametrize(
    "uri",
    [
        "s3://acme-keys",
        "s3://acme-keys/",
        "s3:///fleet",
        "s3://ab/x",
        "s3://Acme/x",
        "s3://acme-keys/a//b",
        "s3://acme-keys/../b",
        "s3://acme-keys/./b",
        "s3://acme-keys/b/",
        "s3://acme-keys/" + "k" * 901,
        "s3://user@acme-keys/x",
    ],
)
def test_a_uri_that_names_no_object_is_refused(uri: str) -> None:
    with pytest.raises(UriError) as caught:
        S3Store(uri)
    assert "s3://acme-keys/fleet.keyset.json" in caught.value.next
