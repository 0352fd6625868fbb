"""The kept corpus: one file per target, inputs that once reached a place no other input had reached, or broke it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"
MAX_INPUTS = 60
MAX_INPUT_BYTES = 4000


def read(target: str) -> list[bytes]:
    """The inputs of one target."""
    path = FOLDER / f"{target}.json"
    return [base64.b64decode(text) for text in json.loads(path.read_text())] if path.exists() else []


def write(target: str, inputs: list[bytes]) -> None:
    """Keep these, the shortest first, within bounds."""
    chosen = sorted({data for data in inputs if len(data) <= MAX_INPUT_BYTES}, key=lambda data: (len(data), data))
    texts = [base64.b64encode(data).decode() for data in chosen[:MAX_INPUTS]]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.json").write_text(json.dumps(texts, indent=0) + "\n")
