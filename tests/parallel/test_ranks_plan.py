"""What crosses to the other ranks, and how a step is divided into micro-batches: integers only, nothing lost."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request
from llmlab.errors import InvalidParameter
from llmlab.parallel.sent_plan import SentPlan, SentRow, micro_batches
from llmlab.parallel.split import Split


def scheduled() -> StepPlan:
    request = Request("r", list(range(100, 110)), SamplingParams(), seed=0, max_tokens=9)
    request.block_table, request.draft = [7, 3, 9], [5, 6]
    row = ScheduledRow(request, 8, 4, 0, False, True, num_logits=3, num_draft=2)
    return StepPlan(17, [row], [(3, 9)])


def test_a_plan_survives_json_with_its_drafts_and_copies():
    plan = SentPlan.of(scheduled())
    again = SentPlan.from_json(json.loads(json.dumps(plan.to_json())))
    assert (again.step, again.copies) == (17, [(3, 9)])
    (row,) = again.rows
    assert (row.start, row.end, row.num_logits) == (8, 12, 3)
    assert (row.token_ids, row.request.block_table) == ((108, 109, 5, 6), (7, 3, 9))


@st.composite
def plans(draw) -> SentPlan:
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    rows = [
        SentRow(draw(st.integers(0, 50)), tuple(range(n)), (i,), draw(st.integers(0, n))) for i, n in enumerate(lengths)
    ]
    return SentPlan(0, rows, [(1, 2)])


@given(plans(), st.integers(1, 12))
def test_micro_batches_hold_every_token_and_every_logit_once_in_order(plan, count):
    parts = micro_batches(plan, count)
    assert len(parts) == min(count, plan.num_tokens)
    sizes = [part.num_tokens for part in parts]
    assert max(sizes) - min(sizes) <= 1
    assert [part.copies for part in parts] == [[(1, 2)], *[[]] * (len(parts) - 1)]
    assert _places(plan.rows) == _places(row for part in parts for row in part.rows)


def _places(rows) -> list[tuple]:
    """(request, position, token, whether its logits are wanted) of every packed token."""
    return [
        (row.block_table, row.start + i, token, i >= row.num_tokens - row.num_logits)
        for row in rows
        for i, token in enumerate(row.token_ids)
    ]


def test_a_division_is_said_in_one_way_only():
    assert Split.of(tensor=1, pipeline=1) is None
    assert str(Split.of(tensor=3, pipeline=1)) == "tensor 3"
    assert str(Split.of(4, tensor=1, pipeline=2)) == "pipeline 2, 4 micro-batches"
    wrong = {
        "tensor_parallel=2 and pipeline_parallel=2": {"tensor": 2, "pipeline": 2},
        "tensor_parallel=0": {"tensor": 0},
        "pipeline_parallel='2'": {"pipeline": "2"},
        "tensor_parallel=True": {"tensor": True},
    }
    for words, sizes in wrong.items():
        with pytest.raises(InvalidParameter, match=words):
            Split.of(**sizes)
    with pytest.raises(InvalidParameter, match=r"micro_batches=.*pipeline"):
        Split.of(2, tensor=2)
    with pytest.raises(InvalidParameter, match="micro_batches=0"):
        Split.of(0, pipeline=2)
