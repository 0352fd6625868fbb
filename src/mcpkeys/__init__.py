"""mcpkeys."""
