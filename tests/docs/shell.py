"""The simple commands of a `console` block, as a shell would split them."""

from __future__ import annotations

import re
import shlex

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_SEPARATORS = {"|", "||", "&&", ";", "&", "(", ")"}
_REDIRECTIONS = {"<", ">", ">>", "<<<", ">&", "<&"}


def commands(text: str) -> list[list[str]]:
    """Each simple command as its words; prompts, comments, redirections and assignments in front are left out."""
    found: list[list[str]] = []
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        line = re.sub(r"^\s*\$ ", "", line)
        # $(...) is one word whatever is in it; what it runs is looked at by itself.
        for inner in re.findall(r"\$\(([^()]*)\)", line):
            found += commands(inner)
        line = re.sub(r"\$\([^()]*\)", "SUBSTITUTED", line)
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        found += _split(list(lexer))
    return found


def _split(words: list[str]) -> list[list[str]]:
    found: list[list[str]] = [[]]
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in _SEPARATORS:
            found.append([])
        elif word in _REDIRECTIONS:
            skip = True
        elif found[-1] or not _ASSIGNMENT.match(word):
            found[-1].append(word)
    return [command for command in found if command]
