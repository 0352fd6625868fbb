"""Vault and OpenBao: Transit backend (`hashivault://`) and KV v2 store (`vaultkv://`). Needs `mcpkeys[vault]`."""
