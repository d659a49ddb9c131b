"""Where a mixture's routers sent the tokens of a request, and how many each expert got."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.captures import Captures
from llmlab.trace.trace import Trace
from llmlab.views import looked
from llmlab.views.glyphs import fit, visible
from llmlab.views.palette import hue
from llmlab.views.scene import Grid, Mark, Rect, Scene, Text
from llmlab.views.view import View

GUTTER, HEAD, FOOT = 60, 44, 24
CELL, GAP, ASIDE = 15.0, 36, 176
POSITIONS, CHIPS, MAX_LAYERS, MAX_CELLS, MAX_EXPERTS = 24, 320, 12, 64, 4_096
FULL = 4  # times an even share of the tokens: the darkest cell
COLUMNS = ("layer", "expert", "tokens", "share")
KINDS = ("router_experts", "router_logits")


@dataclass(frozen=True, slots=True, eq=False)
class Routed:
    """``chosen[i]`` ``(positions, top_k)`` are the experts of layer ``layers[i]``; ``counts`` ``(layers, experts)`` how
    many tokens each got."""

    request_id: str
    layers: tuple[int, ...]
    positions: tuple[int, ...]
    chosen: tuple[np.ndarray, ...]
    counts: np.ndarray
    tokens: dict[int, str]
    num_cached: int

    @property
    def drawn(self) -> list[int]:
        """Rows of the picture: all layers, or MAX_LAYERS of them from the first to the last."""
        count = min(len(self.layers), MAX_LAYERS)
        return [round(i * (len(self.layers) - 1) / max(count - 1, 1)) for i in range(count)]

    @property
    def num_experts(self) -> int:
        """Experts of a layer."""
        return self.counts.shape[1]

    @property
    def top_k(self) -> int:
        """Experts that a token is sent to."""
        return self.chosen[0].shape[1]

    @property
    def touched(self) -> list[int]:
        """Experts of each layer that got any token."""
        return [int((row > 0).sum()) for row in self.counts]

    def key(self, **at: int) -> dict[str, int | str]:
        """The selection that a mark stands for."""
        return {"request": self.request_id, **at}


def expert_load(trace: Trace, request_id: str | None = None, *, width: float = 960) -> View:
    """The experts that each layer's router chose: token by token for the last positions, and added up for all.

    Recorded by ``Capture(router=True)`` on a mixture of experts. Beside the sums stands what even routing would touch
    on average: E(1 - (1 - k/E)^B) of E experts for B tokens with k each (article A, section 1, says decode moves the
    activated experts only).

    Raises ``UnknownRequest`` and ``InvalidParameter`` (a width that cannot be drawn, numbers that are no experts).
    """
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    request_id = looked.looked_at(trace, request_id, "router_experts")
    captures = looked.captures_of(trace, request_id, KINDS) if request_id else None
    if captures is None or captures.router_experts is None:
        return looked.missing(trace, "expert_load", request_id, "router_experts", "router", width)
    routed = _routed(trace, captures)
    shape = f"{len(routed.layers)} layers of {routed.num_experts} experts, {routed.top_k} for each token"
    where = f"{len(routed.positions)} positions ({looked.spans(routed.positions)})"
    title = f"Experts of {request_id}: {routed.top_k} of {routed.num_experts} for each token"
    alt = f"{title}; {shape}, at {where}."
    lines = [f"{shape}, at {where}", *(_line(routed, i) for i in range(len(routed.layers)))]
    return View(
        "expert_load", title, alt, "\n".join(lines), _scene(routed, width), _table(routed), _notes(routed, width)
    )


def expected_experts(num_experts: int, top_k: int, num_tokens: int) -> float:
    """Experts that ``num_tokens`` tokens touch on average when each chooses ``top_k`` evenly and by itself."""
    return num_experts * (1 - (1 - top_k / num_experts) ** num_tokens)


def _routed(trace: Trace, captures: Captures) -> Routed:
    chosen: dict[int, dict[int, np.ndarray]] = {}
    size = 0
    for event in captures.events:
        values = trace.arrays[event.array_id]
        if event.kind == "router_logits":
            size = max(size, values.shape[-1])
        else:
            _check_choices(values)
            chosen.setdefault(event.layer, {}).update(zip(event.positions, values.astype(np.int64), strict=True))
    layers = tuple(sorted(chosen))
    positions = tuple(sorted({p for layer in chosen.values() for p in layer}))
    stacked = tuple(np.stack([chosen[i][p] for p in positions if p in chosen[i]]) for i in layers)
    size = max(size, *(int(experts.max()) + 1 for experts in stacked))
    counts = np.stack([np.bincount(experts.ravel(), minlength=size) for experts in stacked])
    tokens = looked.labels_at(trace, captures.request_id, positions[-POSITIONS:])
    cached = looked.num_cached(captures)
    return Routed(captures.request_id, layers, positions, stacked, counts, tokens, cached)


def _check_choices(values: np.ndarray) -> None:
    """Raise ``InvalidParameter`` for numbers that are no experts of a layer: what a file may claim."""
    if values.ndim != 2 or not values.size or not 0 <= values.min() <= values.max() < MAX_EXPERTS:
        raise InvalidParameter(
            f"router_experts of shape {values.shape} are not what a router chose: a row of numbers from 0 to "
            f"{MAX_EXPERTS - 1} for each position"
        )


def _line(routed: Routed, row: int) -> str:
    counts = routed.counts[row]
    busiest = int(counts.argmax())
    return (
        f"layer {routed.layers[row]}: {routed.touched[row]} of {routed.num_experts} experts touched; "
        f"expert {busiest} got most, {counts[busiest]} of {len(routed.chosen[row])} tokens"
    )


# -- the picture --------------------------------------------------------------------------------------------


def _scene(routed: Routed, width: float) -> Scene:
    rows, each = len(routed.drawn), routed.top_k
    high = max(11.0, min(44.0, CELL * each))
    room = width - GUTTER - GAP - ASIDE
    loads = min(room * 0.5, max(156.0, 30.0 * routed.num_experts))  # the heading above takes so much
    shown = int(min(POSITIONS, (room - loads) / CELL, max(1, CHIPS // (rows * each))))
    right = GUTTER + CELL * shown + GAP
    marks = [
        *_rows(routed, high),
        *_choices(routed, shown, high),
        *_sums(routed, right, loads / routed.num_experts, high),
        *_touched(routed, right + loads + 12, high),
    ]
    return Scene(width, HEAD + rows * (high + 6) + FOOT, tuple(marks))


def _top(row: int, high: float) -> float:
    return HEAD + row * (high + 6)


def _rows(routed: Routed, high: float) -> Iterator[Mark]:
    for row, place in enumerate(routed.drawn):
        layer, y = routed.layers[place], _top(row, high) + high / 2 + 3.5
        yield Text(GUTTER - 8, y, f"layer {layer}", 10, "muted", anchor="end", key=routed.key(layer=layer))


def _choices(routed: Routed, shown: int, high: float) -> Iterator[Mark]:
    """A column a token: the number of each expert it was sent to, the one with most weight on top."""
    last = routed.positions[-shown:]
    heading = fit(f"experts of the last {len(last)} tokens", CELL * shown + GAP - 8, 11)
    yield Text(GUTTER, 12, heading, 11, "muted")
    for column, position in enumerate(last):
        tip = f"position {position}: {visible(routed.tokens[position], limit=40)}"
        label = fit(routed.tokens[position], CELL, 10)
        yield Text(GUTTER + (column + 0.5) * CELL, 36, label, 10, anchor="middle", tip=tip, key=_at(routed, position))
    each = high / routed.top_k
    for row, place in enumerate(routed.drawn):
        layer, experts = routed.layers[place], routed.chosen[place][-shown:]
        for column, position in enumerate(last):
            if column < len(experts):
                for rank, expert in enumerate(experts[column]):
                    x, y = GUTTER + column * CELL, _top(row, high) + rank * each
                    yield from _chip(x, y, each, int(expert), routed, layer, position)


def _at(routed: Routed, position: int) -> dict[str, int | str]:
    return routed.key(position=position)


def _chip(x: float, y: float, high: float, expert: int, routed: Routed, layer: int, position: int) -> Iterator[Mark]:
    key = routed.key(layer=layer, position=position)
    is_written = high >= 11 and expert < 100
    tip = "" if is_written else f"layer {layer}, position {position}: expert {expert}"
    yield Rect(x, y, CELL - 1, high - 1, hue(expert), tip=tip, key=key)
    if is_written:
        yield Text(x + (CELL - 1) / 2, y + high / 2 + 3, str(expert), 10, on=hue(expert), anchor="middle", key=key)


def _sums(routed: Routed, left: float, wide: float, high: float) -> Iterator[Mark]:
    """Tokens per expert, shaded up to FULL times an even share."""
    tokens = len(routed.positions)
    even, factor = routed.top_k / routed.num_experts, -(-routed.num_experts // MAX_CELLS)
    yield Text(left, 12, f"tokens of {tokens} per expert", 11, "muted")
    every = max(1, -(-16 // int(max(wide, 1))))
    for expert in range(0, routed.num_experts, every):
        yield Text(left + (expert + 0.5) * wide, 36, str(expert), 10, "muted", anchor="middle")
    for row, place in enumerate(routed.drawn):
        shades = (routed.counts[place] / len(routed.chosen[place]) / (FULL * even)).clip(0, 1)
        layer, y = routed.layers[place], _top(row, high)
        names = tuple(f"expert {i}: {n} of {tokens} tokens" for i, n in enumerate(routed.counts[place]))
        keys = (routed.key(layer=layer),)
        yield Rect(left - 1, y - 1, wide * routed.num_experts + 2, high + 1, stroke="line")
        pooled = np.maximum.reduceat(shades, np.arange(0, len(shades), factor))
        labels = names if factor == 1 else ()
        cell = wide * routed.num_experts / len(pooled)
        yield Grid(left, y, cell, high - 1, pooled[None], "mark", keys, (), (f"layer {layer}",), labels)
        if wide >= 22:
            for expert, count in enumerate(routed.counts[place]):
                x, y_text = left + (expert + 0.5) * wide, y + high / 2 + 3
                yield Rect(x - 10, y_text - 9, 20, 12, fill="panel", opacity=1)
                yield Text(x, y_text, fit(str(count), wide, 10), 10, anchor="middle", tip=names[expert])


def _touched(routed: Routed, x: float, high: float) -> Iterator[Mark]:
    expected = expected_experts(routed.num_experts, routed.top_k, len(routed.positions))
    yield Text(x, 12, "experts touched", 11, "muted")
    yield Text(x, 36, f"even routing: {expected:.1f} (computed)", 10, "muted")
    touched = routed.touched
    for row, place in enumerate(routed.drawn):
        count = touched[place]
        busiest = routed.counts[place].max() * routed.num_experts / routed.counts[place].sum()
        y = _top(row, high) + high / 2 + 3.5
        yield Text(x, y, f"{count} of {routed.num_experts}; busiest {busiest:.1f} x even", 10)


def _table(routed: Routed) -> pd.DataFrame:
    rows = [
        (layer, expert, int(tokens), tokens / len(routed.chosen[row]))
        for row, layer in enumerate(routed.layers)
        for expert, tokens in enumerate(routed.counts[row])
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _notes(routed: Routed, width: float) -> tuple[str, ...]:
    notes = [
        f"The sums count every position that was computed; each token counts {routed.top_k} times in a row.",
        f"The darkest shade is {FULL} times an even share or more.",
    ]
    if routed.num_experts > MAX_CELLS:
        pooled = -(-routed.num_experts // MAX_CELLS)
        notes.append(f"A cell is the busiest of {pooled} neighbouring experts; the table has all.")
    if len(routed.layers) > MAX_LAYERS:
        notes.append(f"{MAX_LAYERS} of {len(routed.layers)} layers are drawn; the table has all.")
    if routed.num_cached:
        notes.append(
            f"Positions {looked.spans(range(routed.num_cached))} are not counted: served from cache, not computed."
        )
    return looked.notes_for(notes, width)
