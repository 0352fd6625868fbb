"""Reading what was written, on clusters whose standby nodes answer reads.

Behind a load balancer each call may reach another node. Three kinds of standby exist:

- Vault's ordinary standbys forward everything: nothing to do.
- Vault Enterprise's performance standbys read locally; `X-Vault-Forward: active-node` forwards one request where the
  server's configuration has `allow_forwarding_via_header`, and is an error where it has not (the default). Then no
  read can be made linearizable but by pointing VAULT_ADDR at the active node: said once in the log.
- OpenBao's standbys (raft, PostgreSQL; unless `disable_standby_reads`) read locally too and know no such header. A
  two-node raft cluster of OpenBao 2.7 answered 69 of 200 reads stale that followed a write at once, and as many with
  `X-Vault-Inconsistent: forward-active-node` alone: that header acts only beside an `X-Vault-Index` that the node has
  not reached. The index is base64 of `{"cluster": ID, "value": "N"}`, so for a read that must be linearizable we ask
  for an N that no node will ever reach: a standby then forwards, and the active node answers at once (0 of 200 stale).

Every call carries the index of this process's last write or login besides: a token or a report that was just written
is seen by the call that follows, whichever node takes it.
"""

from __future__ import annotations

import base64
import json
import logging

from mcpkeys_vault.reply import Reply

log = logging.getLogger("mcpkeys.vault")
_FAR = str(2**63 - 1)


class Consistency:
    """What this process knows of a cluster's indices. Thread-safe: attributes are replaced, never changed."""

    def __init__(self) -> None:
        self._written = ""
        self._far = ""
        self._forwarding = True

    def headers(self, *, fresh: bool) -> dict[str, str]:
        """What to send with a call; `fresh` asks for the active node's answer."""
        if not self._forwarding:
            return {"X-Vault-Index": self._written} if self._written else {}
        headers = {"X-Vault-Forward": "active-node"} if fresh else {}
        index = self._far if fresh and self._far else self._written
        if index:
            headers["X-Vault-Index"] = index
            headers["X-Vault-Inconsistent"] = "forward-active-node"
        return headers

    def note(self, reply: Reply, *, wrote: bool) -> bool:
        """Learn from an answer. True: only now it is known how to ask the active node: repeat a fresh read."""
        if not reply.index:
            return False
        if wrote and reply.ok:
            self._written = reply.index
        known = self._far
        self._far = _far(reply.index)
        return bool(self._far) and self._far != known

    def refused(self, reply: Reply) -> bool:
        """Whether the answer refuses what `headers` gave; what was refused is not sent again, so repeat the call."""
        if reply.status < 400 or reply.failure:
            return False
        if self._forwarding and "forwarding via header" in reply.errors:
            self._forwarding = False
            log.warning(
                "this Vault forwards no request by header: reads at a performance standby may be stale; point "
                "VAULT_ADDR at the active node, or set allow_forwarding_via_header"
            )
            return True
        if "X-Vault-Index" in reply.errors and (self._written or self._far):
            self._written = self._far = ""  # another cluster stands there now
            return True
        return False


def _far(index: str) -> str:
    """An index of the same cluster that no node reaches; empty where the form is not OpenBao's."""
    try:
        told = json.loads(base64.b64decode(index, validate=True))
    except (ValueError, RecursionError):
        return ""
    if not isinstance(told, dict) or set(told) != {"cluster", "value"} or not isinstance(told["value"], str):
        return ""
    return base64.b64encode(json.dumps({**told, "value": _FAR}, separators=(",", ":")).encode()).decode()
