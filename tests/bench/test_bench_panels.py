"""What panels cost, at its shortest and without a browser: counts and structure, no times."""

from __future__ import annotations

import json

import comm
import pytest

from llmlab.bench.panels import (
    MESSAGES_AIM,
    PACED,
    UNPACED,
    Effort,
    PanelFigures,
    measure_panels,
    panel_object,
    panel_rows,
    panel_table,
)
from llmlab.bench.panels_lab import STREAMS, PacedRunner, Served, Watching, counted_comms, measure_watching
from llmlab.bench.panels_page import Pages, Window
from llmlab.bench.panels_views import INDEX, Built, Size, large_trace, measure_views
from llmlab.widgets.canvas import Canvas, Code

TINY = Size(prompt_tokens=200, steps=8, blocks=64)


@pytest.fixture(scope="module")
def figures():
    return measure_panels(1, effort=Effort(4, 8, 0.0, TINY), browser=False)


def test_both_sides_serve_the_same_work_at_both_paces(figures):
    assert set(figures.watching) == {PACED, UNPACED}
    for name, tokens in ((PACED, 4), (UNPACED, 8)):
        found = figures.watching[name]
        assert [each.tokens for each in found.headless + found.watched] == [STREAMS * tokens] * 2
        assert [each.messages for each in found.headless] == [0]


def test_every_view_is_built_and_those_without_data_say_so(figures):
    import llmlab.views

    assert [each.name for each in figures.views] == [INDEX, *(view.__name__ for view in llmlab.views.ALL)]
    empty = {each.name for each in figures.views if each.is_empty}
    assert {"attention", "lens", "hidden", "draft_rounds"} <= empty
    assert not empty & {"waterfall", "block_map", "wire_view", "token_strip", "anatomy"}
    assert not empty & {row.label for row in panel_rows(figures)}


def test_the_report_says_what_was_left_out_and_json_holds_everything(figures):
    written = json.loads(json.dumps(panel_object(figures)))
    assert written["trace"] == {"prompt_tokens": 200, "steps": 8, "blocks": 64}
    assert written["watching"][PACED]["watched"][0]["tokens"] == 4 * STREAMS
    assert panel_table(figures).row_count == len(panel_rows(figures))
    assert panel_rows(figures)[-1].measured == "not measured: it was left out"


def test_aims_are_judged():
    slow = Watching(0.016, [Served(1.0, 100)] * 3, [Served(1.0, 90, messages=30, bytes=10)] * 3)
    page = Window("a window", 0.1, 0.5, None, None, 5.0, 3, 400.0)
    made = PanelFigures({PACED: slow}, [Built(INDEX, 1.0), Built("one", 1.0, 2.0)], Pages([page]))
    met = {row.label: row.met for row in panel_rows(made) if row.met is not None}
    assert met == {
        f"{PACED}: speed with panels, without = 1": False,
        f"{PACED}: messages to the page": False,
        f"{PACED}: bytes to the page": True,
        "slowest view: one": True,
        "a window: added to the main thread": False,
        "a window: from running the cell to drawn": True,
    }


def test_a_dashboard_that_was_not_drawn_misses_its_aim():
    page = Window("a window", 0.1, 0.2, 0.1, 0.2, 5.0, 3, None)
    rows = panel_rows(PanelFigures({}, [Built("one", 1.0)], Pages([page])))
    assert [row.met for row in rows if "drawn" in row.label] == [False]


def test_the_long_trace_is_as_long_as_it_says():
    trace = large_trace(TINY)
    first = next(iter(trace.index.submitted.values()))
    assert len(first.prompt_token_ids) == 200
    assert trace.index.info.num_blocks == 64
    assert trace.index.finished[first.request_id].usage["output_tokens"] == 8
    assert len(trace.exchanges) == 1
    assert all(each.nbytes > 0 for each in measure_views(trace, repeats=1) if each.name != INDEX)


def test_messages_are_counted_where_they_leave_and_the_comms_are_put_back():
    before = comm.create_comm
    with counted_comms() as traffic:
        code = Code()
        canvas = Canvas(code=code)
        opened = len(traffic.sizes)
        canvas.show(scene=b"x" * 10_000)
        assert len(traffic.sizes) == opened + 1
        assert 10_000 < traffic.sizes[-1] < 11_000
        canvas.close(), code.close()
    assert comm.create_comm is before


def test_a_paced_runner_answers_as_the_runner_does():
    import torch

    class Runner:
        capacity, model = "capacity", "name"

        def build(self, plan):
            return plan

        def forward(self, batch):
            return torch.ones(batch)

    paced = PacedRunner(Runner(), 0.001)
    assert (paced.capacity, paced.model, paced.build(3)) == ("capacity", "name", 3)
    assert paced.forward(2).tolist() == [1, 1]


def test_under_a_flood_messages_and_bytes_stay_within_the_budget():
    found = measure_watching(1, 200, 0.0)
    watched = found.watched[0]
    bucket = MESSAGES_AIM * (watched.seconds + 1)  # a full one when the traffic begins
    assert 0 < watched.messages <= bucket
    assert watched.bytes <= 200_000 * (watched.seconds + 3)  # a full one, and what a last large message may owe
