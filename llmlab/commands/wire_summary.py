"""What a request over the wire came to: rows to show, or one JSON object."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from llmlab.commands.frame_line import usage_words

if TYPE_CHECKING:
    import pandas as pd

    from llmlab.client.message import Message
    from llmlab.trace.trace import Trace

MOMENTS = {"head": "head", "first_byte": "first byte", "first_delta": "first delta", "end": "end"}


@dataclass(frozen=True, slots=True)
class Outcome:
    """A request that is over: what was sent, the message as far as it came, and the trace it left.

    ``failure`` is the error's text, empty for a complete answer.
    """

    request: dict[str, Any]
    message: Message
    trace: Trace
    failure: str = ""

    @property
    def exchange(self) -> Any:
        """The last attempt's row of :attr:`Trace.exchanges`."""
        table = self.trace.exchanges
        return next(table[table.client_id == self.message.client_request_id].itertuples())

    @property
    def stages(self) -> pd.Series:
        """Milliseconds by stage of the last attempt, in the order in which the stages began; their sum is all."""
        leaves = self.trace.leaves(self.message.client_request_id).sort_values("start_s")
        return leaves.groupby("name", sort=False).duration_ms.sum()


def as_rows(outcome: Outcome) -> dict[str, str]:
    """Names and values to show after the answer; times are those of the last attempt, since its sending."""
    message, exchange = outcome.message, outcome.exchange
    times = {text: getattr(message.timings, name) for name, text in MOMENTS.items()}
    return {
        "attempts": str(message.attempts),
        **{name: "never came" if at is None else f"{at * 1e3:,.1f} ms" for name, at in times.items()},
        "bytes": f"{exchange.bytes_sent:,} sent, {exchange.bytes_received:,} received (bodies)",
        "frames": f"{exchange.frames:,}",
        "usage": usage_words(message.usage),
        "stop reason": outcome.failure or message.stop_reason or "none",
    }


def stage_rows(outcome: Outcome) -> dict[str, str]:
    """Where the time of the last attempt went."""
    stages = outcome.stages
    whole = stages.sum()
    return {name: f"{ms:10,.2f} ms {ms / whole:6.1%}" for name, ms in stages.items()} | {
        "together": f"{whole:10,.2f} ms"
    }


def as_object(outcome: Outcome, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole as JSON types; times in milliseconds since the last attempt was sent."""
    message, exchange = asdict(outcome.message), outcome.exchange
    timings = message.pop("timings")
    return {
        "request": outcome.request,
        "message": message,
        "error": outcome.failure or None,
        "attempts": outcome.message.attempts,
        "timings_ms": {name: None if timings[name] is None else timings[name] * 1e3 for name in MOMENTS},
        "bytes": {"sent": int(exchange.bytes_sent), "received": int(exchange.bytes_received)},
        "frames": int(exchange.frames),
        "events": events,
        "stages_ms": {name: float(ms) for name, ms in outcome.stages.items()},
    }
