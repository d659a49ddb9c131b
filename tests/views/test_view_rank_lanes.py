"""The lanes of ranks: everything recorded is drawn and told once, with its messages from one lane to another."""

from __future__ import annotations

import pytest
from pictures import unsafe
from recordings import INVISIBLE, MARKUP, MS

from llmlab.errors import InvalidParameter
from llmlab.trace.split_events import Collective, RankWork
from llmlab.trace.trace import Trace
from llmlab.views import rank_lanes
from llmlab.views.scene import Line, Rect, Text


def tensor_trace(steps: int = 1, layers: int = 2, ranks: int = 3) -> Trace:
    """Rank 2 is late for every collective."""
    events = []
    for step in range(steps):
        zero = 100 * step * MS
        events += [
            RankWork(zero, zero + 90 * MS, step, r, "tensor", "forward", -1, 0, layers - 1, 7) for r in range(ranks)
        ]
        for i in range(2 * layers):
            begin, end = zero + (10 * i + 1) * MS, zero + (10 * i + 9) * MS
            place = ("attention", "mlp")[i % 2]
            for r in range(ranks):
                start = begin + (5 * MS if r == ranks - 1 else 0)
                events.append(Collective(start, end, step, r, "tensor", "all_reduce", i // 2, place, 672, ranks))
    return Trace(events)


def rects(view, **wanted) -> list[Rect]:
    return [m for m in view.scene.marks if isinstance(m, Rect) and all(getattr(m, k) == v for k, v in wanted.items())]


def test_every_rank_has_a_lane_and_every_micro_batch_a_box_with_its_number(ranks_trace):
    view = rank_lanes(ranks_trace, first_step=0, last_step=3)
    names = [m.text for m in view.scene.marks if isinstance(m, Text) and m.bold]
    assert names == ["pipeline rank 0", "pipeline rank 1"]
    boxes = [m for m in rects(view) if ": forward" in m.tip]
    assert len(boxes) == len([e for e in ranks_trace.index.rank_work if e.name == "forward"]) == 24
    assert {m.key["step"] for m in boxes} == {0, 1, 2, 3}


def test_counts_and_bytes_are_those_of_the_trace(ranks_trace):
    view = rank_lanes(ranks_trace, first_step=0, last_step=3)
    table, calls = view.table(), ranks_trace.collectives
    assert table.nbytes.sum() == calls.nbytes.sum()
    assert table.messages.sum() == len(calls)
    assert table.num_tokens.sum() == ranks_trace.ranks.query("name == 'forward'").num_tokens.sum()
    sent = calls.query("step == 2 and kind == 'send'").nbytes.sum()
    assert f"3 send (stage) of {sent:,} bytes in all" in view.text


def test_a_message_is_a_line_from_the_lane_that_sent_it_to_the_one_that_got_it(ranks_trace):
    view = rank_lanes(ranks_trace, first_step=1, last_step=1)
    lines = [m for m in view.scene.marks if isinstance(m, Line) and "from rank 0 to rank 1" in m.tip]
    assert len(lines) == 3
    assert all(line.points[0][0] < line.points[1][0] and line.points[0][1] < line.points[1][1] for line in lines)


def test_empty_slots_of_a_pipeline_are_counted_beside_the_formula(ranks_trace):
    assert (
        "step 3: 4 slots of 2 stages, 2 of 8 empty (25%; (p - 1) / (m + p - 1) is 25%)" in rank_lanes(ranks_trace).text
    )


def test_a_rank_that_called_early_is_hatched_until_the_last_one_called():
    view = rank_lanes(tensor_trace())
    waits = [m for m in rects(view, hatch=True) if "all_reduce" in m.tip]
    assert len(waits) == 4 * 2  # collectives of the two ranks that are in time
    assert not any("rank 2" in m.tip for m in waits)
    assert all("all_reduce (layer" in m.tip for m in waits)


def test_ranks_that_did_the_same_are_told_together():
    text = rank_lanes(tensor_trace()).text
    assert text.count("\n") == 0
    assert text.startswith(
        "step 0, tensor ranks 0 to 2, each: 7 tokens, layers 0 to 1; 2 all_reduce (attention) of 1,344"
    )


def test_few_steps_are_shown_and_fewer_where_there_are_many_messages():
    assert "steps 7 to 9" in rank_lanes(tensor_trace(10)).title
    busy = rank_lanes(tensor_trace(10, layers=30))
    assert busy.title.endswith("step 9")
    assert "Shown: 1 of the 10 steps" in busy.notes[0]
    many = rank_lanes(tensor_trace(70), first_step=2)
    assert "steps 2 to 61" in many.title


def test_thousands_of_messages_become_fewer_marks():
    trace = tensor_trace(40, layers=30)
    assert len(trace.index.collectives) == 7_200
    assert len(rank_lanes(trace, first_step=0).scene.marks) < 4_000


def test_steps_that_are_not_there_are_refused_with_those_that_are(ranks_trace):
    for wrong in ({"first_step": 9}, {"last_step": -1}, {"first_step": "1"}):
        with pytest.raises(InvalidParameter, match="0 to 3"):
            rank_lanes(ranks_trace, **wrong)
    with pytest.raises(InvalidParameter, match="after"):
        rank_lanes(ranks_trace, first_step=3, last_step=1)


def test_steps_in_which_no_rank_worked_are_refused_with_their_neighbours():
    trace = Trace([RankWork(0, 1, 3, 0, "tensor", "forward"), RankWork(9, 10, 200, 0, "tensor", "forward")])
    with pytest.raises(InvalidParameter, match="nearest are 3 and 200"):
        rank_lanes(trace, first_step=50, last_step=60)


def test_lanes_that_nobody_could_read_are_counted_and_not_drawn():
    trace = Trace([RankWork(10 * r * MS, (10 * r + 9) * MS, 0, r, "tensor", "forward") for r in range(3_000)])
    view = rank_lanes(trace)
    assert sum(isinstance(m, Text) and m.bold for m in view.scene.marks) == 32 == len(view.table())
    assert "The first 32 of 3,000 processes have a lane" in view.notes[0]


def test_names_from_an_unkind_file_are_shown_and_not_obeyed():
    evil = MARKUP + INVISIBLE
    view = rank_lanes(Trace([RankWork(0, MS, 0, 0, evil, evil), Collective(0, MS, 0, 0, evil, evil, 1, evil, 64, 1)]))
    assert not {"\u202e", "\x00", "\x1b"} & {*view.text, *view.title, *view.alt, *view.svg}
    assert unsafe(view.svg) == []


def test_a_width_that_cannot_be_drawn_is_refused(ranks_trace):
    with pytest.raises(InvalidParameter, match="width=100"):
        rank_lanes(ranks_trace, width=100)
