"""Looking into, and reaching into, one forward pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from types import MappingProxyType

import torch

from llmlab.engine.attention import Variant
from llmlab.engine.kv_pool import KVPool
from llmlab.probes.anatomy import Anatomy
from llmlab.probes.budget import kv_heads_of
from llmlab.probes.lens import CHUNK, LensBook
from llmlab.probes.neighbours import nearest
from llmlab.probes.plan import Change, RequestProbe
from llmlab.probes.rows import attention_rows

MAPS = ("scores", "attention")
"""In the order in which :func:`attention_rows` gives them."""
LENS_DIMS = MappingProxyType(
    {
        "top": "rank",
        "top_logprob": "rank",
        "entropy": "",
        "kl": "",
        "rank": "target",
        "target_logprob": "target",
    }
)
"""What the lens keeps, and its last dimension."""


@dataclass(slots=True, eq=False)
class ProbedRow:
    """One request's part in a packed forward pass: positions ``start .. end - 1`` at packed places ``first ..``.

    ``tokens`` are the request's tokens up to ``end``; ``blocks`` its block table up to there. Positions from
    ``logits_from`` on have logits, from row ``logits_at`` of the batch's on.
    """

    probe: RequestProbe
    first: int
    start: int
    end: int
    tokens: list[int]
    blocks: torch.Tensor
    logits_at: int
    logits_from: int
    book: LensBook = field(default_factory=LensBook)
    lens_positions: list[int] = field(default_factory=list)

    def places(self, positions: Iterable[int]) -> torch.Tensor:
        """Packed places of some of the row's positions."""
        return torch.tensor([self.first + p - self.start for p in positions], dtype=torch.long)

    def changed(self, change: Change) -> torch.Tensor:
        """Packed places of this row that an intervention is about."""
        return self.places(p for p in range(self.start, self.end) if p in change.positions)


