"""Lab 11: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest
import torch

import llmlab
from llmlab.checks import check
from llmlab.checks.lab11 import MIN_P_CASES, TOP_P_CASES, kept_by_min_p, kept_by_top_p, tokens_until_stop
from llmlab.engine.distribution import probabilities
from llmlab.engine.params import SamplingParams


def test_the_right_answers_pass():
    assert check.lab11.q1(kept_by_top_p)
    assert check.lab11.q2(kept_by_min_p)
    assert check.lab11.q3(tokens_until_stop)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab11.q1(lambda probs, top_p: ...))
    assert "replace the ..." in repr(check.lab11.q2(lambda probs, min_p: ...))
    assert "replace the ..." in repr(check.lab11.q3(lambda pieces, stop: ...))


def grow(probs, enough):
    """Tokens taken in this order until ``enough`` says so."""
    mass, count = 0.0, 0
    for prob in probs:
        if enough(mass):
            break
        mass, count = mass + prob, count + 1
    return count


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda probs, top_p: grow(sorted(probs)[::-1], lambda mass: mass > top_p), "need not go beyond"),
        (lambda probs, top_p: grow(sorted(probs)[::-1], lambda mass: mass >= top_p) - 1, "belongs to the set"),
        (lambda probs, top_p: grow(probs, lambda mass: mass >= top_p), "in the order given"),
        (lambda probs, top_p: grow(sorted(probs), lambda mass: mass >= top_p), "begins with the least likely"),
        (lambda probs, top_p: sum(prob >= 1 - top_p for prob in probs), "what they have together"),
    ],
)
def test_the_nucleus_wrongly_counted(wrong, said):
    assert said in repr(check.lab11.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda probs, min_p: sum(prob >= min_p for prob in probs), "a share of the likeliest"),
        (lambda probs, min_p: sum(prob > min_p * max(probs) for prob in probs), "exactly at the limit is kept"),
        (lambda probs, min_p: sum(prob < min_p * max(probs) for prob in probs), "takes away"),
        (lambda probs, min_p: kept_by_top_p(probs, 1 - min_p), "that is top-p"),
    ],
)
def test_min_p_wrongly_counted(wrong, said):
    assert said in repr(check.lab11.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda pieces, stop: pieces.index(stop) + 1 if stop in pieces else len(pieces), "may lie across several"),
        (
            lambda pieces, stop: next((i + 1 for i, p in enumerate(pieces) if stop in p), len(pieces)),
            "looks into single tokens",
        ),
        (lambda pieces, stop: max(tokens_until_stop(pieces, stop) - 1, 0), "was chosen too"),
        (lambda pieces, stop: "".join(pieces).find(stop), "a place in the text"),
        (lambda pieces, stop: len(pieces), "all of them"),
    ],
)
def test_stops_wrongly_counted(wrong, said):
    assert said in repr(check.lab11.q3(wrong))


def possible(probs, **params) -> int:
    logits = torch.tensor(probs, dtype=torch.float64).log()
    return int((probabilities(logits, SamplingParams(temperature=1.0, **params)) > 0).sum())


@pytest.mark.parametrize(("probs", "top_p"), TOP_P_CASES)
def test_the_sampler_keeps_the_nucleus_the_check_calls_right(probs, top_p):
    assert possible(probs, top_p=top_p) == kept_by_top_p(probs, top_p)


@pytest.mark.parametrize(("probs", "min_p"), MIN_P_CASES)
def test_the_sampler_keeps_what_the_check_says_of_min_p(probs, min_p):
    assert possible(probs, min_p=min_p) == kept_by_min_p(probs, min_p)


@pytest.mark.parametrize("place", [(0, 2), (3, 7), (11, 12)])
def test_the_engine_stops_after_the_token_the_check_says(place):
    with llmlab.open("mock", background=False) as lab:
        free = lab.ask([*range(40, 50)], max_tokens=16)
        stop = free.text[slice(*place)]
        stopped = lab.ask([*range(40, 50)], max_tokens=16, stop=stop)
    assert len(stopped.token_ids) == tokens_until_stop(list(free.text), stop)
