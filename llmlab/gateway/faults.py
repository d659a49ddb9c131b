"""Failures made on purpose, so that a client can be watched handling them.

A plan is written ``delay=0.5; status=529x2; drop=120; split=1; stall=3``: wait 0.5 s before the head; answer the first
two requests with 529; cut the connection after 120 bytes of the body; send the body in pieces of 1 byte; fall silent,
pings included, after 3 frames (``stall=3x1.5``: for 1.5 s). It comes in the request header ``llmlab-fault`` or from
:meth:`Faults.inject`.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import OrderedDict, deque
from dataclasses import dataclass, replace

from llmlab.api.errors import ApiError
from llmlab.gateway.recording import ExchangeLog
from llmlab.gateway.response import ResponseWriter, Send

HEADER = "llmlab-fault"
STATUSES = {429: "rate_limit_error", 500: "api_error", 503: "api_error", 504: "timeout_error", 529: "overloaded_error"}
MAX_SECONDS, MAX_COUNT, MAX_CLIENTS = 600.0, 1_000_000, 1024
_NUMBER = r"([0-9]{1,7}(?:\.[0-9]{1,6})?)"
_ITEM = re.compile(f"(delay|status|drop|split|stall)={_NUMBER}(?:x{_NUMBER})?")


class ConnectionDropped(Exception):
    """The response is to break off here, as the plan wants."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to go wrong with one response. ``delay`` and ``stall_s`` in seconds, ``drop`` and ``split`` in bytes."""

    text: str = ""
    delay: float = 0.0
    status: int | None = None
    times: int = 1
    drop: int | None = None
    split: int | None = None
    stall: int | None = None
    stall_s: float = math.inf


def parse_plan(text: str) -> Plan:
    """The plan in a header's value. Raises ``ApiError`` 400 for anything that is not one."""
    plan, seen = Plan(text[:200]), set()
    for item in filter(None, (part.strip() for part in text.split(";"))):
        match = _ITEM.fullmatch(item)
        if match is None or match[1] in seen:
            raise _nonsense(item)
        seen.add(match[1])
        plan = _with_item(plan, match)
    if not seen:
        raise _nonsense(text)
    return plan


def _with_item(plan: Plan, match: re.Match) -> Plan:
    kind, value, times = match.groups()
    if kind == "delay" and times is None and float(value) <= MAX_SECONDS:
        return replace(plan, delay=float(value))
    if "." in value or (times and kind not in ("status", "stall")) or int(value) > MAX_COUNT:
        raise _nonsense(match[0])
    if kind == "status" and int(value) in STATUSES and (times or "1").isdecimal() and int(times or 1) > 0:
        return replace(plan, status=int(value), times=int(times or 1))
    if kind == "stall" and float(times or 0) <= MAX_SECONDS:
        return replace(plan, stall=int(value), stall_s=float(times) if times else math.inf)
    if kind == "drop":
        return replace(plan, drop=int(value))
    if kind == "split" and int(value) > 0:
        return replace(plan, split=int(value))
    raise _nonsense(match[0])


def _nonsense(item: str) -> ApiError:
    return ApiError(
        "invalid_request_error",
        f"{HEADER}: cannot read {item[:80]!r}: write for example delay=0.5; status=529x2; drop=120; split=1; stall=3 "
        f"(statuses: {', '.join(map(str, STATUSES))})",
    )


class Faults:
    """Decides which plan a request gets. :meth:`inject` may be called from any thread."""

    def __init__(self, allow_header: bool) -> None:
        self.allow_header = allow_header
        self._queue: deque[Plan] = deque()
        self._refused: OrderedDict[tuple[str, str], int] = OrderedDict()

    def inject(self, text: str, requests: int = 1) -> None:
        """Put a plan on each of the next ``requests`` requests; ``status=529x2`` refuses the next two before them."""
        plan = parse_plan(text)
        if plan.status is not None:
            self._queue.extend([replace(plan, times=1)] * plan.times)
            plan = replace(plan, status=None)
        if plan != Plan(plan.text, times=plan.times):
            self._queue.extend([plan] * requests)

    def clear(self) -> None:
        """Forget all plans that have not been used."""
        self._queue.clear()

    def plan_for(self, client: str, header: str | None) -> Plan | None:
        """The plan of a request of ``client``: its own header's, else the next injected one.

        Raises ``ApiError`` 400 for a header that cannot be read, or that is not welcome here.
        """
        if header is not None:
            if not self.allow_header:
                raise ApiError(
                    "invalid_request_error", f"{HEADER} is not accepted: start the server with faults allowed"
                )
            return self._counted(client, parse_plan(header))
        try:
            return self._queue.popleft()
        except IndexError:
            return None

    def _counted(self, client: str, plan: Plan) -> Plan:
        """``plan`` without its status once ``client`` has been refused ``times`` times; then the count starts anew."""
        if plan.status is None:
            return plan
        key = (client, plan.text)
        count = self._refused.pop(key, 0)
        if count == plan.times:
            return replace(plan, status=None)
        self._refused[key] = count + 1
        while len(self._refused) > MAX_CLIENTS:
            self._refused.popitem(last=False)
        return plan


def refusal(plan: Plan) -> ApiError:
    """The error that a plan with a status answers with."""
    assert plan.status is not None
    retry_after = 1 if plan.status in (429, 529) else None
    return ApiError(STATUSES[plan.status], "injected fault", status=plan.status, retry_after=retry_after)


class FaultyWriter(ResponseWriter):
    """A writer that carries out a plan on the body it sends."""

    def __init__(self, send: Send, log: ExchangeLog, plan: Plan) -> None:
        super().__init__(send, log)
        self.plan = plan

    async def whole(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """As the plan wants it: dropped and split bodies need the announced length to come out short."""
        if self.plan.drop is None and self.plan.split is None:
            return await super().whole(status, headers, body)
        text = body.decode(errors="replace")
        await self._start(status, {**headers, "content-length": str(len(body))}, text, len(body))
        await self._body(body)
        await self.finish()

    async def write(self, frames: bytes) -> None:
        """Send frames, after a silence if this is where the plan wants one."""
        if frames and self.plan.stall is not None and self.sent_frames >= self.plan.stall:
            async with self._turn:
                await self._silence()
        await super().write(frames)

    async def _silence(self) -> None:
        if self.plan.stall is None:
            return
        seconds, self.plan = self.plan.stall_s, replace(self.plan, stall=None)
        self.log.event("fault", f"stall after {self.sent_frames} frames")
        await (asyncio.sleep(seconds) if math.isfinite(seconds) else asyncio.Event().wait())

    async def _body(self, data: bytes) -> None:
        room = len(data) if self.plan.drop is None else self.plan.drop - self.sent_bytes
        kept = data[: max(0, room)]
        size = self.plan.split or max(1, len(kept))
        for start in range(0, len(kept), size):
            await super()._body(kept[start : start + size])
        if room < len(data):
            self.log.event("fault", f"drop after {self.sent_bytes} bytes")
            raise ConnectionDropped
