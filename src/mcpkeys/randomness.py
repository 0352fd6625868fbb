"""Randomness for nonces: straight from the kernel for every token, never pooled, never counted."""

from __future__ import annotations

import os
from collections.abc import Callable


def kernel() -> Callable[[int], bytes]:
    """What gives that many bytes (up to 256) of the kernel's randomness, and waits at boot until there is any.

    `os.getrandom` where it works, else `os.urandom`, which on Linux asks the same system call. Both wait for the
    kernel alike; but `os.urandom` lets go of the interpreter meanwhile, and where another thread computes, the seal
    gets it back after up to 5 ms (`sys.getswitchinterval`). A sandbox may forbid the call, so it is tried once.
    """
    getrandom: Callable[[int], bytes] | None = getattr(os, "getrandom", None)
    if getrandom is None:
        return os.urandom
    try:
        getrandom(1)
    except OSError:
        return os.urandom
    return getrandom


random_bytes = kernel()
