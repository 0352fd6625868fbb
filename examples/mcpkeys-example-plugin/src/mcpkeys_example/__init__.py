"""An example plugin for mcpkeys: a KEK in an environment variable, a keyset in SQLite."""
