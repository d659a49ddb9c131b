"""How much is drafted follows acceptance and batch size, and every change has a reason."""

from __future__ import annotations

import pytest
from guessing import Guesser, speculating_engine
from mock_serving import assert_all_returned, continuation, greedy, prompt

from llmlab.engine.speculative.adaptive import CPU, PAUSE, Adaptive, best_length, slowdown, step_time_on


def test_length_grows_with_acceptance_and_shrinks_with_the_batch():
    for batch in (1, 4, 16):
        lengths = [best_length(rate / 10, batch, 8) for rate in range(11)]
        assert lengths == sorted(lengths)
        assert lengths[0] == 0
    for rate in (0.5, 0.8):
        lengths = [best_length(rate, batch, 8) for batch in (1, 2, 4, 8, 16, 64)]
        assert lengths == sorted(lengths, reverse=True)
        assert lengths[0] > lengths[-1]
    assert best_length(1.0, 1, 8) == 8


def test_the_length_is_the_one_with_most_tokens_per_time():
    def speed(k: int) -> float:
        return sum(0.6**i for i in range(k + 1)) / slowdown(k, 4, 0.03, CPU)

    assert best_length(0.6, 4, 12, 0.03) == max(range(13), key=speed)


def test_rows_that_fit_beside_the_reading_of_the_weights_cost_little():
    assert 1 < slowdown(4, 1, 0.0, CPU) < 1.1
    assert slowdown(4, 2, 0.0, CPU) > 1.2


def test_what_proposing_costs_shortens_drafts_and_may_end_them():
    def lengths(draft_cost: float) -> int:
        return Adaptive(8, draft_cost).choose("r", 1)[0]

    assert lengths(0.0) > lengths(0.2) > lengths(0.8) == 0


def test_a_gpu_takes_larger_batches_before_rows_cost_anything():
    assert slowdown(3, 16, 0.0, step_time_on("cuda:0")) < slowdown(3, 16, 0.0, step_time_on("cpu")) / 1.5


def test_bad_guesses_turn_it_off_and_it_is_tried_again_after_a_pause():
    adaptive = Adaptive(4)
    lengths, reasons = [], []
    for _ in range(PAUSE + 40):
        k, reason = adaptive.choose("r", 1)
        lengths.append(k)
        reasons += [reason] if reason else []
        if k:
            adaptive.add("r", 0, 1)
    first_off = lengths.index(0)
    assert lengths[0] == 4
    assert lengths[first_off : first_off + PAUSE + 1] == [0] * (PAUSE + 1)
    assert lengths[first_off + PAUSE + 1] == 1
    assert any("acceptance" in reason for reason in reasons)
    assert any("tried again" in reason for reason in reasons)


def test_good_guesses_bring_it_back():
    adaptive = Adaptive(4)
    for _ in range(40):
        if adaptive.choose("r", 1)[0]:
            adaptive.add("r", 0, 1)
    lengths = []
    for _ in range(PAUSE + 40):
        k, _ = adaptive.choose("r", 1)
        lengths.append(k)
        if k:
            adaptive.add("r", k, k)
    assert lengths[-1] == 4


@pytest.mark.parametrize(("right", "drafted"), [(0.0, False), (1.0, True)])
def test_in_the_engine(right, drafted):
    engine = speculating_engine(Guesser(right), adaptive=True, num_blocks=200)
    run = engine.submit(prompt(5), greedy(40)).wait()
    assert run.token_ids == continuation(prompt(5), 40)
    policies = engine.trace.draft_policies
    assert policies.k.iloc[0] == 4
    assert bool(policies.k.iloc[-1] > 0) is drafted
    assert policies.reason.str.len().min() > 0
    assert policies.k.ne(policies.k.shift()).all()
    assert_all_returned(engine)


def test_a_crowd_is_drafted_for_less_than_a_single_request():
    def judged(requests: int) -> float:
        engine = speculating_engine(Guesser(0.75), adaptive=True, num_blocks=600, slots=16, budget=256, k=8)
        runs = [engine.submit(prompt(5, i), greedy(40)) for i in range(requests)]
        assert all(run.wait().finished for run in runs)
        return float(engine.trace.drafts.num_drafted.mean())

    assert judged(16) < judged(1)
