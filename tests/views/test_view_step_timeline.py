"""The step timeline: lanes and panels hold what the steps computed, whatever part of them is shown."""

from __future__ import annotations

from dataclasses import replace

import pictures
import pytest

from llmlab.errors import InvalidParameter
from llmlab.trace import Trace
from llmlab.trace.events import Step
from llmlab.views import step_timeline
from llmlab.views.scene import Line, Rect, Text


def test_the_lanes_hold_every_token_of_every_step(lab_trace, draft_trace, wire_trace):
    for trace in (lab_trace, draft_trace, wire_trace):
        table = step_timeline(trace).table()
        assert table.num_tokens.sum() == trace.steps.num_tokens.sum()
        prefill = table[table.kind.isin(["prefill", "recompute"])].num_tokens.sum()
        assert prefill == trace.steps.num_prefill_tokens.sum()


def test_the_first_line_sums_the_steps_up(lab_trace):
    steps = lab_trace.steps
    head = step_timeline(lab_trace).text.splitlines()[0]
    assert head == (
        f"88 steps: {steps.num_prefill_tokens.sum()} prefill and {steps.num_decode_tokens.sum()} decode tokens; "
        f"at most {steps.running.max()} running, {steps.waiting.max()} waiting, {steps.used.max()} of 21 blocks used"
    )


def test_a_lanes_stretches_follow_each_other_to_the_requests_end(lab_trace):
    table = step_timeline(lab_trace).table()
    for row in lab_trace.requests.itertuples():
        mine = table[table.request_id == row.request_id]
        ends = mine.start_ms + mine.duration_ms
        assert (mine.start_ms.iloc[1:].to_numpy() >= ends.iloc[:-1].to_numpy() - 1e-9).all()
        assert ends.iloc[-1] - mine.start_ms.iloc[0] == pytest.approx(row.e2e_ms, abs=1e-6)


def test_a_preempted_request_waits_again_and_computes_again(lab_trace):
    table = step_timeline(lab_trace).table()
    kinds = table[table.request_id == "r6"].kind.tolist()
    assert kinds == ["queued", "prefill", "decode", "preempted", "recompute", "decode"]
    again = table[(table.request_id == "r6") & (table.kind == "recompute")].num_tokens.sum()
    assert again == lab_trace.requests.num_preempted_tokens[6] + 1  # the token that was chosen last is new


def test_every_step_has_a_bar_as_high_as_its_tokens(lab_trace):
    bars = [m for m in step_timeline(lab_trace).scene.marks if isinstance(m, Rect) and m.key.keys() == {"step"}]
    heights: dict[int, float] = {}
    for bar in bars:
        heights[bar.key["step"]] = heights.get(bar.key["step"], 0) + bar.h
    tokens = lab_trace.steps.set_index("step").num_tokens
    assert list(heights) == tokens.index.tolist()
    per = heights[0] / tokens[0]
    assert list(heights.values()) == pytest.approx((tokens * per).tolist())


def test_the_staircase_of_blocks_reaches_its_peak(lab_trace):
    scene = step_timeline(lab_trace).scene
    used = next(m for m in scene.marks if isinstance(m, Line) and m.tip.startswith("used"))
    assert used.tip == f"used: at most {lab_trace.steps.used.max()}"
    assert max(y for _, y in used.points) - min(y for _, y in used.points) > 0


def test_a_window_shows_its_steps_only_and_says_so(lab_trace):
    view = step_timeline(lab_trace, first_step=10, last_step=30)
    inside = lab_trace.steps[lab_trace.steps.step.between(10, 30)]
    table = view.table()
    assert table.num_tokens.sum() == inside.num_tokens.sum()
    assert table.first_step.min() == 10
    assert table.last_step.max() == 30
    assert view.notes[0].startswith("21 of the trace's 88 steps (0 to 87) are shown")


def test_without_a_window_the_last_steps_of_a_long_trace_are_shown(long_trace):
    view = step_timeline(long_trace)
    assert view.table().last_step.max() == long_trace.steps.step.max()
    assert view.notes[0].startswith("160 of the trace's 551 steps")
    assert len(view.svg.encode()) < 64 * 1024


@pytest.mark.parametrize(
    ("window", "said"),
    [
        ({"first_step": 100}, "first_step=100 is not in the trace: its steps are 0 to 87"),
        ({"last_step": -1}, "last_step=-1 is not in the trace"),
        ({"first_step": True}, "first_step=True is not in the trace"),
        ({"first_step": 9, "last_step": 8}, "first_step=9 is after last_step=8"),
    ],
)
def test_a_wrong_window_is_refused_with_the_steps_there_are(lab_trace, window, said):
    with pytest.raises(InvalidParameter, match=said):
        step_timeline(lab_trace, **window)


def test_first_tokens_are_marked_when_they_were_chosen(lab_trace):
    marks = step_timeline(lab_trace).scene.marks
    firsts = {m.key["request"] for m in marks if isinstance(m, Rect) and "first token" in m.tip}
    assert firsts == set(lab_trace.requests.request_id)


def test_states_are_told_apart_without_colour(lab_trace):
    boxes = {}
    for mark in step_timeline(lab_trace).scene.marks:
        if isinstance(mark, Rect) and mark.key.get("request") and "first token" not in mark.tip:
            boxes[mark.tip.split()[1].rstrip(":")] = (bool(mark.fill), mark.hatch, mark.dash, mark.h)
    assert set(boxes) == {"queued", "prefill", "decode", "preempted", "recompute"}
    assert len(set(boxes.values())) == 5


def test_the_figure_has_the_tokens_of_the_steps(lab_trace):
    bars = [trace for trace in step_timeline(lab_trace).figure().data if trace.type == "bar"]
    assert sum(sum(bar.y) for bar in bars) == lab_trace.steps.num_tokens.sum()


def test_many_requests_get_lanes_as_far_as_there_is_room():
    import llmlab

    with llmlab.open("mock", background=False) as lab:
        runs = [lab.submit(f"{n}", max_tokens=2, ignore_eos=True) for n in range(60)]
        for run in runs:
            run.wait()
        view = step_timeline(lab.trace)
    lanes = {m.text for m in view.scene.marks if isinstance(m, Text) and m.bold and m.key.get("request")}
    assert len(lanes) == 40
    assert view.table().request_id.nunique() == 60
    assert "The last 40 of 60 requests have a lane; the table has all." in view.notes


@pytest.mark.parametrize("used", [-5, 10**9])
def test_counts_that_no_pool_has_stay_inside_the_picture(lab_trace, used):
    events = [replace(e, used=used) if isinstance(e, Step) and e.step == 3 else e for e in lab_trace.events]
    assert pictures.outside(step_timeline(Trace(events)).scene) == []
