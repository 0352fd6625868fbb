"""`python -m mcpkeys_cli`."""

from mcpkeys_cli.start import run

run()
