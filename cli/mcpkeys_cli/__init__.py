"""The `mcpkeys` command."""
