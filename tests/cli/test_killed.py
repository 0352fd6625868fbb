"""`kill -9` of a command at every call that writes: the keyset is whole, and the same command completes."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

from cli.conftest import Shell

WRITERS = ("replace", "rename", "fsync", "write", "open", "unlink", "link", "ftruncate", "fchmod", "fchown", "mkdir")


def counted(function: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)

    return wrapper


def kill_at(shell: Shell, count: int, *arguments: str) -> int:
    """Run the command in a forked child that kills itself at the `count`-th call that can change a file."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            left = [count]
            for name in WRITERS:
                setattr(os, name, counted(getattr(os, name), left))
            code = shell.run(*arguments).code
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def test_rotate_killed_at_every_write_completes_afterwards(shell: Shell) -> None:
    shell.init()
    first = shell.keyset.read_bytes()
    killed, before, after = 0, 0, 0
    for count in range(1, 300):
        code = kill_at(shell, count, "rotate", "--phase", "1", "--yes")
        if code == 0:
            break
        assert code == -signal.SIGKILL
        killed += 1
        document = json.loads(shell.keyset.read_bytes())
        assert document["generation"] in (1, 2)
        before += document["generation"] == 1
        after += document["generation"] == 2
        assert shell.json("verify")["ok"]
        again = shell.json("rotate", "--phase", "1", "--yes")
        assert again["verdict"] in ("do", "done")
        assert again["generation"] == 2
        shell.keyset.write_bytes(first)
    else:
        raise AssertionError("it never finished")
    assert killed > 5
    assert before
    assert after, "no write point after the rename was hit"
    leftovers = [p.name for p in shell.folder.iterdir() if p.name not in {shell.keyset.name, shell.kek.name}]
    assert all(name.startswith((".", "fleet.keyset.json")) for name in leftovers), leftovers
