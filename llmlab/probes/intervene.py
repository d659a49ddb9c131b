"""Changing what the model computes for one request: knocking parts out, putting other numbers in.

A changed request lives in blocks of its own: it neither reads the prefix cache nor leaves anything in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from llmlab.errors import InvalidParameter
from llmlab.probes.filters import Filter

if TYPE_CHECKING:
    from llmlab.engine.run import Run


@dataclass(frozen=True, slots=True)
class Ablate:
    """Set something to zero at ``positions`` (a filter; default: all).

    With ``layer`` and ``head``: the output of those attention heads, before the output projection. With ``layer``
    alone: everything the layer adds, so that its input passes unchanged. With neither: the input of the first layer,
    as if the token had no embedding. ``layer`` and ``head`` are filters like those of ``Capture``.
    """

    layer: Filter = None
    head: Filter = None
    positions: Filter = None

    def __post_init__(self) -> None:
        if self.head is not None and self.layer is None:
            raise InvalidParameter("a head needs its layer: Ablate(layer=..., head=...); slice(None) means all layers")


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Put ``value`` in the place of something at ``positions`` (a filter).

    Without ``head``: the hidden state after ``layer`` (``layer=-1`` counts from the end); ``value`` is ``(width,)``.
    With ``head``: the output of that attention head; ``value`` is ``(head dim,)``.
    """

    layer: int
    positions: Filter
    value: np.ndarray
    head: int | None = None

    def __post_init__(self) -> None:
        try:
            value = np.asarray(self.value, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise InvalidParameter(f"the patch's value is no array of numbers: {error}") from None
        if value.ndim != 1 or not np.isfinite(value).all():
            raise InvalidParameter(f"the patch's value must be one vector of finite numbers, not {value.shape}")
        if type(self.layer) is not int or not (self.head is None or type(self.head) is int):
            raise InvalidParameter(f"layer={self.layer!r} and head={self.head!r} of a patch must be integers")
        object.__setattr__(self, "value", value)

    @classmethod
    def from_run(cls, run: Run, layer: int, position: int, *, to: int | None = None) -> Patch:
        """The hidden state after ``layer`` at ``position`` of a run that captured it, put at position ``to``."""
        captured = run.captured
        if captured is None or captured.hidden is None:
            raise InvalidParameter(f"run {run.id} captured no hidden states: submit it with Capture(hidden=True)")
        state = captured.hidden.sel(layer=layer, position=position)
        return cls(layer, position if to is None else to, state.values)


Intervention = Ablate | Patch
