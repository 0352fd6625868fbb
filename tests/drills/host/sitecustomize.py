"""The clock of one host of a drill: `HOST_CLOCK_FILE` holds by how many seconds it is wrong. Loaded by PYTHONPATH."""

import os
import time

try:
    with open(os.environ["HOST_CLOCK_FILE"]) as _stream:
        _wrong_by = float(_stream.read())
except (KeyError, OSError, ValueError):
    _wrong_by = 0.0

if _wrong_by:
    _time, _time_ns = time.time, time.time_ns
    time.time = lambda: _time() + _wrong_by
    time.time_ns = lambda: _time_ns() + int(_wrong_by * 1e9)
