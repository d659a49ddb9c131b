"""Batch lanes show every decision and every token of the schedule."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from time import perf_counter

import drawn
import pytest
import recordings

import llmlab
from llmlab.engine.plan import Reason
from llmlab.errors import InvalidParameter
from llmlab.trace import Trace
from llmlab.trace.events import Decision
from llmlab.views.batch_lanes import batch_lanes
from llmlab.views.lanes import LETTERS, RAN
from llmlab.views.scene import Rect, Text


def whole(trace, **options):
    """The view of all steps."""
    numbers = trace.steps["step"]
    return batch_lanes(trace, first_step=int(numbers.iloc[0]), last_step=int(numbers.iloc[-1]), **options)


def test_the_table_is_the_schedule(lab_trace):
    table, schedule = whole(lab_trace).table(), lab_trace.schedule
    order = ["step", "request_id"]
    table, schedule = (t.sort_values(order).reset_index(drop=True) for t in (table, schedule))
    for column in ("step", "request_id", "num_tokens", "reason", "by"):
        assert table[column].tolist() == schedule[column].tolist()
    assert table["did"].isin(RAN).tolist() == (schedule["action"] == "ran").tolist()


def test_tokens_of_the_cells_sum_to_those_of_the_steps(lab_trace, draft_trace):
    for trace in (lab_trace, draft_trace):
        found = whole(trace).table().groupby("step")["num_tokens"].sum()
        assert found.tolist() == trace.steps["num_tokens"].tolist()


def test_each_cell_that_ran_is_drawn_with_its_key(lab_trace):
    view = batch_lanes(lab_trace)
    ran = view.table().query("did in ['prefill', 'recompute', 'decode', 'verify']")
    boxes = [m for m in view.scene.marks if isinstance(m, Rect) and m.fill.startswith("c") and "step" in m.key]
    assert sorted((m.key["step"], m.key["request"]) for m in boxes) == sorted(
        zip(ran["step"], ran["request_id"], strict=True)
    )


def test_waiting_boxes_are_as_long_as_the_waiting(lab_trace):
    view = whole(lab_trace)
    pitch = _pitch(view)
    boxes = [m for m in view.scene.marks if isinstance(m, Rect) and m.hatch and m.key]
    drawn_steps = sum(round((m.w + 1) / pitch) for m in boxes)
    assert boxes
    assert drawn_steps == (lab_trace.schedule["action"] == "waited").sum()


def _pitch(view):
    axis = sorted(
        (m.x, int(m.text)) for m in view.scene.marks if isinstance(m, Text) and m.text.isdigit() and m.y > 250
    )
    (x0, step0), (x1, step1) = axis[0], axis[-1]
    return (x1 - x0) / (step1 - step0)


def test_bars_are_as_high_as_the_tokens_of_their_step(lab_trace):
    view = batch_lanes(lab_trace)
    bars = [m for m in view.scene.marks if isinstance(m, Rect) and set(m.key) == {"step"}]
    heights: dict[int, float] = {}
    for bar in bars:
        heights[bar.key["step"]] = heights.get(bar.key["step"], 0) + bar.h
    tokens = lab_trace.steps.set_index("step")["num_tokens"]
    scale = {round(height / tokens[step], 6) for step, height in heights.items()}
    assert len(heights) > 10
    assert len(scale) == 1


def test_every_reason_that_occurs_is_spelled_out(lab_trace):
    view = whole(lab_trace)
    waited = lab_trace.schedule.query("action == 'waited'")["reason"].unique()
    legend = [m.text for m in view.scene.marks if isinstance(m, Text) and m.text.startswith("waited: ")]
    assert sorted(legend) == sorted(f"waited: {reason}" for reason in waited)
    assert all(reason in view.text for reason in waited)


def test_every_reason_to_wait_of_the_scheduler_has_a_letter_of_its_own():
    wait = {r for r in Reason if r.name.startswith(("NO_", "OUT_")) or r.name in WAITS}
    swapped = {f"{reason}; {Reason.SWAPPED}" for reason in (Reason.OUT_OF_BLOCKS, Reason.OUT_OF_OWN_BLOCKS)}
    assert set(LETTERS) == {str(reason) for reason in wait} | swapped
    assert len(set(LETTERS.values())) == len(LETTERS)


WAITS = ("BEHIND", "SHARES_PROMPT", "STATIC_BATCH", "JUST_PREEMPTED")


def test_an_unknown_reason_gets_a_letter_too(lab_trace):
    odd = "the moon is full"
    events = [
        Decision(e.t_ns, e.step, e.request_id, e.action, odd, e.num_tokens, e.by)
        if isinstance(e, Decision) and e.action == "waited" and e.reason == Reason.BEHIND
        else e
        for e in lab_trace.events
    ]
    view = whole(Trace(events))
    assert f"waited: {odd}" in [m.text for m in view.scene.marks if isinstance(m, Text)]


def test_the_story_tells_chunks_waiting_preemption_and_the_end(lab_trace):
    text = whole(lab_trace).text
    preempted = lab_trace.schedule.query("action == 'preempted'")
    assert len(preempted)
    for row in preempted.itertuples():
        line = next(s for s in text.splitlines() if s.startswith(f"{row.request_id}: "))
        assert f"preempted by {row.by} ({row.reason})" in line
        assert "recompute " in line
    lines = text.splitlines()[1:]
    assert [line.split(":")[0] for line in lines] == lab_trace.index.request_ids
    assert all(line.endswith(": length") for line in lines)
    first = lab_trace.schedule.query("request_id == 'r0' and is_prefill")["num_tokens"]
    assert f"r0: prefill {'+'.join(map(str, first))}, decode" in text


def test_drafts_are_told_from_plain_decoding(draft_trace):
    view = whole(draft_trace)
    verified = draft_trace.schedule["reason"] == Reason.VERIFY
    assert (view.table()["did"] == "verify").sum() == verified.sum() > 0
    assert "with drafts" in view.text


def test_a_long_trace_shows_the_window_with_most_waiting(lab_trace):
    view = batch_lanes(lab_trace, width=300)
    table = view.table()
    first, last = table["step"].min(), table["step"].max()
    held = lab_trace.schedule["action"].isin(["waited", "preempted"])
    steps = lab_trace.schedule["step"][held]
    size = last - first + 1
    best = max(((steps >= s) & (steps < s + size)).sum() for s in range(len(lab_trace.steps) - size + 1))
    assert ((steps >= first) & (steps <= last)).sum() == best
    assert view.notes
    assert "most waiting" in view.notes[0]


def test_seeded_runs_have_the_same_text_and_different_traces_different_marks(lab_trace, other_trace):
    assert batch_lanes(recordings.record_lab()).text == batch_lanes(lab_trace).text
    assert batch_lanes(lab_trace).scene != batch_lanes(other_trace).scene


def test_a_loaded_trace_gives_the_same_view(lab_trace, tmp_path):
    loaded = Trace.load(lab_trace.save(tmp_path / "a.jsonl.gz"))
    assert batch_lanes(loaded).svg == batch_lanes(lab_trace).svg


def test_wrong_steps_are_named(lab_trace):
    with pytest.raises(InvalidParameter, match="its steps are 0 to"):
        batch_lanes(lab_trace, first_step=-1)
    with pytest.raises(InvalidParameter, match="last_step=9999"):
        batch_lanes(lab_trace, last_step=9_999)
    with pytest.raises(InvalidParameter, match="after last_step"):
        batch_lanes(lab_trace, first_step=5, last_step=4)


@pytest.mark.parametrize("trace", [Trace([]), recordings.info_only()])
def test_without_steps_it_says_what_to_record(trace):
    view = batch_lanes(trace)
    assert "No engine step" in view.text
    assert "submit" in view.text
    assert not len(view.table())
    assert not drawn.faults(view)


def test_nothing_is_outside_or_on_one_another(lab_trace, other_trace, draft_trace, hostile_trace, wire_trace):
    for trace in (lab_trace, other_trace, draft_trace, hostile_trace, wire_trace):
        assert drawn.faults(batch_lanes(trace)) == []
        assert drawn.faults(whole(trace)) == []
    assert len(batch_lanes(lab_trace).svg) < 64_000


def test_a_part_of_a_trace_says_that_steps_have_other_rows(lab_trace):
    view = batch_lanes(lab_trace.for_request("r6"))
    assert "part of a trace" in view.notes[-1]
    assert view.text.count("\n") == 1


def test_an_aborted_request_ends_in_its_lane():
    with llmlab.open("mock", background=False) as lab:
        run = lab.submit("stop me", max_tokens=50)
        for _ in range(3):
            lab.engine.step()
        run.abort()
        lab.engine.step()
        view = batch_lanes(lab.trace)
    assert view.text.endswith(": aborted")


def test_five_hundred_steps_of_many_requests_stay_drawable():
    with llmlab.open("mock", num_blocks=600, max_num_seqs=32, background=False) as lab:
        for n in range(40):
            lab.submit(f"request {n}", max_tokens=150 + 7 * n, ignore_eos=True)
        lab.engine.run_until_idle()
        trace = lab.trace
    assert len(trace.steps) > 400
    start = perf_counter()
    view = batch_lanes(trace, first_step=0, last_step=int(trace.steps["step"].iloc[-1]))
    assert perf_counter() - start < 2
    assert drawn.faults(view) == []
    assert len(view.scene.marks) < 3_000
    assert view.table()["step"].max() == 399
    assert any("of 40 requests" in note for note in view.notes)


def test_hostile_request_ids_and_reasons_stay_text():
    with llmlab.open("mock", background=False) as lab:
        lab.engine.submit([1, 2, 3], request_id="<script>\u202e\x00" + "x" * 300)
        lab.engine.run_until_idle()
        view = batch_lanes(lab.trace)
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text
    assert "\x00" not in view.text
    assert drawn.faults(view) == []


def test_step_numbers_far_apart_take_no_memory(lab_trace):
    last = lab_trace.index.steps[-1]
    trace = Trace([*lab_trace.events, replace(last, step=2**31 - 1)])
    tracemalloc.start()
    assert batch_lanes(trace).frame["step"].max() == 2**31 - 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000_000
