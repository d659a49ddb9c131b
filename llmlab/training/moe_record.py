"""What was written down while a mixture of experts learned: losses, and where each layer's router sent its tokens."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MoeRecord:
    """A batch of the training, after ``step`` updates and ``seconds`` of it.

    ``loss`` is the batch's cross-entropy (nats per byte), ``held_out`` that of text that is never learnt from, ``None``
    where it was not measured. ``balance`` is the load-balancing loss, mean over the layers: ``top_k`` when probability
    and load are even, up to ``num_experts`` when one expert gets all. ``load[layer][expert]`` counts the batch's tokens
    that were sent to that expert, so each layer's sum is tokens x ``top_k``.
    """

    step: int
    seconds: float
    num_tokens: int
    loss: float
    balance: float
    held_out: float | None
    load: tuple[tuple[int, ...], ...]

    @property
    def top_k(self) -> int:
        """Experts a token is sent to."""
        return sum(self.load[0]) // self.num_tokens

    @property
    def busiest(self) -> tuple[float, ...]:
        """Per layer: tokens of the busiest expert, as a multiple of an even share."""
        return tuple(max(layer) * len(layer) / sum(layer) for layer in self.load)

    def idle(self, share: float = 0.25) -> int:
        """Experts of all layers that get less than ``share`` of an even share."""
        return sum(tokens < share * sum(layer) / len(layer) for layer in self.load for tokens in layer)
