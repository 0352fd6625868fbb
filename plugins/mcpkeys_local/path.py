"""Paths in `local://` and `file://` URIs."""

from __future__ import annotations

import os
import posixpath
import stat
from urllib.parse import quote, unquote_to_bytes

from mcpkeys.errors import UriError
from mcpkeys.glimpse import glimpse, glimpse_of_path, glimpse_of_uri
from mcpkeys.kms import MAX_URI_CHARS

_LITERAL = "/-._~!$&'()*+,;=:@"  # RFC 3986 pchar and the slash


def path_of(uri: str, scheme: str, example: str) -> str:
    """The absolute path of `SCHEME:///PATH`, percent-decoded, with doubled slashes and `.` segments dropped.

    Raises `UriError` for a host, a query, a fragment, a relative path, `..` (what it means depends on symbolic
    links), a path that ends in a slash, a bad percent escape or a NUL.
    """
    rest = uri[len(scheme) + 3 :]
    if not rest.startswith("/"):
        host = rest.split("/", 1)[0]
        why = f"{glimpse(host)} stands where a host would: the path must begin with a slash, three slashes in all"
        raise UriError(f"{glimpse_of_uri(uri)} names no absolute path", why=why, next=f"for example {example}")
    for mark, name in (("?", "query"), ("#", "fragment")):
        if mark in rest:
            why = f"a {scheme}:// URI has no {name}"
            raise UriError(
                f"{glimpse_of_uri(uri)} cannot be read", why=why, next=f"write a literal {mark} as %{ord(mark):02X}"
            )
    if not _escapes_are_whole(rest):
        why = "a percent sign is not followed by two hexadecimal digits"
        raise UriError(f"{glimpse_of_uri(uri)} cannot be read", why=why, next="write a literal % as %25")
    return checked(unquote_to_bytes(rest).decode("utf-8", "surrogateescape"), uri, example)


def checked(path: str, given: str, example: str) -> str:
    """`path` normalised, or `UriError`; `given` is what the message names."""
    shown = glimpse_of_uri(given) if "://" in given else glimpse_of_path(given)
    if "\0" in path:
        raise UriError(f"{shown} names no file", why="it has a NUL in its path", next=f"for example {example}")
    if path.endswith(("/", "/.")):
        why = "it ends in a slash" if path.endswith("/") else "it ends in a dot: the folder itself"
        raise UriError(f"{shown} names no file", why=why, next=f"for example {example}")
    if ".." in path.split("/"):
        why = "it contains `..`, whose meaning depends on symbolic links"
        raise UriError(f"{shown} is refused", why=why, next=f"write the path without it, for example {example}")
    return "/" + posixpath.normpath(path).lstrip("/")


def hazards_of(path: str) -> list[str]:
    """What about the folder of a file lets other users replace it, one sentence each: for `mcpkeys doctor`."""
    folder = posixpath.dirname(path) or "/"
    try:
        mode = os.stat(folder).st_mode
    except OSError:
        return []
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return [f"any user may replace files in {folder} (mode {stat.S_IMODE(mode):04o})"]
    return []


def uri_of(path: str, scheme: str) -> str:
    """The canonical URI of an absolute path. Raises `UriError` where escaping makes it longer than a URI may be."""
    uri = f"{scheme}://{quote(path.encode('utf-8', 'surrogateescape'), safe=_LITERAL)}"
    if len(uri) > MAX_URI_CHARS:
        raise UriError(
            f"a path of {len(path):,} characters is too long for a URI",
            why=f"written as a URI it has {len(uri):,} characters; {MAX_URI_CHARS:,} are the most",
            next="use a shorter path, or one without characters that have to be escaped",
        )
    return uri


def _escapes_are_whole(text: str) -> bool:
    parts = text.split("%")[1:]
    return all(len(part) >= 2 and all(c in "0123456789abcdefABCDEF" for c in part[:2]) for part in parts)
