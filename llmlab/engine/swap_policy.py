"""Copy K/V to the host pool or compute it again: decided by what both were measured to take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Literal, get_args

from llmlab.errors import InvalidParameter

Swapping = Literal["auto", "always", "never"]
WINDOW = 64  # the newest measurements that count


@dataclass(slots=True)
class Rate:
    """Nanoseconds per unit over the newest measurements, kept as two integers."""

    amount: int = 0
    spent_ns: int = 0
    _newest: deque[tuple[int, int]] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def note(self, amount: int, spent_ns: int) -> None:
        """Add a measurement: ``amount`` units took ``spent_ns``."""
        if len(self._newest) == WINDOW:
            gone, gone_ns = self._newest[0]
            self.amount -= gone
            self.spent_ns -= gone_ns
        self._newest.append((amount, spent_ns))
        self.amount += amount
        self.spent_ns += spent_ns

    def cost_ns(self, amount: int) -> int | None:
        """What ``amount`` units will take; ``None`` while nothing was measured."""
        return amount * self.spent_ns // self.amount if self.amount else None


@dataclass(frozen=True, slots=True)
class Weighed:
    """Whether to copy, and why, with the two costs where they decided."""

    copies: bool
    words: str


class SwapPolicy:
    """``auto`` compares the measured costs; ``always`` and ``never`` are for showing what that choice is worth.

    A token computed again costs what tokens cost in the newest steps that were mostly prefill; a byte what it cost in
    the newest copies. With ``auto`` nothing is copied while one of the two is unknown.
    """

    def __init__(self, mode: Swapping = "auto") -> None:
        if mode not in get_args(Swapping):
            raise InvalidParameter(f"swap={mode!r} must be 'auto', 'always' or 'never'")
        self.mode = mode
        self.bytes_copied = Rate()
        self.tokens_computed = Rate()

    def note_copy(self, nbytes: int, spent_ns: int) -> None:
        """A copy between the pools took this long."""
        self.bytes_copied.note(nbytes, spent_ns)

    def note_step(self, num_prefill: int, num_tokens: int, spent_ns: int) -> None:
        """A forward pass took this long; it counts where at least half of its tokens were prefill."""
        if num_prefill and 2 * num_prefill >= num_tokens:
            self.tokens_computed.note(num_tokens, spent_ns)

    def weigh(self, num_tokens: int, nbytes: int) -> Weighed:
        """Whether moving ``nbytes`` in all (out and in again both count) beats computing ``num_tokens`` again."""
        if self.mode != "auto":
            return Weighed(self.mode == "always", f"swap={self.mode}")
        copy, compute = self.bytes_copied.cost_ns(nbytes), self.tokens_computed.cost_ns(num_tokens)
        if copy is None or compute is None:
            return Weighed(False, "not measured yet")
        words = (
            f"copying {nbytes:,} bytes takes about {copy / 1e6:.2f} ms, computing {num_tokens} tokens again "
            f"{compute / 1e6:.2f} ms"
        )
        return Weighed(copy < compute, words)

    def __str__(self) -> str:
        copy, compute = self.bytes_copied.cost_ns(1 << 20), self.tokens_computed.cost_ns(1000)
        known = [f"{copy / 1e6:.2f} ms per MiB copied"] if copy is not None else []
        known += [f"{compute / 1e9:.2f} ms per token computed again"] if compute is not None else []
        return f"swap={self.mode}: {', '.join(known) or 'nothing measured yet'}"
