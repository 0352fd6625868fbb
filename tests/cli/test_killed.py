"""`kill -9` of a command at every call that writes: the keyset is whole, and the same command completes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from cli.conftest import Shell

# Runs the command, and kills its own process at the n-th call that can change a file.
KILLER = """
import os, signal, sys
left = int(sys.argv[1])
def counted(function):
    def wrapper(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return wrapper
for name in ("replace", "rename", "fsync", "write", "open", "unlink", "link", "ftruncate", "fchmod", "fchown", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
from mcpkeys_cli.main import main
code = main(sys.argv[2:])
print(left, file=sys.stderr)
sys.exit(code)
"""


def kill_at(shell: Shell, count: int, *arguments: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(count), *arguments],
        env=shell.environ,
        capture_output=True,
        timeout=60,
    )
    return done.returncode


def test_rotate_killed_at_every_write_completes_afterwards(shell: Shell) -> None:
    shell.init()
    first = shell.keyset.read_bytes()
    killed, before, after = 0, 0, 0
    for count in range(1, 200):
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
