"""Least-privilege IAM bindings for Google Cloud: who may do what with the KEKs and the bucket."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mcpkeys.errors import ConfigurationError
from mcpkeys_gcp.uri import parse_kek, parse_keyset

Role = Literal["server", "operator", "inspector"]

_SAYS: dict[Role, str] = {
    "server": "unwraps keys, reads the keyset, writes and deletes reports; wraps nothing, cannot write the keyset",
    "operator": "wraps and unwraps, reads and writes the keyset, gathers and deletes reports",
    "inspector": "unwraps keys, reads the keyset and the reports; writes nothing",
}
_KMS_ROLES: dict[Role, tuple[str, ...]] = {
    "server": ("roles/cloudkms.cryptoKeyDecrypter",),
    "operator": ("roles/cloudkms.cryptoKeyEncrypterDecrypter", "roles/cloudkms.viewer"),
    "inspector": ("roles/cloudkms.cryptoKeyDecrypter", "roles/cloudkms.viewer"),
}
_CUSTOM: dict[str, tuple[str, ...]] = {
    "mcpkeysReader": ("storage.objects.get",),
    "mcpkeysReporter": ("storage.objects.create", "storage.objects.delete"),
    "mcpkeysGatherer": ("storage.objects.get", "storage.objects.delete"),
    "mcpkeysKeyset": ("storage.objects.get", "storage.objects.create", "storage.objects.delete"),
    "mcpkeysLister": ("storage.objects.list",),
}
_STORE_ROLES: dict[Role, tuple[tuple[str, str], ...]] = {
    "server": (("mcpkeysReader", "keyset"), ("mcpkeysReporter", "reports")),
    "operator": (("mcpkeysKeyset", "keyset"), ("mcpkeysGatherer", "reports"), ("mcpkeysLister", "bucket")),
    "inspector": (("mcpkeysReader", "keyset"), ("mcpkeysReader", "reports"), ("mcpkeysLister", "bucket")),
}


@dataclass(frozen=True, slots=True)
class Binding:
    """One IAM binding.

    Attributes:
        resource: `projects/P/.../cryptoKeys/K`, or `gs://bucket`.
        role: a predefined role, or the id of a custom role.
        permissions: of a custom role; empty for a predefined one.
        condition: a CEL expression over `resource.name`, or empty.
    """

    resource: str
    role: str
    permissions: tuple[str, ...] = ()
    condition: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "resource": self.resource,
            "role": self.role,
            "permissions": list(self.permissions),
            "condition": self.condition,
        }


def gcp_bindings(
    role: Role, keyset_name: str, keks: Sequence[str], keyset_uri: str, *, sign_keks: Sequence[str] = ()
) -> list[Binding]:
    """The bindings of one role for one keyset. KEKs and stores that are not Google Cloud's are passed over.

    Args:
        keyset_name: the keyset's name. No binding depends on it: Google Cloud KMS cannot restrict by context.
        keks: the KEKs of the data keys.
        keyset_uri: where the keyset is stored.
        sign_keks: the KEKs of the signer, where they are not `keks`; only operators get them.

    Raises:
        ConfigurationError: nothing of it is on Google Cloud.
        UriError: a `gcpkms://` or `gs://` URI that cannot be read.
    """
    names = [parse_kek(uri) for uri in keks if uri.startswith("gcpkms:")]
    if role == "operator":
        names += [parse_kek(uri) for uri in sign_keks if uri.startswith("gcpkms:")]
    bindings = [Binding(name, granted) for name in dict.fromkeys(names) for granted in _KMS_ROLES[role]]
    if keyset_uri.startswith("gs:"):
        bucket, name = parse_keyset(keyset_uri)
        place = f"projects/_/buckets/{bucket}/objects/{name}"
        conditions = {
            "keyset": f"resource.name == {json.dumps(place)}",
            "reports": f"resource.name.startsWith({json.dumps(place + '.reports/')})",
            "bucket": "",
        }
        for granted, where in _STORE_ROLES[role]:
            bindings.append(Binding(f"gs://{bucket}", granted, _CUSTOM[granted], conditions[where]))
    if not bindings:
        raise ConfigurationError(
            f"nothing of the keyset {keyset_name!r} is on Google Cloud",
            next="mcpkeys policy aws, or mcpkeys policy vault",
        )
    return bindings


def gcp_policy(
    role: Role, keyset_name: str, keks: Sequence[str], keyset_uri: str, *, sign_keks: Sequence[str] = ()
) -> str:
    """The same as commands for `gcloud`, to be run with MEMBER and PROJECT set. Else as `gcp_bindings`."""
    bindings = gcp_bindings(role, keyset_name, keks, keyset_uri, sign_keks=sign_keks)
    lines = [
        f"# mcpkeys: role {role} of the keyset {keyset_name!r}: {_SAYS[role]}.",
        "# Set MEMBER (for example serviceAccount:fleet@PROJECT.iam.gserviceaccount.com) and PROJECT (the bucket's).",
        'set -eu; : "${MEMBER:?}"',
    ]
    if any(not b.resource.startswith("gs:") for b in bindings):
        lines += ["", *_warning(role, keks, sign_keks)]
    for custom in dict.fromkeys(b.role for b in bindings if b.permissions):
        permissions = ",".join(_CUSTOM[custom])
        lines.append(f'gcloud iam roles create {custom} --project="${{PROJECT:?}}" --permissions={permissions}')
    if any(b.condition for b in bindings):
        lines += [
            "",
            "# Conditions need uniform bucket-level access. Listing cannot be held to a prefix by a condition.",
        ]
    lines += [_command(binding) for binding in bindings]
    return "\n".join(lines) + "\n"


def _warning(role: Role, keks: Sequence[str], sign_keks: Sequence[str]) -> list[str]:
    if role == "operator" or (sign_keks and not set(sign_keks) & set(keks)):
        return [
            "# Google Cloud KMS cannot restrict by context (additional authenticated data): whoever decrypts with a",
            "# key opens everything wrapped by it. The signer's KEK therefore stays with operators alone.",
        ]
    return [
        "# WARNING: Google Cloud KMS cannot restrict by context (additional authenticated data): whoever decrypts with",
        "# a key opens everything wrapped by it. If these keys also wrap the keyset's signer, this role could forge",
        "# keysets: give the signer a key of its own (mcpkeys init --sign-kek URI) that only operators may use.",
    ]


def _command(binding: Binding) -> str:
    if binding.resource.startswith("gs:"):
        granted = f'"projects/${{PROJECT:?}}/roles/{binding.role}"'
        condition = "None"
        if binding.condition:
            # ^#^ makes # the separator: an object's name may hold commas, never a #
            condition = shlex.quote(f"^#^expression={binding.condition}#title={binding.role}")
        return (
            f"gcloud storage buckets add-iam-policy-binding {shlex.quote(binding.resource)} "
            f'--member="$MEMBER" --role={granted} --condition={condition}'
        )
    part = binding.resource.split("/")
    return (
        f"gcloud kms keys add-iam-policy-binding {part[7]} --keyring={part[5]} --location={part[3]} "
        f'--project={part[1]} --member="$MEMBER" --role={binding.role} --condition=None'
    )