class StepProbe:
    """What happens at the observation points of one forward pass for the rows that asked for it.

    Observing never changes a number that the model goes on with; a look that fails stops that request's capture and
    nothing else. An intervention changes the rows of its own request only.
    """

    def __init__(self, anatomy: Anatomy, pool: KVPool, step: int, rows: list[ProbedRow]) -> None:
        self.anatomy, self.pool, self.step, self.rows = anatomy, pool, step, rows

    # -- observation points -----------------------------------------------------------------------------------

    def before_layers(self, hidden: torch.Tensor) -> torch.Tensor:
        """The input of the first layer, ``(tokens, width)``; returns what to go on with."""
        for row in self.rows:
            for change in row.probe.changes:
                if change.where == "input" and len(places := row.changed(change)):
                    hidden = hidden.index_fill(0, places.to(hidden.device), 0)
        return hidden

    def after_layer(self, layer: int, before: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """A layer's input and output, both ``(tokens, width)``; returns what to go on with."""
        for row in self.rows:
            for change in row.probe.changes:
                if change.where == "layer" and layer in change.layers and len(places := row.changed(change)):
                    places = places.to(hidden.device)
                    new = before[places] if change.value is None else change.value.to(hidden).expand(len(places), -1)
                    hidden = hidden.index_copy(0, places, new.to(hidden))
            with self._looking(row):
                self._keep_hidden(row, layer, hidden)
        return hidden

    def attended(self, layer: int, query: torch.Tensor, variant: Variant, output: torch.Tensor) -> torch.Tensor:
        """Queries ``(heads, tokens, dim)`` and the attention's output ``(tokens, heads, dim)`` of a layer, whose new
        K/V is in the pool; returns what to go on with."""
        for row in self.rows:
            for change in row.probe.changes:
                if change.where == "head" and layer in change.layers and len(places := row.changed(change)):
                    output = _with_heads(output, places, change)
            with self._looking(row):
                self._keep_attention(row, layer, query, variant)
        return output

    def routed(self, layer: int, output: torch.Tensor | tuple) -> None:
        """What a router gave for the packed tokens: logits, weights and numbers of the chosen experts, or only the
        logits."""
        for row in self.rows:
            with self._looking(row):
                self._keep_router(row, layer, output)

    def finish(self, logits: torch.Tensor) -> None:
        """After the pass; ``logits`` of the whole batch, to check the lens against."""
        for row in self.rows:
            with self._looking(row):
                self._keep_lens(row, logits)
                self._keep_embedding(row)

    @contextmanager
    def _looking(self, row: ProbedRow) -> Iterator[None]:
        store, start = row.probe.store, perf_counter_ns()
        try:
            yield
        except Exception as error:  # looking failed: the request itself, and the batch, must go on
            store.stop(self.step, f"{type(error).__name__}: {error}")
        finally:
            store.cost_ns += perf_counter_ns() - start

    # -- keeping ----------------------------------------------------------------------------------------------

    def _keep(
        self,
        row: ProbedRow,
        kind: str,
        layer: int,
        dims: tuple[str, ...],
        values: torch.Tensor,
        positions: Sequence[int],
        *labels: Sequence[int],
    ) -> None:
        """Hand an array to the request's store, floats as float32; ``labels``, then layers, as the store takes them."""
        values = values.detach().cpu()
        array = (values.float() if values.is_floating_point() else values).numpy()
        row.probe.store.add(self.step, kind, layer, dims, array, tuple(positions), *map(tuple, labels))

    def _keep_hidden(self, row: ProbedRow, layer: int, hidden: torch.Tensor) -> None:
        probe, is_last = row.probe, layer == len(self.anatomy.layers) - 1
        if probe.wants("hidden", layer) and (positions := probe.take("hidden", layer, row.start, row.end)):
            self._keep(row, "hidden", layer, ("position", "width"), _pick(hidden, row.places(positions)), positions)
        if not probe.is_looking or not probe.layers.get("lens"):
            return
        if not row.lens_positions and not row.book.hidden:
            row.lens_positions = probe.take("lens", 0, row.start, row.end)
        if row.lens_positions and (is_last or probe.wants("lens", layer)):
            row.book.hidden[layer] = _pick(hidden, row.places(row.lens_positions))

    def _keep_attention(self, row: ProbedRow, layer: int, query: torch.Tensor, variant: Variant) -> None:
        probe = row.probe
        rows = {
            kind: probe.take(kind, layer, row.start, row.end) if probe.wants(kind, layer) else []
            for kind in (*MAPS, "qkv")
        }
        pooled = probe.take_below("qkv", layer, row.end) if probe.wants("qkv", layer) else []
        if not (pooled or any(rows.values())):
            return
        keys, values = (part[:, : row.end] for part in self.pool.gather(layer, row.blocks.to(query.device)))
        self._keep_maps(row, layer, query, keys, {kind: rows[kind] for kind in MAPS if rows[kind]}, variant)
        if rows["qkv"]:
            picked = query[list(probe.heads)][:, row.places(rows["qkv"]).to(query.device)]
            self._keep(row, "query", layer, ("head", "position", "dim"), picked, rows["qkv"], probe.heads)
        heads = kv_heads_of(probe.heads, self.anatomy.num_heads, len(keys))
        for kind, part in (("key", keys), ("value", values)) if pooled else ():
            picked = part[list(heads)][:, torch.tensor(pooled, device=part.device)]
            self._keep(row, kind, layer, ("kv_head", "position", "dim"), picked, pooled, heads)

    def _keep_maps(
        self,
        row: ProbedRow,
        layer: int,
        query: torch.Tensor,
        keys: torch.Tensor,
        wanted: dict[str, list[int]],
        variant: Variant,
    ) -> None:
        """Weights and scores at the positions wanted of each, computed once where these are the same."""
        maps: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}
        for kind, positions in wanted.items():
            at = tuple(positions)
            if at not in maps:
                picked = query[:, row.places(at).to(query.device)]
                places = torch.tensor(at, device=query.device)
                maps[at] = attention_rows(picked, keys, row.probe.heads, places, variant)
            self._keep(row, kind, layer, ("head", "query", "key"), maps[at][MAPS.index(kind)], at, row.probe.heads)

    def _keep_router(self, row: ProbedRow, layer: int, output: torch.Tensor | tuple) -> None:
        if not row.probe.wants("router", layer):
            return
        if not (positions := row.probe.take("router", layer, row.start, row.end)):
            return
        for name, values in _router_parts(output).items():
            values = _pick(values, row.places(positions))
            dims = ("position", "expert" if name in ("logits", "probs") else "choice")
            self._keep(row, f"router_{name}", layer, dims, values, positions)

    def _keep_lens(self, row: ProbedRow, logits: torch.Tensor) -> None:
        if not row.lens_positions or not row.probe.is_looking:
            return
        readings = row.book.read(self.anatomy, row.probe)
        for name, dim in LENS_DIMS.items():
            if dim != "target" or row.probe.targets:
                dims = ("layer", "position", *([dim] if dim else []))
                values = torch.stack([getattr(reading, name) for reading in readings.values()])
                labels = row.probe.targets if dim == "target" else ()
                self._keep(row, f"lens_{name}", -1, dims, values, row.lens_positions, labels, tuple(readings))
        self._check_lens(row, logits)

    def _check_lens(self, row: ProbedRow, logits: torch.Tensor) -> None:
        """How far the lens' last row is from the logits that the model gave, where it gave any."""
        shared = [p for p in row.lens_positions if p >= row.logits_from][-CHUNK:]
        if not shared:
            return
        last = row.book.hidden[len(self.anatomy.layers) - 1]
        ours = self.anatomy.logits(last[[row.lens_positions.index(p) for p in shared]])
        theirs = logits[[row.logits_at + p - row.logits_from for p in shared]].to(ours)
        self._keep(row, "lens_error", -1, ("position",), (ours - theirs).abs().amax(-1), shared)

    def _keep_embedding(self, row: ProbedRow) -> None:
        probe = row.probe
        if not probe.embed or not probe.is_looking or not (positions := probe.take_below("embed", -1, row.end)):
            return
        ids = torch.tensor([row.tokens[p] for p in positions])
        found, similarity = nearest(self.anatomy, ids, probe.num_neighbours)
        self._keep(row, "embed", -1, ("position", "width"), self.anatomy.embed(ids), positions)
        self._keep(row, "neighbours", -1, ("position", "rank"), found, positions)
        self._keep(row, "similarity", -1, ("position", "rank"), similarity, positions)


def _pick(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """A copy of some rows."""
    return values.index_select(0, places.to(values.device))


def _router_parts(output: torch.Tensor | tuple) -> dict[str, torch.Tensor]:
    """What a router's output holds; where it gives bare logits, how they become probabilities is not known here."""
    if isinstance(output, torch.Tensor):
        return {"logits": output}
    logits, weights, experts = output
    return {"logits": logits, "probs": logits.float().softmax(-1), "experts": experts, "weights": weights}


def _with_heads(output: torch.Tensor, places: torch.Tensor, change: Change) -> torch.Tensor:
    output, places = output.clone(), places.to(output.device)[:, None]
    heads = torch.tensor(change.heads, device=output.device)
    output[places, heads] = 0 if change.value is None else change.value.to(output)
    return output
