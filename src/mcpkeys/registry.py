"""Plugins by URI scheme: listed without importing, loaded when used, duplicates refused.

Entry points of the groups `mcpkeys.kms` and `mcpkeys.stores`; first-party plugins register the same way as
third-party ones. A plugin that breaks at import breaks only the URIs of its own scheme.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, cast

from mcpkeys import kms as _kms
from mcpkeys import store as _store
from mcpkeys.errors import McpkeysError, PluginError
from mcpkeys.kms import Kms, KmsFactory
from mcpkeys.store import Store, StoreFactory

KMS_GROUP = "mcpkeys.kms"
STORE_GROUP = "mcpkeys.stores"
_EXTRA_OF = {"awskms": "aws", "s3": "aws", "gcpkms": "gcp", "gs": "gcp", "hashivault": "vault", "vaultkv": "vault"}


@cache
def _points() -> EntryPoints:
    """Every entry point there is. Read once: it opens a file of each installed distribution."""
    # Python 3.11 types this as the deprecated mapping, which has `select` as well.
    return cast("EntryPoints", entry_points())


def schemes(group: str) -> dict[str, EntryPoint]:
    """Scheme -> entry point, without importing any plugin.

    Raises `PluginError` where two distributions claim one scheme for different objects: which one would
    serve a secret must never depend on the order of a directory.
    """
    found: dict[str, EntryPoint] = {}
    for point in _points().select(group=group):
        known = found.get(point.name)
        if known is not None and known.value != point.value:
            raise PluginError(
                f"two plugins claim the scheme {point.name}:// ({known.value} and {point.value})",
                next="uninstall one of the two distributions",
                code="plugin-duplicate",
            )
        found[point.name] = point
    return found


def _load(group: str, scheme: str) -> Any:
    points = schemes(group)
    point = points.get(scheme)
    if point is None:
        raise PluginError(
            f"no plugin serves {scheme}://",
            why=f"installed: {', '.join(f'{name}://' for name in sorted(points)) or 'none'}",
            next="correct the scheme, or install the plugin that provides it",
            code="scheme-unknown",
        )
    extra = _EXTRA_OF.get(scheme)
    try:
        return point.load()
    except ModuleNotFoundError as exc:
        if extra is not None and not (exc.name or "").startswith("mcpkeys"):
            raise PluginError(
                f"{scheme}:// needs the extra {extra!r}",
                why=f"the module {exc.name} is not installed",
                next=f'pip install "mcpkeys[{extra}]"',
                code="extra-missing",
            ) from None
        raise _broken(scheme, point, exc) from exc
    except Exception as exc:
        raise _broken(scheme, point, exc) from exc


def _broken(scheme: str, point: EntryPoint, exc: BaseException) -> PluginError:
    return PluginError(
        f"the plugin for {scheme}:// ({point.value}) cannot be loaded",
        why=f"{type(exc).__name__} at import",
        next="upgrade or uninstall that plugin; other schemes are not affected",
        code="plugin-broken",
    )


def open_kms(uri: str, *, session: Any = None) -> Kms:
    """The KEK that `uri` names. Contacts nobody. Raises `UriError`, `PluginError`, `ConfigurationError`."""
    scheme = _kms.scheme_of(uri)
    factory = cast("KmsFactory", _load(KMS_GROUP, scheme))
    try:
        return factory(uri, session=session)
    except McpkeysError:
        raise
    except ModuleNotFoundError as exc:
        raise _missing(scheme, exc) from None


def open_store(uri: str, *, session: Any = None) -> Store:
    """The store that `uri` names; a plain path is `file://`. Contacts nobody. Raises as `open_kms`."""
    scheme = _store.scheme_of(uri)
    factory = cast("StoreFactory", _load(STORE_GROUP, scheme))
    try:
        return factory(uri, session=session)
    except McpkeysError:
        raise
    except ModuleNotFoundError as exc:
        raise _missing(scheme, exc) from None


def _missing(scheme: str, exc: ModuleNotFoundError) -> PluginError:
    extra = _EXTRA_OF.get(scheme)
    return PluginError(
        f"{scheme}:// needs a module that is not installed: {exc.name}",
        next=f'pip install "mcpkeys[{extra}]"' if extra else "install what the plugin needs",
        code="extra-missing",
    )
