"""Arrays whose dimensions have names and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True, eq=False)
class NamedArray:
    """``values`` with one name per dimension in ``dims`` and, per dimension, the labels of its entries.

    Labels are integers: layer, head or position numbers, token ids, or plain places. Where nothing was recorded for a
    combination of labels, floats are NaN and integers -1; attention to later keys is 0.
    """

    kind: str
    dims: tuple[str, ...]
    labels: Mapping[str, tuple[int, ...]]
    values: np.ndarray

    def __post_init__(self) -> None:
        assert self.values.shape == tuple(len(self.labels[dim]) for dim in self.dims)

    @property
    def shape(self) -> dict[str, int]:
        """Length of every dimension."""
        return dict(zip(self.dims, self.values.shape, strict=True))

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return self.values.nbytes

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.array(self.values, dtype=dtype, copy=copy)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{dim}={size}" for dim, size in self.shape.items())
        return f"<{self.kind} ({sizes}) {self.values.dtype}, {self.nbytes:,} bytes>"

    def sel(self, **where: int | list[int] | tuple[int, ...]) -> NamedArray:
        """Choose by label: a number drops its dimension, a list keeps it. ``attention.sel(layer=3, head=0)``.

        Raises ``InvalidParameter`` for an unknown dimension or label.
        """
        result = self
        for dim, chosen in where.items():
            result = result._choose(dim, chosen)
        return result

    def _choose(self, dim: str, chosen: int | list[int] | tuple[int, ...]) -> NamedArray:
        if dim not in self.dims:
            raise InvalidParameter(f"{self.kind} has no dimension {dim!r}: it has {', '.join(self.dims)}")
        axis, known = self.dims.index(dim), self.labels[dim]
        wanted = chosen if isinstance(chosen, list | tuple) else [chosen]
        if missing := [label for label in wanted if label not in known]:
            raise InvalidParameter(f"{self.kind} holds no {dim} {missing[0]!r}: it holds {_some(known)}")
        values = np.take(self.values, [known.index(label) for label in wanted], axis=axis)
        if isinstance(chosen, list | tuple):
            return NamedArray(self.kind, self.dims, {**self.labels, dim: tuple(chosen)}, values)
        dims = tuple(name for name in self.dims if name != dim)
        labels = {name: self.labels[name] for name in dims}
        return NamedArray(self.kind, dims, labels, values.squeeze(axis))

    def frame(self) -> pd.DataFrame:
        """One row per entry that was recorded: a column per dimension, then the value under the array's kind."""
        grid = np.meshgrid(*(np.asarray(self.labels[dim], dtype=np.int64) for dim in self.dims), indexing="ij")
        columns = {dim: part.ravel() for dim, part in zip(self.dims, grid, strict=True)}
        table = pd.DataFrame(columns | {self.kind: self.values.ravel()})
        missing = table[self.kind].isna() if self.values.dtype.kind == "f" else table[self.kind] == -1
        return table[~missing].reset_index(drop=True)

    def summary(self, dtype: str = "uint8") -> Summary:
        """The same in 1 or 2 bytes a number, for display: ``"uint8"`` (256 even levels) or ``"float16"``.

        Raises ``InvalidParameter`` for another ``dtype``.
        """
        if dtype == "float16":
            with np.errstate(over="ignore"):
                return Summary(self.dims, self.values.astype(np.float16), 0.0, 1.0)
        if dtype != "uint8":
            raise InvalidParameter(f"dtype={dtype!r} must be 'uint8' or 'float16'")
        finite = self.values[np.isfinite(self.values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
        step = (high - low) / 255 or 1.0
        scaled = np.nan_to_num((self.values - low) / step, nan=0.0, posinf=255.0, neginf=0.0)
        return Summary(self.dims, np.rint(scaled).clip(0, 255).astype(np.uint8), low, step)


@dataclass(frozen=True, slots=True, eq=False)
class Summary:
    """A smaller copy: ``low + step * codes`` is the value, to half a ``step`` (NaN and -inf count as ``low``)."""

    dims: tuple[str, ...]
    codes: np.ndarray
    low: float
    step: float

    @property
    def nbytes(self) -> int:
        """Bytes of the codes."""
        return self.codes.nbytes

    def restored(self) -> np.ndarray:
        """The values again, in float32."""
        return (self.low + self.step * self.codes.astype(np.float64)).astype(np.float32)


def _some(labels: tuple[int, ...]) -> str:
    head = ", ".join(map(str, labels[:8]))
    return head + (f", ... {labels[-1]}" if len(labels) > 8 else "") if labels else "none"
