"""What an error shows of a value from outside that cannot be right.

What was pasted by mistake may be a secret: a token where a URI belongs, a passphrase where a file's name does. So a
value that cannot be read is told by its shape, and never whole unless it is short or plainly a path.
"""

from __future__ import annotations

import re

from mcpkeys.findings import printable

SHORT = 16
FRONT = 6
MAX_WORD_CHARS = 24

SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,31})://")
"""What every URI of ours begins with."""

_NAME = rf"[A-Za-z0-9._-]{{1,{MAX_WORD_CHARS}}}"
_PATH = re.compile(rf"[/~].*|\.{{1,2}}/.*|.*\.[A-Za-z0-9]{{1,8}}|{_NAME}(?:/{_NAME})*", re.DOTALL)
_WORD = re.compile(rf"(?<![^\s'\"(=])(?![/-])[^\s'\"()=]{{{MAX_WORD_CHARS + 1},}}=*")


def glimpse(text: str) -> str:
    """`text` in quotes where it is at most 16 characters long, else its first 6 and its length; always printable."""
    if len(text) <= SHORT:
        return f"'{printable(text)}'"
    return f"'{printable(text[:FRONT])}…' ({len(text):,} characters)"


def glimpse_of_uri(uri: str) -> str:
    """Its scheme and its length: behind the scheme may stand anything. A glimpse where it has none."""
    scheme = SCHEME.match(uri)
    return glimpse(uri) if scheme is None else f"{scheme[0]}… ({len(uri):,} characters)"


def is_path(text: str) -> bool:
    """Whether `text` may be meant as a file's path.

    It begins with `/`, `~`, `./` or `../`, or has an extension, or consists of names of at most 24 characters each:
    shorter than keys and tokens are, and without the signs that base64 has.
    """
    return _PATH.fullmatch(text) is not None


def glimpse_of_path(text: str) -> str:
    """`text` itself where it is plainly a path, printable; a glimpse otherwise."""
    return printable(text, 4096) if is_path(text) else glimpse(text)


def without_long_words(message: str) -> str:
    """A message of another library, the words in it that are no option, path or language cut to a glimpse."""
    return _WORD.sub(lambda word: f"{word[0][:FRONT]}… ({len(word[0]):,} characters)", message)
