"""Distributions made for a test: folders with a dist-info, as pip would leave them on sys.path."""

from __future__ import annotations

from pathlib import Path

SOURCES = {
    "raises": "raise RuntimeError('out of order')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "syntax": "def broken(:\n",
    "lacks": "import a_module_that_nobody_has\n",
    "unnamed": "",
    "constructor": "class Kms:\n    def __init__(self, uri, *, session=None):\n        raise ZeroDivisionError(uri)\n",
    "signature": "class Kms:\n    pass\n",
}
"""What can be wrong with a plugin's module, whose entry point names its attribute `Kms`."""


def install(folder: Path, kind: str) -> str:
    """A distribution whose KMS plugin is broken in this way; returns the scheme that it claims."""
    scheme = f"broken{kind}"
    folder.mkdir(exist_ok=True)
    (folder / f"mcpkeys_{scheme}.py").write_text(SOURCES[kind])
    info = folder / f"mcpkeys_{scheme}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: mcpkeys-{scheme}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[mcpkeys.kms]\n{scheme} = mcpkeys_{scheme}:Kms\n\n[mcpkeys.stores]\n{scheme} = mcpkeys_{scheme}:Kms\n"
    )
    return scheme
