"""Lab 12: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest
import torch

from llmlab.checks import check
from llmlab.checks.lab12 import LAW_CASES, ROUND_CASES, acceptance, pays, tokens_of_round
from llmlab.engine.params import SamplingParams
from llmlab.engine.sampler import SampleInput
from llmlab.engine.speculative.proposer import Draft
from llmlab.engine.speculative.rules import Uniforms, draw_rows, exact
from llmlab.engine.speculative.verify import verify


def test_the_right_answers_pass():
    assert check.lab12.q1(tokens_of_round)
    assert check.lab12.q2(acceptance)
    assert check.lab12.q2(lambda p, q: 1 - sum(max(0, a - b) for a, b in zip(p, q, strict=True)))
    assert check.lab12.q3(pays)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab12.q1(lambda right: ...))
    assert "replace the ..." in repr(check.lab12.q2(lambda p, q: ...))
    assert "replace the ..." in repr(check.lab12.q3(lambda kept, k, draft_cost, step_cost: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (sum, "those are the right guesses"),
        (lambda right: sum(right) + 1, "even where the target would agree"),
        (lambda right: [*right, False].index(False), "the target gives one token more"),
        (len, "that is k"),
        (lambda right: len(right) + 1, "the most a round can give"),
        (lambda right: min([*right, False].index(False) + 1, len(right)), "comes on top"),
    ],
)
def test_rounds_wrongly_counted(wrong, said):
    assert said in repr(check.lab12.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, q: sum(a * b for a, b in zip(p, q, strict=True)), "two independent draws agree"),
        (lambda p, q: sum(a * min(1, a / b) if b else a for a, b in zip(p, q, strict=True)), "with q, not with p"),
        (lambda p, q: sum(max(0, a - b) for a, b in zip(p, q, strict=True)), "how often a guess is rejected"),
        (lambda p, q: sum(max(a, b) for a, b in zip(p, q, strict=True)), "no probability"),
        (lambda p, q: max(p), "q matters too"),
    ],
)
def test_acceptance_wrongly_computed(wrong, said):
    assert said in repr(check.lab12.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda kept, k, draft, step: kept > step + k * draft, "one token more than the guesses"),
        (lambda kept, k, draft, step: kept + 1 > step, "the guesses cost time too"),
        (lambda kept, k, draft, step: kept + 1 > step + draft, "all k guesses are made"),
        (lambda kept, k, draft, step: kept + 1 > step + kept * draft, "rejected guesses were made too"),
        (lambda kept, k, draft, step: kept + 1 > 1 + k * draft, "step_cost, not 1"),
        (lambda kept, k, draft, step: kept + 1 >= step + k * draft, "it is not faster"),
    ],
)
def test_the_price_wrongly_computed(wrong, said):
    assert said in repr(check.lab12.q3(wrong))


@pytest.mark.parametrize("right", [case[0] for case in ROUND_CASES])
def test_verification_gives_as_many_tokens_as_the_check_says(right):
    logits = torch.zeros(len(right) + 1, 20)
    logits[torch.arange(len(right) + 1), torch.arange(len(right) + 1)] = 5.0
    guesses = tuple(i if one else 19 for i, one in enumerate(right))
    rules = SampleInput(SamplingParams(), 0, 0, 3, (), (), 1, ())
    verdict = verify(logits, rules, Draft(guesses, (None,) * len(guesses)), exact)
    assert len(verdict.sampled) == tokens_of_round(right)


@pytest.mark.parametrize(("p", "q"), LAW_CASES)
def test_the_rule_keeps_as_often_as_the_check_says(p, q):
    draws = 20_000
    p, q = (torch.tensor(law, dtype=torch.float64).expand(draws, -1) for law in (p, q))
    numbers = torch.rand(4, draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    judged = exact(p, draw_rows(q, numbers[0]), q, Uniforms(*numbers[1:]))
    assert abs(float(judged.accepted.double().mean()) - acceptance(p[0].tolist(), q[0].tolist())) < 0.02
