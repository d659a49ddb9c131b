"""What may steer a request's tokens from outside the engine, for example a grammar."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Constraint(Protocol):
    """Follows the output of one sample and says which token may come next.

    The engine calls :meth:`mask` once before it chooses a token and :meth:`accept` once after, in that order and on
    the thread that steps; recomputing a preempted request calls neither. If one of them raises, or :meth:`mask`
    leaves no token, the sample ends with :class:`~llmlab.errors.ConstraintError` and its neighbours go on. A
    constraint must allow EOS exactly where the output may end.
    """

    def mask(self, logits: Tensor) -> Tensor:
        """Set every forbidden token of a float32 row ``(V,)`` on the CPU to -inf, in place or not, and return it.

        Penalties, biases and ``min_tokens`` are applied before; temperature, top-k, top-p and min-p see the result.
        """

    def accept(self, token_id: int) -> None:
        """The token was chosen, EOS included."""

    @property
    def is_finished(self) -> bool:
        """Whether nothing but EOS could follow what was accepted.

        The sample then ends as if EOS had been chosen, without spending a step on it; this holds for models
        without EOS too, and before ``min_tokens``.
        """
