"""A keyset in a KV v2 secret of Vault or OpenBao."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

from mcpkeys.errors import ConfigurationError, Conflict, McpkeysError, NotFound, StoreUnreachable
from mcpkeys.store import MAX_BODY_BYTES, Found, check_instance
from mcpkeys_vault.client import VaultClient, open_client
from mcpkeys_vault.document import Slot, nanoseconds, number_of, pack, unpack
from mcpkeys_vault.policy import Role
from mcpkeys_vault.reply import STORE_EDGE, Reply
from mcpkeys_vault.rights import excess_rights
from mcpkeys_vault.uri import parse_keyset

_READERS = 8


class VaultKvStore:
    """`vaultkv://MOUNT/PATH?namespace=N`: the keyset at MOUNT/PATH, reports at MOUNT/PATH.reports/INSTANCE.

    Needs KV version 2: version 1 has no compare-and-swap, and would take a write meant for version 2 for a secret
    of its own; it is found out before the first call and refused.

    Rights. A server: `read` on `MOUNT/data/PATH`; `create`, `update` on `MOUNT/data/PATH.reports/*` and, to keep one
    version of each report instead of ten, on `MOUNT/metadata/PATH.reports/*`. The operator also: `create`, `update` on
    `MOUNT/data/PATH`, `read` on the reports, `list` and `delete` on their metadata.
    """

    def __init__(self, uri: str, *, session: Any = None) -> None:
        """Contacts nobody. `session`: a caller's `hvac.Client`. Raises `UriError`, `SettingError`, `PluginError`."""
        self._where = parse_keyset(uri)
        self._client: VaultClient = open_client(session)
        self._mount = ""
        self._bounded: set[str] = set()
        self.uri = self._where.uri

    def __repr__(self) -> str:
        return f"VaultKvStore({self.uri!r})"

    def read(self, known: str | None, *, fresh: bool, deadline: float) -> Found | None:
        """The keyset, or None where its version is still `known`. Raises `NotFound`, also for a deleted version."""
        slot = self._slot(self._path(), fresh=fresh, deadline=deadline)
        if slot.body is None:
            raise NotFound(
                f"{self.uri} holds nothing",
                why="its latest version is deleted" if slot.number else "nothing was ever written there",
                next="`mcpkeys init`, or correct the URI",
            )
        if known is not None and slot.version == known:
            return None
        return Found(slot.body[: MAX_BODY_BYTES + 1], slot.version, slot.modified_at)

    def replace(self, body: bytes, expected: str | None, *, deadline: float) -> str:
        """Compare-and-swap by `cas`. Raises `Conflict`; a lost reply is resolved by reading back."""
        path = self._path()
        before = self._slot(path, fresh=True, deadline=deadline)
        now = before.version if before.body is not None else None
        if now != expected or (expected is not None and number_of(expected) is None):
            raise self._conflict(f"it is {now or 'empty'}, not {expected or 'empty'}")
        # Leave time to find out what became of a write whose answer does not come.
        left = deadline - time.monotonic()
        reply = self._write(path, body, before.number, deadline=deadline - min(2.0, left / 3))
        if reply.ok:
            return self._written(reply).version
        if "check-and-set" in reply.errors and reply.status == 400:
            raise self._conflict("another writer was faster")
        if reply.maybe_done and not _too_large(reply):
            return self._resolve(path, body, before, reply, deadline)
        raise self._error(reply, "nothing was written", "create and update", "data", path)

    def reports(self, *, deadline: float) -> Iterator[Found]:
        """Every report: a list and one read each, eight at a time. Complete, or an error."""
        prefix = self._path(".reports")
        # Vault's LIST is a GET with a parameter as well, which proxies and firewalls let through.
        url = self._url("metadata", prefix, deadline) + "/?list=true"
        reply = self._call("GET", url, fresh=True, deadline=deadline)
        if reply.missing:
            return iter(())
        keys = reply.data.get("keys")
        if not reply.ok:
            raise self._error(reply, "the reports cannot be listed", "list", "metadata", prefix)
        if not isinstance(keys, list):
            raise StoreUnreachable(f"{self.uri}: the reports cannot be listed", why="garbage", next="see VAULT_ADDR")
        names = [name for name in keys if isinstance(name, str) and _is_instance(name)]

        def one(name: str) -> Found | None:
            slot = self._slot(f"{prefix}/{name}", fresh=True, deadline=deadline)
            return None if slot.body is None else Found(slot.body, slot.version, slot.modified_at, name)

        if len(names) <= 1:
            found = [one(name) for name in names]
        else:
            with ThreadPoolExecutor(min(_READERS, len(names)), thread_name_prefix="mcpkeys-reports") as pool:
                found = list(pool.map(one, names))
        return iter([item for item in found if item is not None])

    def put_report(self, instance: str, body: bytes, *, deadline: float) -> None:
        """Write one report. Keeps one version of it where the token may say so, else as many as the mount does."""
        path = f"{self._path('.reports')}/{check_instance(instance)}"
        reply = self._write(path, body, None, deadline=deadline)
        for _ in range(3):
            if reply.ok or "check-and-set" not in reply.errors:
                break
            # A mount with cas_required: a report has one writer, so its own last version is the right one.
            slot = self._slot(path, fresh=True, deadline=deadline)
            reply = self._write(path, body, slot.number, deadline=deadline)
        if not reply.ok:
            raise self._error(reply, "the report was not written", "create and update", "data", path)
        self._written(reply)
        if instance not in self._bounded:
            self._bounded.add(instance)
            self._call("POST", self._url("metadata", path, deadline), {"max_versions": 1}, deadline=deadline)

    def delete_report(self, instance: str, *, deadline: float) -> None:
        """Delete one report with all its versions; one that is not there is no error."""
        path = f"{self._path('.reports')}/{check_instance(instance)}"
        reply = self._call("DELETE", self._url("metadata", path, deadline), deadline=deadline)
        self._bounded.discard(instance)
        if not reply.ok and not reply.missing:
            raise self._error(reply, "the report was not deleted", "delete", "metadata", path)

    def now(self, *, deadline: float) -> tuple[float, float]:
        """Vault's clock by `sys/health` (which needs no token), in whole seconds: resolution 1."""
        reply = self._client.anonymous("GET", "sys/health?standbyok=true&perfstandbyok=true", deadline=deadline)
        if reply.failure or reply.status >= 400:
            raise self._error(reply, "its clock cannot be read", "", "", "")
        seconds = reply.body.get("server_time_utc")
        if isinstance(seconds, int) and not isinstance(seconds, bool):
            return float(seconds), 1.0
        if reply.date is None:
            raise StoreUnreachable(f"{self.uri}: its clock cannot be read", why="garbage", next="see VAULT_ADDR")
        return reply.date, 1.0

    def excess_rights(self, role: Role, *, deadline: float) -> list[str]:
        """What this identity may do with the keyset and its reports beyond `role`: for `mcpkeys doctor`."""
        return excess_rights(role, (), self.uri, deadline=deadline, client=self._client)

    def close(self) -> None:
        """Drop connections; the object works again after it."""
        self._client.close()

    def _resolve(self, path: str, body: bytes, before: Slot, lost: Reply, deadline: float) -> str:
        """What became of a write whose answer was lost: our bytes as the next version means that it was done."""
        number = before.number + 1
        mine = self._slot(path, fresh=True, deadline=deadline, number=number)
        if mine.number == number and mine.body == body:
            return mine.version
        if mine.number == number:
            raise self._conflict("another writer was faster")
        raise self._error(lost, "it is not known whether the write was done", "create and update", "data", path)

    def _slot(self, path: str, *, fresh: bool, deadline: float, number: int = 0) -> Slot:
        url = self._url("data", path, deadline) + (f"?version={number}" if number else "")
        reply = self._call("GET", url, fresh=fresh, deadline=deadline)
        if reply.missing:
            return Slot()
        if reply.ok or (not reply.failure and reply.status == 404 and reply.data):
            slot = unpack(reply.data)
            if slot is None:
                raise StoreUnreachable(f"{self.uri} answered no KV v2 data", why="garbage", next="see VAULT_ADDR")
            return slot
        raise self._error(reply, "it cannot be read", "read", "data", path)

    def _write(self, path: str, body: bytes, cas: int | None, *, deadline: float) -> Reply:
        payload: dict[str, Any] = {"data": pack(body), "options": {} if cas is None else {"cas": cas}}
        url = self._url("data", path, deadline)
        return self._call("POST", url, payload, deadline=deadline, repeatable=cas is None)

    def _written(self, reply: Reply) -> Slot:
        number, created = reply.data.get("version"), nanoseconds(reply.data.get("created_time"))
        if not isinstance(number, int) or created is None:
            raise StoreUnreachable(f"{self.uri} answered a write with garbage", next="see what answers at VAULT_ADDR")
        return Slot(number, created)

    def _url(self, kind: str, path: str, deadline: float) -> str:
        if not self._mount:
            self._mount = self._find_mount(deadline)
        return quote(f"{self._mount}/{kind}/{path[len(self._mount) + 1 :]}")

    def _path(self, suffix: str = "") -> str:
        return self._where.path + suffix

    def _find_mount(self, deadline: float) -> str:
        """Where the mount ends and that it is KV v2. The server tells it to every token with a right below it."""
        reply = self._call("GET", quote(f"sys/internal/ui/mounts/{self._where.path}"), deadline=deadline)
        if reply.status == 403 and not reply.failure and "preflight" in reply.errors:
            raise STORE_EDGE.denied(
                f"{self.uri} cannot be used",
                why="nothing is mounted there, or this token has no right below it",
                next=f"correct the URI, or grant read on {self._guess('data')}: see `mcpkeys policy vault`",
                code="permission",
            )
        if not reply.ok:
            raise self._error(reply, "its mount cannot be looked up", "read", "data", self._where.path)
        data = reply.data
        mount = str(data.get("path", "")).strip("/")
        options = data.get("options")
        if (
            data.get("type") not in ("kv", "generic")
            or not isinstance(options, Mapping)
            or options.get("version") != "2"
        ):
            raise ConfigurationError(
                f"{self.uri} is not in a KV version 2 engine",
                why=f"{mount}/ is of type {str(data.get('type'))[:40]}"
                + (", version 1: it has no compare-and-swap" if data.get("type") in ("kv", "generic") else ""),
                next=f"vault kv enable-versioning {mount}/, or choose another mount",
                code="kv-not-v2",
            )
        if not mount or not self._where.path.startswith(f"{mount}/"):
            raise ConfigurationError(
                f"{self.uri} names a mount but no secret in it",
                why=f"the mount is {mount}/",
                next=f"for example vaultkv://{mount}/mcpkeys/fleet",
            )
        return mount

    def _guess(self, kind: str) -> str:
        mount, _, rest = self._where.path.partition("/")
        return f"{mount}/{kind}/{rest}"

    def _error(self, reply: Reply, what: str, verb: str, kind: str, path: str) -> McpkeysError:
        if _too_large(reply):
            return ConfigurationError(
                f"{self.uri}: {what}",
                why=f"Vault takes no entry this large: {reply.errors}",
                next="`mcpkeys purge`, or raise max_entry_size and max_request_size",
                code="too-large",
            )
        if "Upgrading from non-versioned" in reply.errors:
            return StoreUnreachable(f"{self.uri}: {what}", why=reply.errors, next="try again in a minute")
        mount = self._mount or path.partition("/")[0]
        right = f"{verb} on {mount}/{kind}/{path[len(mount) + 1 :]}" if verb else ""
        return STORE_EDGE.error(reply, what=f"{self.uri}: {what}", right=right)

    def _conflict(self, why: str) -> Conflict:
        return Conflict(f"{self.uri} changed meanwhile", why=why, next="look at `mcpkeys status`, then try again")

    def _call(
        self,
        method: str,
        url: str,
        payload: Mapping[str, Any] | None = None,
        *,
        fresh: bool = False,
        deadline: float,
        repeatable: bool = True,
    ) -> Reply:
        return self._client.call(
            method,
            url,
            payload,
            namespace=self._where.namespace,
            fresh=fresh,
            deadline=deadline,
            repeatable=repeatable,
        )


def _too_large(reply: Reply) -> bool:
    return reply.status == 413 or (reply.status in (400, 500) and "too large" in reply.errors)


def _is_instance(name: str) -> bool:
    try:
        return bool(check_instance(name))
    except ValueError:
        return False
