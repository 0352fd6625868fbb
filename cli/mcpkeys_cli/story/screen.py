"""What a person sees while the story runs: a line for each thing that happens, and one living line below them.

Both go to stderr. The living line is only for a terminal; `rich` is imported only there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mcpkeys_cli.output import colour, escape, note, paint


class Screen:
    """Says what happens. A context manager: inside it, `living()` is shown and kept current on a terminal."""

    def __init__(self, living: Callable[[], str]) -> None:
        self._began = time.monotonic()
        self._living = living
        self._live: Any = None

    def __enter__(self) -> Screen:
        if colour():
            from rich.console import Console
            from rich.live import Live
            from rich.text import Text

            console = Console(stderr=True, highlight=False)
            self._live = Live(
                console=console,
                get_renderable=lambda: Text(f"{self._age()} {self._living()}", no_wrap=True, overflow="ellipsis"),
                refresh_per_second=4,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def say(self, text: str) -> None:
        """One line, with the time since the beginning."""
        if self._live is None:
            note(f"{paint(self._age(), 'dim')} {escape(text)}")
            return
        from rich.text import Text

        self._live.console.print(Text.assemble((self._age(), "dim"), f" {escape(text)}"))

    def _age(self) -> str:
        return f"[{time.monotonic() - self._began:5.1f} s]"
