"""Running a piece of a test in a forked child, bounded in time."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], str], *, seconds: float = 20.0) -> str:
    """What `work()` returns in a forked child: text without secrets.

    Raises AssertionError where the child raised (with its traceback), died, or took longer than `seconds`
    (it is killed then). The child runs nothing else: no exit handlers, no fixtures.
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 and later warn of fork in a process with threads: that it works then is what is tested.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:  # pragma: no cover - measured in the parent only
        try:
            os.close(reader)
            try:
                answer = "+" + work()
            except BaseException:
                answer = "-" + traceback.format_exc()
            with os.fdopen(writer, "wb") as pipe:
                pipe.write(answer.encode("utf-8", "replace"))
        finally:
            os._exit(0)
    os.close(writer)
    chunks: list[bytes] = []
    end = time.monotonic() + seconds
    try:
        while True:
            ready, _, _ = select.select([reader], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"the forked child did not finish within {seconds:g} s")
            chunk = os.read(reader, 65536)
            if not chunk:
                break
            chunks.append(chunk)
    finally:
        os.close(reader)
        os.waitpid(pid, 0)
    answer = b"".join(chunks).decode()
    if not answer.startswith("+"):
        raise AssertionError(f"in the forked child:\n{answer[1:] or 'it died'}")
    return answer[1:]
