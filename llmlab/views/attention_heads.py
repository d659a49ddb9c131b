"""Every head's attention in small: layers down, query heads across, those that share a K/V head in one box."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.trace.trace import Trace
from llmlab.views import looked
from llmlab.views.attention_scene import whole
from llmlab.views.looked import Axis
from llmlab.views.palette import hue
from llmlab.views.scene import Grid, Mark, Rect, Scene, Text
from llmlab.views.svg import LEVELS
from llmlab.views.view import View

GUTTER, GAP, GROUP_GAP, PAD = 64, 4, 12, 5
MAX_SIDE, LARGE_SIDE, MAX_HEIGHT = 88, 168, 900
MAX_BYTES, MAX_THUMBS = 54_000, 2_000  # what the thumbnails of a still, and of any picture, may take
BOX, SHADE, THUMB = (
    18,
    32,
    260,
)  # about the bytes of a run of one shade, of a shade, and of a thumbnail's outline and tip
FAINT = 0.5 / (LEVELS - 1)  # below this a cell has the panel's own colour: left out, it looks the same
SIZES, LARGE_SIZES, FEW_LAYERS = (12, 8, 6), (32, 24, 16, 12, 8), 5


def attention_heads(
    trace: Trace,
    request_id: str | None = None,
    *,
    layer: int | None = None,
    cells: int | None = None,
    width: float = 960,
) -> View:
    """A thumbnail per layer and query head, or larger ones of one ``layer`` (negative: from the end).

    ``cells`` are the rows and columns of a thumbnail at most; by default as many as keep a still small, and layers are
    left out evenly where that is not enough. The table has all recorded layers and heads.

    Raises ``UnknownRequest`` and ``InvalidParameter`` (a layer that was not recorded, sizes that cannot be drawn).
    """
    looked.check_size("width", width, looked.MIN_WIDTH, 4_000)
    if cells is not None:
        looked.check_size("cells", cells, 2, 256)
    request_id = looked.looked_at(trace, request_id, "attention")
    captures = looked.captures_of(trace, request_id, ("attention",)) if request_id else None
    if captures is None or not captures.events:
        return looked.missing(trace, "attention_heads", request_id, "attention", "attention", width)
    layers = sorted({event.layer for event in captures.events})
    chosen = layers
    if layer is not None:
        chosen = [looked.one_of("layer", layer, layers, trace.info.num_layers if trace.info else layers[-1] + 1)]
    maps = {i: _maps(trace, request_id, i) for i in chosen}
    wall = _wall(trace, request_id, maps, cells, layer is not None)
    return _view(wall, maps, layer, width)


@dataclass(frozen=True, slots=True, eq=False)
class _Maps:
    """``weights`` ``(heads, queries, keys)`` of a layer, NaN for keys in a query's future."""

    heads: tuple[int, ...]
    queries: tuple[int, ...]
    weights: np.ndarray

    def pooled(self, cells: int) -> np.ndarray:
        """At most ``cells`` rows and columns, every cell as many queries as keys."""
        factor = -(-max(self.weights.shape[1:]) // cells)
        axes = [Axis(tuple(range(n)), factor) for n in self.weights.shape[1:]]
        return looked.pool(self.weights, *axes)


def _maps(trace: Trace, request_id: str, layer: int) -> _Maps:
    array = looked.captures_of(trace, request_id, ("attention",), layer).array("attention").sel(layer=layer)
    queries = array.labels["query"]
    future = np.arange(array.values.shape[-1]) > np.array(queries)[:, None]
    return _Maps(array.labels["head"], queries, np.where(future, np.nan, array.values.astype(np.float32)))


@dataclass(frozen=True, slots=True, eq=False)
class _Wall:
    """What is drawn: ``thumbs[layer]`` ``(heads, rows, columns)``, and per head the K/V head it reads, if known."""

    request_id: str
    thumbs: dict[int, np.ndarray]
    heads: tuple[int, ...]
    groups: dict[int, int] | None
    cells: int
    factor: int
    large: bool

    def grouped(self) -> list[tuple[int | None, list[int]]]:
        """K/V head (``None`` where the trace does not say) and the query heads that share it."""
        if self.groups is None:
            return [(None, list(self.heads))]
        shared = dict.fromkeys(self.groups.values())
        return [(kv, [h for h in self.heads if self.groups[h] == kv]) for kv in shared]


def _wall(trace: Trace, request_id: str, maps: dict[int, _Maps], cells: int | None, large: bool) -> _Wall:
    first = next(iter(maps.values()))
    sizes = LARGE_SIZES if large else SIZES
    thumbs, size = _fitting(maps, sizes if cells is None else (int(cells),), cells is not None)
    factor = -(-max(first.weights.shape[1:]) // size)
    groups = kv_heads(trace, first.heads)
    return _Wall(request_id, thumbs, first.heads, groups, size, factor, large)


def _fitting(maps: dict[int, _Maps], sizes: tuple[int, ...], fixed: bool) -> tuple[dict[int, np.ndarray], int]:
    """The finest thumbnails of the most layers that a still can hold."""
    layers, num_heads = list(maps), len(next(iter(maps.values())).heads)
    choices = [(size, step) for size in sizes for step in range(1, len(layers) + 1)]
    for size, step in choices:
        shown = _every(layers, step)
        count, is_last = len(shown) * num_heads, size == sizes[-1]
        is_too_many = count > (MAX_THUMBS if fixed else MAX_BYTES / THUMB)
        is_too_few = len(shown) < min(FEW_LAYERS, len(layers)) and not is_last and not fixed
        if is_too_few or (is_too_many and len(shown) > 1):
            continue  # no need to pool in order to know
        thumbs = {i: maps[i].pooled(size) for i in shown}
        if fixed or sum(map(_bytes, thumbs.values())) <= MAX_BYTES:
            break
    return thumbs, size


def _every(layers: list[int], step: int) -> list[int]:
    """Every ``step``-th layer, the last one always."""
    return sorted({*layers[::-1][::step]})


def _bytes(thumbs: np.ndarray) -> int:
    """About how many bytes of a still the thumbnails of a layer take."""
    weights = np.nan_to_num(thumbs)
    levels = np.where(weights < FAINT, -1, np.rint(weights * (LEVELS - 1))).astype(np.int64)
    runs = (np.diff(levels, axis=-1, prepend=-1) != 0) & (levels >= 0)
    used = np.zeros((len(thumbs), LEVELS + 1), bool)  # the last column takes what is not drawn
    used[np.arange(len(thumbs))[:, None], levels.reshape(len(thumbs), -1)] = True
    return BOX * int(runs.sum()) + SHADE * int(used[:, :LEVELS].sum()) + THUMB * len(thumbs)


def kv_heads(trace: Trace, heads: tuple[int, ...]) -> dict[int, int] | None:
    """Query head -> the K/V head it reads; ``None`` where the trace does not say how many heads there are."""
    num_heads, num_kv = (getattr(trace.info, name, 0) for name in ("num_heads", "num_kv_heads"))
    if not num_heads or not num_kv or num_heads % num_kv or max(heads) >= num_heads:
        return None
    return {head: head // (num_heads // num_kv) for head in heads}


# -- the picture ------------------------------------------------------------------------------------------------


def _scene(wall: _Wall, facts: pd.DataFrame, width: float) -> Scene:
    tips = {(row.layer, row.head): _tip(row) for row in facts.itertuples()}
    marks = list(_large(wall, tips, width) if wall.large else _overview(wall, tips, width))
    bottom = max(mark.y + mark.h for mark in marks if isinstance(mark, Rect))
    lines = looked.wrapped(_legend(wall), width)
    legend = [Text(0, bottom + 20 + 16 * i, line, looked.NOTE_SIZE, "muted") for i, line in enumerate(lines)]
    return Scene(width, bottom + 14 + 16 * len(lines), (*marks, *legend))


def _legend(wall: _Wall) -> str:
    one = "one query and key" if wall.factor == 1 else f"the largest of {wall.factor} x {wall.factor} weights"
    boxed = "; a box holds the heads that share a K/V head" if wall.groups else ""
    return f"Queries down, keys across; a cell is {one}, paler is less, empty below {FAINT:.0%}{boxed}."


def _tip(row) -> str:
    reads = "" if pd.isna(row.kv_head) else f" (K/V {row.kv_head})"
    return (
        f"layer {row.layer}, head {row.head}{reads}: mean weight on first key {row.first_key:.2f}, previous "
        f"{row.previous_key:.2f}, own {row.own_key:.2f}; entropy {row.entropy_nats:.2f} nats"
    )


def _overview(wall: _Wall, tips: dict, width: float) -> Iterator[Mark]:
    groups, shape = wall.grouped(), next(iter(wall.thumbs.values())).shape[1:]
    room = width - GUTTER - (GROUP_GAP + 2 * PAD) * len(groups)
    side = min(MAX_SIDE, room / len(wall.heads) - GAP, max(MAX_HEIGHT / len(wall.thumbs) - GAP - 2 * PAD, 8))
    cell = max(whole(side / max(shape)), 1)
    wide, high = cell * shape[1] + GAP, cell * shape[0] + GAP
    x = GUTTER
    pitch = max(high + 2 * PAD + 4, 14)
    for kv, heads in groups:
        inside = wide * len(heads)
        if kv is not None:
            yield Text(x, 12, f"K/V head {kv}" if inside > 60 else f"K/V {kv}", 11, "muted")
        for i, head in enumerate(heads):
            if wide >= 16 or i == 0:
                yield Text(x + PAD + i * wide + (wide - GAP) / 2, 27, str(head), 10, anchor="middle")
        for row, (layer, thumbs) in enumerate(wall.thumbs.items()):
            y = 34 + row * pitch
            yield Rect(x, y, inside - GAP + 2 * PAD, high - GAP + 2 * PAD, "", "line")
            for i, head in enumerate(heads):
                yield from _thumb(wall, layer, head, thumbs, x + PAD + i * wide, y + PAD, cell, tips)
        x += inside + 2 * PAD + GROUP_GAP
    yield Text(0, 27, "layer", 10, "muted")
    yield Text(GUTTER - 6, 27, "head", 10, "muted", anchor="end")
    for row, layer in enumerate(wall.thumbs):
        y = 34 + row * pitch + PAD + (high - GAP) / 2 + 4
        yield Text(44, y, str(layer), 11, anchor="end", key={"request": wall.request_id, "layer": layer})


def _large(wall: _Wall, tips: dict, width: float) -> Iterator[Mark]:
    (layer, thumbs), groups = next(iter(wall.thumbs.items())), wall.grouped()
    most = max(len(heads) for _, heads in groups)
    across = 6 if len(wall.heads) <= 12 else 8
    side = min(LARGE_SIDE, (width - GROUP_GAP - 4 * PAD) / across - 10)
    cell = max(whole(side / max(thumbs.shape[1:])), 1)
    wide, high = cell * thumbs.shape[2] + 10, cell * thumbs.shape[1] + 24
    per_row = max(1, int((width - 2 * PAD + 10) / wide))
    x, y = 0.0, 18.0
    for kv, heads in groups:
        rows = -(-len(heads) // per_row)
        box_w = wide * min(len(heads), per_row) - 10 + 2 * PAD
        if x and x + box_w > width:
            x, y = 0.0, y + high * (-(-most // per_row)) + 2 * PAD + 24
        if kv is not None:
            yield Text(x, y - 5, f"K/V head {kv}", 11, "muted")
        yield Rect(x, y, box_w, high * rows + 2 * PAD - 4, "", "line")
        for i, head in enumerate(heads):
            left, top = x + PAD + (i % per_row) * wide, y + PAD + (i // per_row) * high
            yield Text(
                left, top + 10, f"head {head}", 11, bold=True, tip=tips[layer, head], key=_key(wall, layer, head)
            )
            yield from _thumb(wall, layer, head, thumbs, left, top + 16, cell, tips)
        x += box_w + GROUP_GAP


def _thumb(wall: _Wall, layer: int, head: int, thumbs: np.ndarray, x, y, cell: float, tips: dict) -> Iterator[Mark]:
    values, key = thumbs[wall.heads.index(head)], _key(wall, layer, head)
    rows, columns = values.shape
    yield Rect(x - 1, y - 1, columns * cell + 2, rows * cell + 2, "panel", "line", tip=tips[layer, head], key=key)
    drawn = np.where(np.nan_to_num(values) < FAINT, np.nan, values)
    yield Grid(x, y, cell, cell, drawn, hue(head), row_keys=(key,) * rows)


def _key(wall: _Wall, layer: int, head: int) -> dict[str, int | str]:
    return {"request": wall.request_id, "layer": layer, "head": head}


# -- the facts --------------------------------------------------------------------------------------------------


def _view(wall: _Wall, maps: dict[int, _Maps], layer: int | None, width: float) -> View:
    facts = _table(wall, maps)
    shown, groups = looked.spans(list(maps)), wall.grouped()
    where = f"{len(maps)} layers x" if layer is None else f"layer {shown},"
    title = f"Attention of {wall.request_id}: {where} {len(wall.heads)} heads"
    first = next(iter(maps.values()))
    lines = [f"layers {shown}; query heads {looked.spans(wall.heads)}; queries {looked.spans(first.queries)}"]
    lines += [f"K/V head {kv}: query heads {looked.spans(heads)}" for kv, heads in groups if kv is not None]
    if wall.groups is None:
        lines.append("the trace does not say which query heads share a K/V head")
    alt = f"{title}, queries down and keys across, {len(groups)} groups of query heads."
    scene = _scene(wall, facts, width)
    return View("attention_heads", title, alt, "\n".join(lines), scene, facts, _notes(wall, maps, width))


def _notes(wall: _Wall, maps: dict[int, _Maps], width: float) -> tuple[str, ...]:
    left_out = len(maps) - len(wall.thumbs)
    if not left_out:
        return ()
    drawn = looked.spans(list(wall.thumbs), most=40)
    words = f"Drawn of the layers: {drawn}, evenly chosen of {len(maps)}; cells=N draws more, the table has all."
    return looked.notes_for([words], width)


def _table(wall: _Wall, maps: dict[int, _Maps]) -> pd.DataFrame:
    """One row per layer and head: means over its queries."""
    means = [_means(part) for part in maps.values()]
    heads = np.array(wall.heads)
    groups = [pd.NA if wall.groups is None else wall.groups[head] for head in wall.heads]
    table = {
        "layer": np.repeat(list(maps), len(heads)),
        "head": np.tile(heads, len(maps)),
        "kv_head": pd.array(groups * len(maps), dtype="Int64"),
        "queries": np.repeat([len(part.queries) for part in maps.values()], len(heads)),
    }
    table |= {name: np.concatenate([part[name] for part in means]) for name in means[0]}
    return pd.DataFrame(table)


def _means(part: _Maps) -> dict[str, np.ndarray]:
    """``(heads,)`` each: the mean weight on some keys, and the mean entropy of a row."""
    weights, own = np.nan_to_num(part.weights), np.array(part.queries)
    at, later = np.arange(len(own)), own > 0
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    before = weights[:, at[later], own[later] - 1]
    return {
        "first_key": weights[:, :, 0].mean(axis=1),
        "previous_key": before.mean(axis=1) if later.any() else np.full(len(weights), np.nan),
        "own_key": weights[:, at, own].mean(axis=1),
        "entropy_nats": -np.einsum("hqk,hqk->h", weights, logs) / len(own),
    }
