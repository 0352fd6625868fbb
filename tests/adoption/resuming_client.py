"""A client that begins a round, stores it and leaves; started again, it finishes it: `resuming_client.py URL FILE`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import anyio
from mcp.types import InputRequiredResult
from servers.sdkfleet import clients, step

ARGUMENTS = {"amount": 7, "reason": "broken"}


async def main(url: str, stored: Path) -> None:
    before = InputRequiredResult.model_validate_json(stored.read_text()) if stored.exists() else None
    async with clients(url) as (client,):
        result = await step(client, "refund", ARGUMENTS, before)
        while before is not None and isinstance(result, InputRequiredResult):
            result = await step(client, "refund", ARGUMENTS, result)
    if isinstance(result, InputRequiredResult):
        stored.write_text(result.model_dump_json(by_alias=True))
        print(json.dumps({"done": False, "pid": os.getpid()}))
    else:
        print(json.dumps({"done": True, "text": result.content[0].text, "pid": os.getpid()}))


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], Path(sys.argv[2]))
