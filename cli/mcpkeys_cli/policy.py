"""`mcpkeys policy`: least-privilege policies for the settings at hand. Contacts nobody.

In text the policy is all of stdout, ready to be piped; the next step goes to stderr.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import click

from mcpkeys.errors import ConfigurationError
from mcpkeys.settings import Settings
from mcpkeys_cli.options import keyset_options, output_option, settings_of
from mcpkeys_cli.output import Answer, note

Role = Literal["server", "operator", "inspector"]
EPILOG = """Examples:

\b
  mcpkeys policy aws --role server > server.json
  mcpkeys policy vault --role operator | vault policy write mcpkeys-operator -
  mcpkeys policy gcp --role server --output json
"""
_NEXT = {
    "aws": "aws iam create-policy --policy-name mcpkeys-{name}-{role} --policy-document file://FILE, and attach it",
    "gcp": "set MEMBER and PROJECT, read the commands, then run them",
    "vault": "vault policy write mcpkeys-{name}-{role} FILE, and give it to that role's tokens",
}
_SCHEMES = {
    "aws": ("awskms:", "s3:"),
    "gcp": ("gcpkms:", "gs:"),
    "vault": ("hashivault:", "vaultkv:"),
}


@click.command("policy", epilog=EPILOG)
@click.argument("cloud", type=click.Choice(list(_SCHEMES)))
@click.option("--role", type=click.Choice(["server", "operator", "inspector"]), required=True, help="Who gets it.")
@click.option("--sign-kek", "sign_keks", multiple=True, metavar="URI", help="KEK of the signer, where it has its own.")
@click.option("--namespace", default="", metavar="N", help="Vault: the namespace the policy is written to.")
@keyset_options
@output_option
def command(cloud: str, role: Role, sign_keks: tuple[str, ...], namespace: str, output: str, **given: Any) -> Answer:
    """Print the least-privilege policy of one role: server, operator or inspector."""
    settings = settings_of(given, "name", "keyset", "keks")
    _something_there(cloud, settings, sign_keks)
    policy, text = _policy(cloud, role, settings, sign_keks, namespace)
    then = _NEXT[cloud].format(name=settings.name, role=role)
    if role == "server":
        then += "; then, with those credentials: mcpkeys doctor --as-server"
    if output == "text":
        note(f"next: {then}")
        return Answer("policy", text=text.rstrip("\n"))
    data = {"cloud": cloud, "role": role, "name": settings.name, "policy": policy, "text": text}
    return Answer("policy", data=data, next=then)


def _something_there(cloud: str, settings: Settings, sign_keks: tuple[str, ...]) -> None:
    uris = (*settings.keks, *sign_keks, settings.keyset)
    if any(uri.startswith(_SCHEMES[cloud]) for uri in uris):
        return
    others = [other for other, schemes in _SCHEMES.items() if any(uri.startswith(schemes) for uri in uris)]
    raise ConfigurationError(
        f"nothing of the keyset {settings.name} is in {cloud}",
        why=f"neither its KEKs nor its store have the scheme {' or '.join(f'{s}//' for s in _SCHEMES[cloud])}",
        next=f"mcpkeys policy {others[0]} --role ..." if others else "local files need file permissions, no policy",
        code="policy-elsewhere",
    )


def _policy(cloud: str, role: Role, settings: Settings, sign_keks: tuple[str, ...], namespace: str) -> tuple[Any, str]:
    """The policy as JSON values, and as text to be piped."""
    name, keks, keyset = settings.name, settings.keks, settings.keyset
    if cloud == "aws":
        from mcpkeys_aws.policy import aws_policy

        policy = aws_policy(role, name, keks, keyset, sign_keks=sign_keks)
        return policy, json.dumps(policy, indent=2)
    if cloud == "gcp":
        from mcpkeys_gcp.policy import gcp_bindings, gcp_policy

        bindings = gcp_bindings(role, name, keks, keyset, sign_keks=sign_keks)
        return [binding.to_dict() for binding in bindings], gcp_policy(role, name, keks, keyset, sign_keks=sign_keks)
    from mcpkeys_vault.policy import vault_policy

    # Only operators get near a signer's own KEK.
    keks = (*keks, *sign_keks) if role == "operator" else keks
    text = vault_policy(role, name, keks, keyset, namespace=namespace)
    return text, text
