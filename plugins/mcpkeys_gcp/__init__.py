"""Google Cloud: KMS backend (`gcpkms://`) and Cloud Storage store (`gs://`). Needs the extra `mcpkeys[gcp]`."""
