"""What was recorded inside the model for one request, put together from pieces of single steps and layers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.distribution import Distribution, recorded_choices
from llmlab.trace.events import Captured, ProbeNote
from llmlab.trace.named import NamedArray

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "attention": "weights after softmax, one map per query head; 0 for keys that are not seen",
        "scores": "scaled (and soft-capped) scores before softmax; -inf for keys that are not seen",
        "query": "queries after rotary embedding, per query head",
        "key": "keys as they lie in the K/V pool, per K/V head",
        "value": "values as they lie in the K/V pool, per K/V head",
        "hidden": "hidden states after the layer",
        "embed": "the token's row of the embedding",
        "neighbours": "token ids with the most similar embedding rows, the token itself left out",
        "similarity": "cosine similarity of those neighbours",
        "router_logits": "the router's logits, per expert",
        "router_probs": "softmax of the router's logits over all experts",
        "router_experts": "the experts chosen",
        "router_weights": "the weight each chosen expert gets",
        "lens_top": "token ids that final norm and head would put first after this layer",
        "lens_top_logprob": "their log-probabilities",
        "lens_entropy": "entropy of that distribution (nats)",
        "lens_kl": "KL divergence from the last layer's distribution to this one's: sum p_last log(p_last / p) (nats)",
        "lens_rank": "rank of the given tokens (0: most probable)",
        "lens_target_logprob": "log-probabilities of the given tokens",
        "distribution_token": "the token that was chosen",
        "distribution_uniform": "the number in [0, 1) it was drawn with, NaN where none was",
        "distribution_ids": "token ids of the candidates: likeliest by the model and in the end, and the chosen one",
        "distribution_rank": "their ranks by the model (0: most probable)",
        "distribution_below": "final probability of all tokens with a lower id",
        "distribution_left": "1 + place of the stage that made the candidate impossible, 0: it stayed possible",
        "distribution_possible": "tokens of the whole vocabulary that are still possible, per stage of the sampler",
        "distribution_entropy": "entropy of each stage's distribution (nats)",
        "distribution_prob": "probability of each candidate after each stage",
        "lens_error": "largest difference between the lens' last row and the model's own logits",
    }
)

WITHOUT_COMPUTING = frozenset({"embed", "neighbours", "similarity", "key", "value"})
"""Kinds that positions served from the prefix cache have too."""
FREE_BYTES, SPARSE = 64_000_000, 64
SERVED = "served from cache, not computed"


@dataclass(frozen=True, slots=True)
class Lens:
    """The logit lens: what each layer's hidden state would say. Dimensions layer, position, then rank or target.

    ``top`` and ``top_logprob``: the first tokens; ``entropy``, ``kl`` (to the last layer) in nats; ``rank`` and
    ``target_logprob``: of the tokens in ``targets=``, else ``None``; ``error`` per position: how far the last row is
    from the model's own logits, ``None`` where no logits were computed.
    """

    top: NamedArray
    top_logprob: NamedArray
    entropy: NamedArray
    kl: NamedArray
    rank: NamedArray | None
    target_logprob: NamedArray | None
    error: NamedArray | None

    def rank_trajectory(self, token_id: int, position: int) -> pd.Series:
        """Rank of a target token after every layer. Raises ``InvalidParameter`` when it was not among ``targets``."""
        if self.rank is None:
            raise InvalidParameter("no targets were asked for: give targets=[...] to the capture")
        chosen = self.rank.sel(position=position, target=token_id)
        return pd.Series(chosen.values, index=pd.Index(chosen.labels["layer"], name="layer"), name="rank")

    def frame(self) -> pd.DataFrame:
        """One row per layer and position: the first token, its log-probability, entropy and KL."""
        keys = ["layer", "position"]
        table = self.top.sel(rank=0).frame()
        for part in (self.top_logprob.sel(rank=0), self.entropy, self.kl):
            table = table.merge(part.frame(), on=keys)
        return table


class Captures:
    """The arrays of one request. May be looked at while the request runs: it shows what there is so far.

    Every kind of :data:`KINDS` is an attribute, a :class:`~llmlab.trace.named.NamedArray` with ``layer`` as its first
    dimension where it has layers, and ``None`` when it was not recorded; ``lens`` bundles the logit lens and
    ``distribution`` how tokens were chosen. ``cost_ms`` is the time spent looking (milliseconds), ``None`` for a loaded
    trace.
    """

    def __init__(
        self,
        request_id: str,
        events: Iterable[Captured],
        arrays: Mapping[str, np.ndarray],
        notes: Iterable[ProbeNote],
        cost_ms: float | None = None,
    ) -> None:
        self.request_id, self.cost_ms = request_id, cost_ms
        self.events = tuple(event for event in events if event.array_id in arrays)
        self.notes = tuple(notes)
        self._arrays = arrays

    def __repr__(self) -> str:
        cost = "" if self.cost_ms is None else f", {self.cost_ms:.1f} ms spent looking"
        return f"<Captures of {self.request_id}: {', '.join(self.kinds) or 'nothing yet'}, {self.nbytes:,} bytes{cost}>"

    def __getattr__(self, name: str) -> NamedArray | None:
        if name in KINDS:
            return self.array(name) if name in self.kinds else None
        raise AttributeError(f"captures have no {name!r}: choose one of {', '.join(KINDS)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *KINDS})

    @property
    def kinds(self) -> tuple[str, ...]:
        """Kinds that have at least one array."""
        return tuple(dict.fromkeys(event.kind for event in self.events))

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(event.nbytes for event in self.events)

    @property
    def stopped(self) -> str | None:
        """Why nothing more was kept from some moment on, ``None`` when everything asked for was."""
        return next((note.reason for note in self.notes if note.action == "stopped"), None)

    @property
    def lens(self) -> Lens | None:
        """The logit lens, ``None`` when it was not recorded."""
        if not {"lens_top", "lens_top_logprob", "lens_entropy", "lens_kl"} <= set(self.kinds):
            return None
        rank = self.lens_rank
        return Lens(
            self.lens_top,
            self.lens_top_logprob,
            self.lens_entropy,
            self.lens_kl,
            rank,
            self.lens_target_logprob,
            self.lens_error,
        )

    @property
    def distribution(self) -> Distribution | None:
        """How the output tokens were chosen, ``None`` when that was not recorded."""
        choices = tuple(recorded_choices(self.events, self._arrays))
        return Distribution(choices) if choices else None

    def array(self, kind: str) -> NamedArray:
        """All pieces of a kind as one array. Raises ``InvalidParameter`` when there are none."""
        pieces = [event for event in self.events if event.kind == kind]
        if not pieces:
            raise InvalidParameter(f"{kind!r} was not recorded: there is {', '.join(self.kinds) or 'nothing'}")
        return _assemble(kind, pieces, self._arrays)

    @property
    def positions(self) -> pd.DataFrame:
        """One row per position asked for, with its ``state``: ``computed``, ``served from cache, not computed``,
        ``not kept`` (see :attr:`stopped`) or ``not reached``."""
        started = next((note for note in self.notes if note.action == "started"), None)
        asked = started.positions if started else ()
        computed = {p for e in self.events if e.kind not in WITHOUT_COMPUTING for p in e.positions}
        num_cached = started.num_cached if started else 0
        reached = max(computed, default=num_cached - 1)
        rest = "not kept" if self.stopped else "not reached"
        states = ["computed" if p in computed else SERVED if p < num_cached or p <= reached else rest for p in asked]
        return pd.DataFrame({"position": np.array(asked, dtype=np.int64), "state": pd.Series(states, dtype=object)})


def _assemble(kind: str, pieces: list[Captured], arrays: Mapping[str, np.ndarray]) -> NamedArray:
    """One array over layers and positions. A position's numbers come from the one piece that has it."""
    dims = tuple(dim for dim in pieces[0].dims if dim != "layer")
    dtype = arrays[pieces[0].array_id].dtype
    layers = sorted({layer for piece in pieces for layer in _layers_of(piece)})
    labels = {dim: _labels(dim, pieces) for dim in dims}
    axis = 1 + next(i for i, dim in enumerate(dims) if dim in ("query", "position"))
    place = {p: i for i, p in enumerate(labels[dims[axis - 1]])}
    shape = [len(labels[dim]) for dim in dims]
    _check_size(kind, len(layers) * math.prod(shape) * dtype.itemsize, sum(piece.nbytes for piece in pieces))
    values = np.full((len(layers), *shape), np.nan if dtype.kind == "f" else -1, dtype)
    for piece in pieces:
        part = arrays[piece.array_id] if piece.layers else arrays[piece.array_id][None]
        for layer, numbers in zip(_layers_of(piece), part, strict=True):
            rows = np.moveaxis(values[layers.index(layer)], axis - 1, 0)
            _fill(kind, rows, [place[p] for p in piece.positions], np.moveaxis(numbers, axis - 1, 0))
    if layers == [-1]:
        return NamedArray(kind, dims, labels, values[0])
    return NamedArray(kind, ("layer", *dims), {"layer": tuple(layers), **labels}, values)


def _check_size(kind: str, whole: int, pieces: int) -> None:
    """Pieces of a few rows can claim places far apart: what is put together must not dwarf them."""
    if whole > max(FREE_BYTES, SPARSE * pieces):
        raise InvalidParameter(
            f"{kind} put together takes {whole:,} bytes, its pieces hold {pieces:,}: read them singly"
        )


def _fill(kind: str, rows: np.ndarray, places: list[int], part: np.ndarray) -> None:
    """Write a piece's positions (first axis of both) into an array whose other axes may be longer."""
    rows[(places, *(slice(size) for size in part.shape[1:]))] = part
    if kind in ("attention", "scores"):  # keys after the piece's last one are in the future of its queries
        rows[places, :, part.shape[-1] :] = 0 if kind == "attention" else -np.inf


def _layers_of(piece: Captured) -> tuple[int, ...]:
    return piece.layers or (piece.layer,)


def _labels(dim: str, pieces: list[Captured]) -> tuple[int, ...]:
    if dim in ("query", "position"):
        return tuple(sorted({p for piece in pieces for p in piece.positions}))
    if dim in ("head", "kv_head", "target", "stage"):
        return pieces[0].labels
    return tuple(range(max(piece.shape[piece.dims.index(dim)] for piece in pieces)))
