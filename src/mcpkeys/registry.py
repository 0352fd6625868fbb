"""Plugins by URI scheme: listed without importing, loaded when used, duplicates refused.

Entry points of the groups `mcpkeys.kms` and `mcpkeys.stores`; first-party plugins register the same way as
third-party ones. A plugin that breaks at import breaks only the URIs of its own scheme.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar, cast

from mcpkeys import kms as _kms
from mcpkeys import store as _store
from mcpkeys.errors import McpkeysError, PluginError
from mcpkeys.kms import Kms, KmsFactory
from mcpkeys.store import Store, StoreFactory

KMS_GROUP = "mcpkeys.kms"
STORE_GROUP = "mcpkeys.stores"
T = TypeVar("T")
_EXTRA_OF = {"awskms": "aws", "s3": "aws", "gcpkms": "gcp", "gs": "gcp", "hashivault": "vault", "vaultkv": "vault"}


@cache
def _points() -> EntryPoints:
    """Every entry point there is. Read once: it opens a file of each installed distribution."""
    # Python 3.11 types this as the deprecated mapping, which has `select` as well.
    return cast("EntryPoints", entry_points())


def schemes(group: str) -> dict[str, EntryPoint]:
    """Scheme -> entry point, without importing any plugin. Of a scheme that two claim, one of the two."""
    return {point.name: point for point in _points().select(group=group)}


def _point(group: str, scheme: str) -> EntryPoint:
    """The one plugin for this scheme.

    Raises `PluginError` where none is installed, and where two distributions claim it for different objects: which
    one would serve a secret must never depend on the order of a directory.
    """
    claims = {point.value: point for point in _points().select(group=group, name=scheme)}
    if not claims:
        raise PluginError(
            f"no plugin serves {scheme}://",
            why=f"installed: {', '.join(f'{name}://' for name in sorted(schemes(group))) or 'none'}",
            next="correct the scheme, or install the plugin that provides it",
            code="scheme-unknown",
        )
    if len(claims) > 1:
        raise PluginError(
            f"several plugins claim the scheme {scheme}:// ({', '.join(sorted(claims))})",
            why="which of them would see the keys must not depend on chance",
            next="uninstall all but one of these distributions; other schemes are not affected",
            code="plugin-duplicate",
        )
    return next(iter(claims.values()))


def _load(group: str, scheme: str) -> Any:
    point = _point(group, scheme)
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
    except (Exception, SystemExit) as exc:
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
    return _made(factory, scheme, uri, session)


def open_store(uri: str, *, session: Any = None) -> Store:
    """The store that `uri` names; a plain path is `file://`. Contacts nobody. Raises as `open_kms`."""
    scheme = _store.scheme_of(uri)
    factory = cast("StoreFactory", _load(STORE_GROUP, scheme))
    return _made(factory, scheme, uri, session)


def _made(factory: Callable[..., T], scheme: str, uri: str, session: Any) -> T:
    try:
        return factory(uri, session=session)
    except McpkeysError:
        raise
    except ModuleNotFoundError as exc:
        raise _missing(scheme, exc) from None
    except Exception as exc:
        # From None: the plugin's frames hold what the caller brought.
        raise PluginError(
            f"the plugin for {scheme}:// failed",
            why=f"{type(exc).__name__} while it was opened",
            next="upgrade or uninstall that plugin; other schemes are not affected",
            code="plugin-broken",
        ) from None


def _missing(scheme: str, exc: ModuleNotFoundError) -> PluginError:
    extra = _EXTRA_OF.get(scheme)
    return PluginError(
        f"{scheme}:// needs a module that is not installed: {exc.name}",
        next=f'pip install "mcpkeys[{extra}]"' if extra else "install what the plugin needs",
        code="extra-missing",
    )
