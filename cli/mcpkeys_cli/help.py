"""`mcpkeys help TOPIC`: what is true for every command, told once."""

from __future__ import annotations

import click

from mcpkeys_cli.output import Answer

TOPICS = {
    "exit-codes": """\
Exit codes, the same in text and JSON (`exit`):

  0    done, or nothing was due
  1    unexpected: a defect of mcpkeys; please report it
  2    usage or configuration: what was given is missing, wrong or already there
  3    token rejected
  4    KMS, store or instance unreachable; trying again may help
  5    unsafe to proceed, nothing was changed: something must be done first
  6    not yet: only time is missing, or a wait timed out; the same command resumes
  7    permission denied
  130  interrupted

A cron job treats 0 and 6 as fine, retries 4, and wakes somebody for the rest.""",
    "uris": """\
Keysets:
  /path/to/fleet.keyset.json                        a file; file:///path is the same
  s3://bucket/key                                   Amazon S3                   pip install "mcpkeys[aws]"
  gs://bucket/object                                Google Cloud Storage        pip install "mcpkeys[gcp]"
  vaultkv://mount/path                              Vault or OpenBao, KV v2     pip install "mcpkeys[vault]"

KEKs:
  local:///path/to/kek.key                          32 raw bytes, mode 0600
  awskms:///arn:PARTITION:kms:REGION:ACCOUNT:key/ID AWS KMS                     pip install "mcpkeys[aws]"
  awskms:///alias/NAME?region=R                     in commands only: the ARN it names is pinned
  gcpkms://projects/P/locations/L/keyRings/R/cryptoKeys/K                       pip install "mcpkeys[gcp]"
  hashivault://KEY?mount=transit&namespace=N        Vault or OpenBao, Transit   pip install "mcpkeys[vault]"

Addresses and credentials come from each SDK's own conventions (AWS_*, GOOGLE_*, VAULT_ADDR or BAO_ADDR,
VAULT_TOKEN, MCPKEYS_VAULT_*, MCPKEYS_GCP_KMS_ENDPOINT), never from the keyset.""",
    "rotation": """\
A rotation replaces the minting key of a live fleet without refusing a round:

  phase 0  [CUR*]         steady                                          (* mints)
  phase 1  [OLD*, NEW]    every instance learns to verify NEW; OLD mints
  phase 2  [NEW*, OLD]    NEW mints; OLD keeps verifying
  phase 3  [NEW*]         one ttl after phase 2 is fully out: OLD is retired

  mcpkeys rotate --phase 1
  mcpkeys rotate --phase 2 --wait 10m      refused (5, 6) until every instance verifies NEW
  mcpkeys rotate --phase 3 --wait 30m      refused (5, 6) until every instance mints NEW and one ttl is over

  mcpkeys status --watch                   who holds what, what the next step waits for, the next command
  mcpkeys rotate --rollback                from 1 NEW is dropped; from 2 OLD mints again
  mcpkeys rotate --emergency --kid K --reason R      K verifies nowhere from now on; rounds under K are lost

An instance that is gone without a farewell is named: --allow-missing ID. There is no --force.""",
    "environment": """\
What a server and every command read (arguments come first, then these, then the file of MCPKEYS_CONFIG):

  MCPKEYS_NAME             the keyset's name
  MCPKEYS_KEYSET           its URI or path
  MCPKEYS_KEKS             the pinned KEKs, comma-separated, nearest first
  MCPKEYS_SIGNERS          the pinned signers, comma-separated
  MCPKEYS_MIN_GENERATION   no older keyset is accepted
  MCPKEYS_INSTANCE         a label for this instance; default: the host's or pod's name
  MCPKEYS_CONFIG           a TOML file with the same names; never looked for in the working directory

  MCPKEYS_VAULT_*          logins to Vault and OpenBao: see docs/how-to/vault.md
  MCPKEYS_GCP_KMS_ENDPOINT another address of Google Cloud KMS (TLS always)
  NO_COLOR                 no colour

mcpkeys init prints the first four.""",
}


_NEXT = {
    "exit-codes": "mcpkeys COMMAND --output json carries the code as `exit`",
    "uris": "mcpkeys init NAME --keyset URI --kek URI; mcpkeys doctor tries what is configured",
    "rotation": "mcpkeys status",
    "environment": "mcpkeys doctor",
}


@click.command("help", epilog="Example: mcpkeys help exit-codes")
@click.argument("topic", type=click.Choice(list(TOPICS)), required=False)
@click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
def command(topic: str | None, output: str) -> Answer:
    """Explain a topic: exit-codes, uris, rotation, environment."""
    if topic is None:
        lines = "\n".join(f"  mcpkeys help {name}" for name in TOPICS)
        return Answer("help", data={"topics": list(TOPICS)}, text=f"Topics:\n{lines}", next="mcpkeys --help")
    return Answer("help", data={"topic": topic, "text": TOPICS[topic]}, text=TOPICS[topic], next=_NEXT[topic])
