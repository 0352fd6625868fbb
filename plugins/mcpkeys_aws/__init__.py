"""AWS: KMS backend (`awskms://`) and S3 store (`s3://`). Needs the extra `mcpkeys[aws]`."""
