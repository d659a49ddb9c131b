"""The picture of prefill apart from decode: its counts are the trace's, with one process and with two."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import llmlab
from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import Span
from llmlab.trace.split_events import BlockTransfer, RankWork
from llmlab.views import handoff

if (views := str(Path(__file__).parents[1] / "views")) not in sys.path:
    sys.path.insert(0, views)
from pictures import outside, overlapping


@pytest.fixture(scope="module")
def one() -> Trace:
    """Three requests in one process, the second with a long prompt, stepped by hand."""
    with llmlab.open("mock", background=False, max_num_batched_tokens=32) as lab:
        runs = [lab.submit("x" * length, raw=True, max_tokens=6, ignore_eos=True) for length in (5, 90, 7)]
        for run in runs:
            run.wait()
        return lab.trace


@pytest.fixture(scope="module")
def two(one) -> Trace:
    """The same events, with what a prefill process would have told about the second request."""
    first = one.index.steps[0].t_ns
    told = [
        Span(first - 400, first - 300, "prefill process", "r1"),
        RankWork(first - 390, first - 310, 0, 1, "prefill", "forward", num_tokens=74),
        BlockTransfer(
            first - 300, first - 200, 0, "r1", "send", "prefill", "decode", "socket", (0, 1, 2, 3, 4, 5), 90, 768, "why"
        ),
    ]
    return Trace([*one.events, *told])


def test_counts_are_those_of_the_trace(one):
    table = handoff(one).table().set_index("request_id")
    assert table.num_output_tokens.tolist() == [6, 6, 6]
    assert table.computed_here.sum() == one.requests.num_prompt_tokens.sum() - table.num_cached_tokens.sum()
    assert "one process" in handoff(one).title
    assert table.longest_gap_ms.gt(0).all()


def test_what_another_process_did_is_told_apart(two):
    view = handoff(two)
    assert "r1: 91 prompt tokens, 90 computed there, 768 bytes by socket" in view.text
    assert "in two processes" in view.title
    assert view.table().set_index("request_id").nbytes.to_dict() == {"r0": 0, "r1": 768, "r2": 0}


def test_the_picture_stays_inside_and_readable(one, two):
    for view in (handoff(one), handoff(two), handoff(two, width=640)):
        assert not outside(view.scene)
        assert not overlapping(view.scene)
    assert handoff(one).svg != handoff(two).svg
    assert handoff(two, ["r1"]).table().request_id.tolist() == ["r1"]


def test_wrong_requests_are_refused_and_nothing_is_said_to_be_missing(one):
    with pytest.raises(UnknownRequest):
        handoff(one, ["r77"])
    with pytest.raises(InvalidParameter):
        handoff(one, [])
    assert "recorded" in handoff(Trace([])).text
