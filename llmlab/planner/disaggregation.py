"""When a split of prefill and decode pays: K/V has to travel, but decode is no longer held up (COMPUTED).

Articles A (section 5.7.1) and B: the transfer has a price, so that the split is worth it from some size on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import Device, device
from llmlab.planner.formats import WeightFormat
from llmlab.planner.links import Link, link
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.roofline import decode, prefill, step_work


@dataclass(frozen=True, slots=True)
class Handover:
    """One prompt computed in one place and decoded in another. Seconds are floors: peak arithmetic, nominal link.

    ``prefill_s`` is how long one process would keep its decoding streams waiting for this prompt (whole, not in
    chunks), ``transfer_s`` what the handover adds to the new request's first token when nothing overlaps,
    ``decode_s`` a step of the decoding streams on their own.
    """

    num_tokens: int
    num_streams: int
    kv_bytes: int
    transfer_s: float
    prefill_s: float
    decode_s: float
    num_layers: int

    @property
    def overlapped_s(self) -> float:
        """What the handover adds when each layer's K/V leaves as soon as it is computed, while later layers still are:
        the last layer's share, or what a slow link has left to send."""
        share = 1 / self.num_layers
        return max(self.transfer_s * share, self.transfer_s - self.prefill_s * (1 - share))

    @property
    def stall_saved_s(self) -> float:
        """Waiting that the decoding streams are spared, summed over them."""
        return self.num_streams * self.prefill_s

    @property
    def pays(self) -> bool:
        """Whether the waiting spared is more than the waiting added, nothing overlapped."""
        return self.stall_saved_s > self.transfer_s

    @property
    def break_even_streams(self) -> float:
        """Decoding streams from which it pays: transfer over prefill."""
        return self.transfer_s / self.prefill_s

    @property
    def break_even_bytes_per_s(self) -> float:
        """The link's rate at which sending K/V takes as long as computing it again (latency left out)."""
        return self.kv_bytes / self.prefill_s


def handover(
    model: ModelShape | Any,
    num_tokens: int,
    over: str | Link,
    on: str | Device,
    *,
    num_streams: int = 1,
    context: int = 2000,
    weights: str | WeightFormat = "bf16",
    kv: str = "bf16",
    layout: str = "latent",
) -> Handover:
    """A prompt of ``num_tokens`` handed over a link between two devices ``on``, while ``num_streams`` streams of
    ``context`` positions decode. Raises ``InvalidParameter`` for an empty prompt or no stream."""
    if num_tokens < 1 or num_streams < 1:
        raise InvalidParameter(f"{num_tokens} tokens, {num_streams} streams: at least one of each is needed")
    shape, on = ModelShape.of(model), device(on)
    nbytes = shape.kv_bytes(num_tokens, kv, layout)
    settings = {"weights": weights, "kv": kv, "layout": layout}
    return Handover(
        num_tokens=num_tokens,
        num_streams=num_streams,
        kv_bytes=nbytes,
        transfer_s=link(over).time_s(nbytes),
        prefill_s=step_work(shape, prefill(num_tokens), **settings).time_s(on),
        decode_s=step_work(shape, decode(num_streams, context), **settings).time_s(on),
        num_layers=shape.num_layers,
    )


def break_even_tokens(
    model: ModelShape | Any, over: str | Link, on: str | Device, *, longest: int = 2**20, **settings: Any
) -> int | None:
    """The length from which on a prompt's K/V travels faster than it is computed; None where there is none.

    Computing grows with the square of the length, sending does not. Lengths up to ``longest`` are looked at: powers of
    two first, then between the last that loses and the next.
    """
    shape, on, over = ModelShape.of(model), device(on), link(over)

    def loses(num_tokens: int) -> bool:
        return handover(shape, num_tokens, over, on, **settings).break_even_streams > 1

    powers = [2**i for i in range(longest.bit_length()) if 2**i <= longest]
    low = max((n for n in powers if loses(n)), default=0)
    if low == powers[-1]:
        return None
    high = max(1, 2 * low)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if loses(middle) else (low, middle)
    return high
