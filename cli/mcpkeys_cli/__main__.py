"""`python -m mcpkeys_cli`."""

from mcpkeys_cli.main import run

run()
