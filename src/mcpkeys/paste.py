"""One token as a person pastes it: what is around it, said and taken off."""

from __future__ import annotations

import re
from urllib.parse import unquote

from mcpkeys.capture import TOKEN

_QUOTES = "\"'`\u201c\u201d\u2018\u2019"


def tidy(text: str) -> tuple[str, tuple[str, ...]]:
    """The token inside `text` and what was taken off around it, outermost first; the same text and () where nothing.

    Takes off white space, quotes, a name and colon or equals sign before, a comma after; removes line breaks inside;
    undoes URL-encoding. Never touches the token's own characters: padding stays, as a server would see it.
    """
    trimmed: list[str] = []

    def step(after: str, what: str) -> None:
        nonlocal text
        if after != text:
            text = after
            if what not in trimmed:
                trimmed.append(what)

    for _ in range(4):
        before = text
        step(text.strip(), "white space around it")
        step(text.strip("\ufeff\u200b\u2060"), "invisible characters around it")
        step(text.rstrip(",;"), "a comma after it")
        step(re.sub(r"^[\\\s\"'{]*(?:requestState|request_state)[\\\"']*\s*[:=]\s*", "", text), "the name before it")
        if len(text) >= 2 and text[0] in _QUOTES and text[-1] in _QUOTES:
            step(text[1:-1], "quotes around it")
        step(text.removeprefix('\\"').removesuffix('\\"'), "escaped quotes around it")
        if text == before:
            break
    if re.search(r"%[0-9A-Fa-f]{2}", text):
        step(unquote(text, errors="surrogateescape"), "URL-encoding")
    found = TOKEN.findall(text)
    wrapped = text.startswith(("mk1.", "v1.")) and re.search(r"[\r\n]|\\[rn]", text) is not None
    if len(found) == 1 and not wrapped and found[0] != text:
        step(found[0], "text around it")
    step(re.sub(r"(?:\\[rn]|\s)+", "", text) if wrapped else text, "line breaks inside it")
    return text, tuple(trimmed)
