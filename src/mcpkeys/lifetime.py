"""What happens to open codecs when their process forks, exits, or is told to stop.

A forked child is another instance at once; a clean exit says farewell, also where SIGTERM causes it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from types import FrameType
from typing import Protocol


class Living(Protocol):
    """An open codec, as far as its process is concerned."""

    def after_fork(self) -> None: ...

    def close(self) -> None: ...


# By id, in plain dictionaries: copying one is a single step, whatever other threads do. Those that report live until
# they are closed, for their farewell must not depend on the garbage collector.
_kept: dict[int, Living] = {}
_known: weakref.WeakValueDictionary[int, Living] = weakref.WeakValueDictionary()
_plugins: set[type] = set()
_turn = 0
_sigterm_held = False


def keep(codec: Living, plugins: Iterable[type]) -> None:
    """From now on: told of forks, closed at exit. Until `forget`.

    `plugins` are the classes that it works with. They may have fork handlers of their own, which renew their locks and
    were registered when they were loaded; ours has to come after them.
    """
    global _turn
    _kept[id(codec)] = codec
    fresh = set(plugins) - _plugins
    if fresh and hasattr(os, "register_at_fork"):
        _plugins.update(fresh)
        _turn += 1
        os.register_at_fork(after_in_child=partial(_after_fork_in_child, _turn))


def know(codec: Living) -> None:
    """From now on, while it lives: told of forks."""
    _known[id(codec)] = codec


def forget(codec: Living) -> None:
    """It is closed."""
    _kept.pop(id(codec), None)


def hold_sigterm() -> None:
    """Say farewell before SIGTERM ends this process, whoever handles it. Only for a process with another thread.

    Where nobody does: close, then die of it, as the default would. Where a server does (uvicorn loads an application
    while its handler is in place), its handler goes on to decide when to stop. Such servers restore the default
    afterwards and raise the signal again, which would end the process before `atexit` runs; so the main thread holds
    it back until the codecs are closed. The refresh thread does not: a second SIGTERM from outside still arrives.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    former = signal.getsignal(signal.SIGTERM)
    if former is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _close_and_die)
    elif callable(former) and former is not _close_and_die and getattr(former, "func", None) is not _hold_back:
        signal.signal(signal.SIGTERM, partial(_hold_back, former))


def _close_and_die(number: int, frame: FrameType | None) -> None:
    # On another thread: the main one may hold any lock at this moment.
    closing = threading.Thread(target=_close_all, daemon=True)
    closing.start()
    closing.join(3.0)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _hold_back(former: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None) -> None:
    global _sigterm_held
    _sigterm_held = True
    signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    former(number, frame)


def _close_all() -> None:
    for codec in list(_kept.values()):
        codec.close()


def _close_at_exit() -> None:
    _close_all()
    if _sigterm_held:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _after_fork_in_child(turn: int) -> None:
    if turn != _turn:
        return
    for codec in [*_kept.values(), *_known.values()]:
        codec.after_fork()
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # A child of multiprocessing ends without atexit, but runs its own finalizers; it forgets the parent's first.
        util.register_after_fork(_close_all, lambda _: util.Finalize(None, _close_all, exitpriority=0))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(_after_fork_in_child, _turn))
atexit.register(_close_at_exit)
