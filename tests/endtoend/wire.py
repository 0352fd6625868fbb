"""What passed between mcpkeys and a KMS, read from the wire: which call, for which purpose, with which bytes."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from servers.aws_faults import Exchange, Fault, FaultyProxy, Reply
from servers.fault_proxy import Answer, FaultProxy, Request


@dataclass(frozen=True)
class Call:
    """One call to a KMS.

    Attributes:
        action: `Decrypt`, `decrypt`: in the KMS's own spelling.
        purpose: `seal`, `sign`, `report`; empty where the call carries no context.
        sent, got: the bodies.
    """

    action: str
    purpose: str
    sent: bytes
    got: bytes


def counted(calls: Iterable[Call]) -> Counter[tuple[str, str]]:
    """(action, purpose) -> how often."""
    return Counter((call.action, call.purpose) for call in calls)


def aws_calls(proxy: FaultyProxy) -> list[Call]:
    """The KMS calls that a proxy in front of AWS has seen."""
    return [_of_aws(seen) for seen in list(proxy.seen) if seen.action.startswith("kms:")]


def _of_aws(seen: Exchange) -> Call:
    body = json.loads(seen.body)
    contexts = [body[name] for name in ("EncryptionContext", "SourceEncryptionContext") if name in body]
    if "DestinationEncryptionContext" in body:
        assert body["DestinationEncryptionContext"] == contexts[0], "a rewrap keeps the context"
    purpose = contexts[0]["mcpkeys:purpose"] if contexts else ""
    return Call(seen.action.removeprefix("kms:"), purpose, seen.body, seen.answer)


class BaoWire:
    """A proxy in front of OpenBao that keeps every Transit call; `fault` may answer in the server's place."""

    def __init__(self, port: int) -> None:
        self.proxy = FaultProxy(f"127.0.0.1:{port}")
        self.reset()

    def reset(self) -> None:
        self.calls: list[Call] = []
        self.fault: Callable[[Request, Callable[[], Answer]], Answer | None] = lambda request, forward: forward()
        self.proxy.seen.clear()
        self.proxy.fault = self._pass

    def _pass(self, request: Request, forward: Callable[[], Answer]) -> Answer | None:
        answer = self.fault(request, forward)
        path = request[1].removeprefix("/v1/")
        if path.startswith("transit/") and answer is not None:
            action = path.removeprefix("transit/").rsplit("/", 1)[0]
            self.calls.append(Call(action, self._purpose(request[3]), request[3], answer[2]))
        return answer

    @staticmethod
    def _purpose(sent: bytes) -> str:
        body: dict[str, Any] = json.loads(sent) if sent else {}
        bound = body.get("associated_data") or body.get("context") or ""
        return base64.b64decode(bound)[len("mcpkeys1:") :][:6].decode().strip()


class Together:
    """Holds calls until so many are under way at once, or a while has passed; keeps when each began and ended."""

    def __init__(self, expected: int, patience: float = 1.2) -> None:
        self._barrier = threading.Barrier(expected)
        self._patience = patience
        self.times: list[tuple[float, float]] = []

    def hold(self, forward: Callable[[], Any]) -> Any:
        begun = time.monotonic()
        with contextlib.suppress(threading.BrokenBarrierError):
            self._barrier.wait(self._patience)
        reply = forward()
        self.times.append((begun, time.monotonic()))
        return reply

    @property
    def overlapped(self) -> bool:
        """Whether at some moment all of them were under way."""
        return max(begun for begun, _ in self.times) < min(ended for _, ended in self.times)

    def aws(self, action: str) -> Fault:
        def fault(exchange: Exchange, forward: Callable[[], Reply]) -> Reply:
            reply: Reply = self.hold(forward) if exchange.action == action else forward()
            return reply

        return fault

    def bao(self, request: Request, forward: Callable[[], Answer]) -> Answer:
        answer: Answer = self.hold(forward) if "/transit/decrypt/" in request[1] else forward()
        return answer
