"""How the K/V cache grows: bytes of the blocks in use against the formula, and what other attentions would take."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from llmlab.errors import UnknownRequest
from llmlab.trace.events import EngineInfo
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.kv_bytes import (
    MLA_LATENT,
    MLA_ROPE,
    Costs,
    Growth,
    costs,
    growth_frame,
    pool_growth,
    request_growth,
)
from llmlab.views.kv_scene import MAX_COLUMNS, draw_growth
from llmlab.views.missing import missing_view
from llmlab.views.pool import NOTHING
from llmlab.views.scene import Scene
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

COLUMNS = (
    "step",
    "used_blocks",
    "tokens",
    "unfilled_slots",
    "measured_bytes",
    "formula_bytes",
    "mha_bytes",
    "mla_bytes",
)


def kv_growth(trace: Trace, request_id: str | None = None, *, width: float = 960) -> View:
    """K/V bytes of each step: blocks in use as recorded, and 2 x layers x K/V heads x head dimension x bytes of a
    number x tokens as computed; the gap is the unfilled ends of blocks.

    Beside it, for the step with most blocks, what the same tokens would take with a K/V head for each query head
    (multi-head attention) and with a compressed latent of 512 + 64 values a layer (multi-head latent attention as in
    DeepSeek-V2 and V3): arithmetic, not measured. With ``request_id`` it is about that request's block table.

    Raises ``UnknownRequest`` for a request that is not in the trace.
    """
    index = trace.index
    if index.info is None or not index.steps:
        return missing_view("kv_growth", "K/V growth", NOTHING, COLUMNS, width)
    if request_id is not None and request_id not in index.code:
        known = ", ".join(map(visible, index.request_ids[:20])) or "no request"
        raise UnknownRequest(f"request {request_id!r} is not in the trace: it has {known}")
    growth = pool_growth(index) if request_id is None else request_growth(index, request_id)
    if not len(growth.steps):
        what = f"No block table of {visible(request_id or '')} is in this trace: it has one while it runs."
        return missing_view("kv_growth", "K/V growth", what, COLUMNS, width)
    return _view(trace, request_id, growth, index.info, width)


def _view(trace: Trace, request_id: str | None, growth: Growth, info: EngineInfo, width: float) -> View:
    cost = costs(info)
    frame = growth_frame(growth, info, cost)
    marks, height = draw_growth(growth, info, cost, request_id, width)
    whose = "the pool" if request_id is None else visible(request_id)
    peak = frame.iloc[growth.peak]
    alt = (
        f"K/V bytes of {whose} over {len(frame)} steps: at most {peak.used_blocks} blocks, "
        f"{peak.measured_bytes:,} bytes, in step {peak.step}."
    )
    return View(
        "kv_growth",
        f"K/V growth of {whose}",
        alt,
        "\n".join([alt, *_facts(frame, growth, info, cost)]),
        Scene(width, height, tuple(marks)),
        frame,
        _notes(trace, growth, request_id, info, cost),
        plot=partial(_figure, frame, whose),
    )


def _facts(frame: pd.DataFrame, growth: Growth, info: EngineInfo, cost: Costs) -> list[str]:
    peak = frame.iloc[growth.peak]
    shape = f"2 x {info.num_layers} layers x {info.num_kv_heads} K/V heads x {info.head_dim} wide x {cost.number} bytes"
    lines = [
        f"one token: {shape} = {cost.formula:,} bytes; a block of {info.block_size}: {cost.pool * info.block_size:,}"
    ]
    if growth.known[growth.peak]:
        lines.append(
            f"step {peak.step}: {peak.used_blocks * info.block_size} slots hold {peak.tokens} tokens, "
            f"{peak.unfilled_slots} are unfilled: {peak.measured_bytes:,} bytes measured, "
            f"{peak.formula_bytes:,} by the formula"
        )
        lines.append(f"multi-head attention, computed: {_mha(peak, info)}")
        lines.append(f"latent attention ({MLA_LATENT} + {MLA_ROPE} values a layer), computed: {peak.mla_bytes:,} bytes")
    else:
        lines.append("the tokens in the blocks are not known: the block events do not account for all of them")
    return lines


def _mha(peak: pd.Series, info: EngineInfo) -> str:
    if not info.num_heads:
        return "not known, the trace does not say how many query heads there are"
    return f"{peak.mha_bytes:,} bytes with {info.num_heads} K/V heads"


def _notes(trace: Trace, growth: Growth, request_id: str | None, info: EngineInfo, cost: Costs) -> tuple[str, ...]:
    notes = []
    if request_id is not None:
        notes.append("Blocks that it shares with others count wholly.")
    elif trace.only:
        notes.append("This is a part of a trace: the steps count the blocks of all requests. Ask for one request.")
    if not cost.is_uniform:
        notes.append(
            f"Layers differ in shape: the pool takes {cost.pool:,} bytes a token, the formula {cost.formula:,}."
        )
    if not growth.known.all():
        missing = int((~growth.known).sum())
        notes.append(
            f"In {missing} of {len(growth.steps)} steps the block events do not account for the blocks in use."
        )
    if info.num_host_blocks:
        total = info.num_host_blocks * info.block_size * cost.pool
        notes.append(f"The host pool, {info.num_host_blocks} blocks of {total:,} bytes in all, is not counted here.")
    if len(growth.steps) > MAX_COLUMNS:
        notes.append(
            f"Each of the {MAX_COLUMNS} columns is the step with most blocks of its neighbours; the table has all."
        )
    return tuple(notes)


def _figure(frame: pd.DataFrame, whose: str) -> go.Figure:
    import plotly.graph_objects as go

    series = (
        ("measured_bytes", "blocks in use, measured", "solid"),
        ("formula_bytes", "tokens x formula", "dash"),
        ("mha_bytes", "multi-head attention, computed", "dot"),
        ("mla_bytes", "latent attention, computed", "dashdot"),
    )
    figure = go.Figure()
    for column, name, dash in series:
        if frame[column].notna().any():
            values = frame[column].astype("Float64").to_numpy(dtype=float, na_value=float("nan"))
            line = {"dash": dash, "shape": "hv"}
            figure.add_scatter(x=frame["step"].to_numpy(), y=values, name=name, mode="lines", line=line)
    grid = {"gridcolor": "rgba(128,128,128,.25)"}
    figure.update_layout(
        title={"text": f"K/V growth of {whose}".replace("<", "&lt;")},
        xaxis={"title": "step", **grid},
        yaxis={"title": "bytes", "rangemode": "tozero", **grid},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"},
    )
    return figure
