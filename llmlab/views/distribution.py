"""How one output token was chosen: what every stage of the sampler made of the likeliest tokens, and the draw."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from llmlab.trace.distribution import COLUMNS, KIND, Distribution
from llmlab.trace.trace import Trace
from llmlab.views.choose import token_label
from llmlab.views.distribution_scene import MAX_ROWS, Panel, draw_scene
from llmlab.views.glyphs import fit, visible
from llmlab.views.heatmap import plain
from llmlab.views.looked import check_size, looked_at
from llmlab.views.phrases import count, some
from llmlab.views.sampling import Sampled, find
from llmlab.views.scene import Rect, Scene, Text
from llmlab.views.view import View

if TYPE_CHECKING:
    import plotly.graph_objects as go

RECORD = "lab.ask(prompt, capture=Capture(distribution=10)) records every stage of every output token"
SAVE = "logprobs=5 records the model's likeliest only; trace.save(path, captures=True) keeps what was captured"
MAX_LABEL = 40
TABLE = ["request_id", "output_index", *COLUMNS, "token"]


def distribution(trace: Trace, request_id: str | None = None, *, width: float = 960, index: int | None = None) -> View:
    """The sampler's stages for output token ``index`` (0: first, negative: from the end; default: the last recorded).

    A column per stage: the probabilities of the likeliest tokens before and after it, which ones it excluded, how many
    of the whole vocabulary are left, and the entropy. Below, the final distribution laid end to end and the number
    that was drawn. ``request_id``: by default the last request for which this was recorded. Where only ``logprobs=``
    was asked for, there is one column.

    Raises ``UnknownRequest`` and ``InvalidParameter``.
    """
    check_size("width", width, 480, 4_000)
    chosen = looked_at(trace, request_id, "distribution_prob") if trace.index.request_ids else request_id
    found = None if chosen is None else find(trace, chosen, index)
    if found is None:
        return _absent(trace, chosen, width)
    labels = [visible(token_label(trace, int(i)), limit=MAX_LABEL) for i in found.choice.ids]
    rows = _rows(found)
    scene = draw_scene(Panel(found, labels, rows, how(found, labels), width))
    return View(
        "distribution",
        f"How output token {found.index} of request {found.request_id} was chosen",
        _alt(found, labels),
        _text(found, labels),
        scene,
        _table(found, labels),
        _notes(found, len(rows)),
        lambda: _figure(found, labels),
    )


def _rows(found: Sampled) -> list[int]:
    """Places of the candidates shown: the likeliest in any stage, the chosen one always, by rank."""
    choice = found.choice
    best = np.argsort(-np.nan_to_num(choice.prob).max(axis=0), kind="stable")[:MAX_ROWS].tolist()
    if choice.chosen not in best:
        best[-1] = choice.chosen
    return sorted(best)


def _absent(trace: Trace, request_id: str | None, width: float) -> View:
    if request_id is None:
        what = "There is no request in this trace."
    else:
        events = [e for e in trace.index.captured if e.request_id == request_id and e.kind.startswith(KIND)]
        what = f"How the tokens of request {request_id} were chosen was not recorded."
        if events:
            what = f"How this token of request {request_id} was chosen is not beside the trace."
    lines = [what, f"{RECORD}.", f"{SAVE}."]
    marks = [Rect(0, 0, width, 76, stroke="line", dash=True, tip=what)]
    marks += [Text(16, 24 + 20 * i, fit(line, width - 32, 12), 12, "muted", tip=line) for i, line in enumerate(lines)]
    scene, table = Scene(width, 76, tuple(marks)), pd.DataFrame(columns=TABLE)
    return View("distribution", "Distribution: nothing to draw", what, "\n".join(lines), scene, table)


# -- words ----------------------------------------------------------------------------------------------------


def how(found: Sampled, labels: list[str]) -> str:
    """The last step in words: what decided for the token."""
    name, choice = labels[found.choice.chosen], found.choice
    if not found.is_whole:
        return f"{name} was chosen; the stages of the sampler were not recorded"
    if found.is_greedy:
        return f"temperature 0: nothing is drawn, the largest is taken: {name}"
    if not np.isnan(choice.uniform):
        return f"the number drawn falls on {name}"
    if found.token.source == "accepted":
        return f"{name} was drafted, and kept after comparing its probability with the draft's"
    return f"{name} stands in place of a draft token that was refused"


def _alt(found: Sampled, labels: list[str]) -> str:
    stages = f"{count(len(found.choice.stages), 'stage')} ({', '.join(found.choice.stages)})"
    return f"Probabilities of {count(len(labels), 'candidate')} over {stages}; {how(found, labels)}."


def _text(found: Sampled, labels: list[str]) -> str:
    choice, token = found.choice, found.token
    name = f"{labels[choice.chosen]} (id {token.token_id})"
    lines = [
        f"request {found.request_id}, output token {found.index} of {found.count} (position {token.position}): {name}"
    ]
    if found.is_whole:
        lines += [_stage_line(found, labels, j) for j in range(len(choice.stages))]
    else:
        lines.append(f"only the model's own distribution was asked for (logprobs={len(token.top)}): {RECORD}")
    return "\n".join([*lines, _rank_line(found), how(found, labels)])


def _stage_line(found: Sampled, labels: list[str], j: int) -> str:
    choice = found.choice
    gone = [labels[i] for i in range(len(labels)) if choice.left_at(i) == choice.stages[j]]
    removed = f"; excluded of the candidates: {some(gone)}" if gone else ""
    return f"  {found.rule(choice.stages[j])}: {count(int(choice.possible[j]), 'token')} possible{removed}"


def _rank_line(found: Sampled) -> str:
    rank = int(found.choice.rank[found.choice.chosen])
    if rank < 0:
        return "the chosen token is none of the likeliest recorded"
    return f"the chosen token has rank {rank} in the model's own distribution (0: likeliest)"


def _notes(found: Sampled, num_rows: int) -> tuple[str, ...]:
    notes = []
    if not found.is_whole:
        notes.append("Only the model's own distribution was recorded: Capture(distribution=10) records all stages.")
    if (hidden := len(found.choice.ids) - num_rows) > 0:
        notes.append(f"{count(hidden, 'candidate')} more in the table; here they count as other tokens.")
    return tuple(notes)


# -- numbers --------------------------------------------------------------------------------------------------


def _table(found: Sampled, labels: list[str]) -> pd.DataFrame:
    table = Distribution((found.choice,)).frame()
    table.insert(0, "request_id", found.request_id)
    table.insert(1, "output_index", found.index)
    table["token"] = labels * len(found.choice.stages)
    if not found.is_whole:
        table[["possible", "excluded"]] = pd.NA
        table["rank"] = table["rank"].astype("Int64").mask(table["rank"] < 0)
    table.attrs["columns"] = {
        "request_id": "id of the request",
        "output_index": "number of the output token (0: first)",
        **COLUMNS,
        "token": "text of the candidate, with visible whitespace",
    }
    return table


def _figure(found: Sampled, labels: list[str]) -> go.Figure:
    from plotly.subplots import make_subplots

    choice = found.choice
    names = [f"{plain(label, 20)} ({i})" for label, i in zip(labels, choice.ids.tolist(), strict=True)]
    titles = [plain(found.rule(stage)) for stage in choice.stages]
    figure = make_subplots(1, len(choice.stages), shared_yaxes=True, subplot_titles=titles)
    figure.update_layout(
        showlegend=False,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": "#808080"},
        height=140 + 22 * len(names),
        title=plain(f"How output token {found.index} of request {found.request_id} was chosen"),
    )
    colours = ["#e69f00" if i == choice.chosen else "#56b4e9" for i in range(len(names))]
    for j in range(len(choice.stages)):
        figure.add_bar(
            x=choice.prob[j], y=names, orientation="h", marker_color=colours, row=1, col=j + 1,
            hovertemplate="%{y}: %{x:.4f}<extra></extra>",
        )  # fmt: skip
    most = float(np.nanmax(choice.prob, initial=0.01))
    figure.update_xaxes(range=[0, most * 1.05], tickformat=".0%", gridcolor="rgba(128,128,128,.25)")
    figure.update_yaxes(autorange="reversed", gridcolor="rgba(128,128,128,.25)")
    return figure
