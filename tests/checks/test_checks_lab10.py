"""Lab 10: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab10 import ADMIT_CASES, CHUNK_CASES, SLOT_CASES, admitted, empty_slot_steps, prefill_steps


def test_the_right_answers_pass():
    assert check.lab10.q1(empty_slot_steps)
    assert check.lab10.q2(prefill_steps)
    assert check.lab10.q3(admitted)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab10.q1(lambda lengths: ...))
    assert "replace the ..." in repr(check.lab10.q2(lambda prompt, budget, decoding: ...))
    assert "replace the ..." in repr(check.lab10.q3(lambda num_blocks, block_size, prompt, max_tokens: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda lengths: max(lengths) - min(lengths), "the shortest one's slot alone"),
        (lambda lengths: len(lengths) * max(lengths), "all slot-steps"),
        (sum, "slot-steps in use"),
        (max, "count slots in steps"),
    ],
)
def test_empty_slots_wrongly_counted(wrong, said):
    assert said in repr(check.lab10.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda prompt, budget, decoding: ceil(prompt / budget), "take one token each from the budget"),
        (lambda prompt, budget, decoding: prompt // (budget - decoding), "left over takes a step too"),
        (lambda prompt, budget, decoding: prompt // (budget - decoding) + 1, "fills its last chunk"),
        (lambda prompt, budget, decoding: ceil((prompt + decoding) / budget), "in every step, not once"),
        (lambda prompt, budget, decoding: ceil(prompt / (budget - decoding)) + 1, "also chooses the first token"),
    ],
)
def test_chunks_wrongly_counted(wrong, said):
    assert said in repr(check.lab10.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda blocks, size, prompt, limit: blocks // ceil((prompt + limit - 1) / size), "the careful rule does"),
        (lambda blocks, size, prompt, limit: blocks * size // prompt, "a block belongs to one request"),
        (lambda blocks, size, prompt, limit: blocks // max(prompt // size, 1), "round up"),
        (lambda blocks, size, prompt, limit: blocks // prompt, "a block per token"),
    ],
)
def test_admission_wrongly_counted(wrong, said):
    assert said in repr(check.lab10.q3(wrong))


@pytest.mark.parametrize("lengths", [case[0] for case in SLOT_CASES[1:]])
def test_the_static_policy_leaves_empty_what_the_check_says(lengths):
    with llmlab.open("mock", background=False, policy="static", max_num_seqs=len(lengths)) as lab:
        for length in lengths:
            lab.submit([*range(40, 44)], max_tokens=length)
        lab.engine.run_until_idle()
        steps = lab.trace.steps
    assert len(steps) * len(lengths) - steps.num_rows.sum() == empty_slot_steps(lengths)


@pytest.mark.parametrize(("prompt", "budget", "decoding"), CHUNK_CASES)
def test_the_engine_cuts_a_prompt_as_the_check_says(prompt, budget, decoding):
    with llmlab.open(
        "mock", background=False, prefix_cache="off", max_num_seqs=decoding + 1, max_num_batched_tokens=budget
    ) as lab:
        for _ in range(decoding):
            lab.submit([50, 51], max_tokens=40)
        lab.engine.step()
        late = lab.submit([40] * prompt, max_tokens=2)
        lab.engine.run_until_idle()
        rows = lab.trace.schedule
    steps = (rows.request_id == late.id) & (rows.action == "ran") & rows.is_prefill.eq(True)
    assert steps.sum() == prefill_steps(prompt, budget, decoding)


@pytest.mark.parametrize(("blocks", "size", "prompt", "limit"), ADMIT_CASES)
def test_the_engine_admits_what_the_check_says(blocks, size, prompt, limit):
    with llmlab.open(
        "mock",
        background=False,
        prefix_cache="off",
        num_blocks=blocks,
        block_size=size,
        max_num_seqs=100,
        max_num_batched_tokens=10_000,
    ) as lab:
        for _ in range(50):
            lab.submit([40] * prompt, max_tokens=limit)
        lab.engine.step()
        assert lab.trace.steps.num_rows.iloc[0] == min(50, admitted(blocks, size, prompt, limit))
