"""Constraints: they bind their own sample in every sampling mode, survive preemption, and fail alone."""

from __future__ import annotations

import math

import pytest
import torch
from mock_serving import (
    EOS,
    VOCABULARY,
    assert_all_returned,
    continuation,
    greedy,
    mock_engine,
    prompt,
    sampled_continuation,
    streamed,
)

from llmlab.engine import sampler
from llmlab.engine.mock_runner import mock_next_token
from llmlab.engine.params import SamplingParams
from llmlab.errors import ConstraintError

DIGITS = frozenset(b"0123456789")


class Only:
    """Allows a set of tokens, in place; ends after ``limit`` tokens."""

    def __init__(self, allowed=DIGITS, limit: int | None = None):
        self.forbidden = [i for i in range(VOCABULARY) if i not in allowed]
        self.limit, self.accepted = limit, []

    def mask(self, logits):
        logits[self.forbidden] = -math.inf
        return logits

    def accept(self, token_id):
        self.accepted.append(token_id)

    @property
    def is_finished(self):
        return self.limit is not None and len(self.accepted) >= self.limit


class Script(Only):
    """Allows exactly the given tokens, one after the other."""

    def __init__(self, tokens):
        super().__init__(limit=len(tokens))
        self.tokens = tokens

    def mask(self, logits):
        row = torch.full_like(logits, -math.inf)
        token = self.tokens[len(self.accepted)]
        row[token] = logits[token]
        return row


class Broken(Only):
    """Works for three tokens, then fails where it is told to."""

    def __init__(self, where: str):
        super().__init__(range(VOCABULARY))
        self.where = where

    def _fail_at(self, where: str):
        if where == self.where and len(self.accepted) >= 3:
            raise KeyError("lost its place")

    def mask(self, logits):
        self._fail_at("mask")
        if len(self.accepted) >= 3 and self.where == "nothing left":
            return torch.full_like(logits, -math.inf)
        if len(self.accepted) >= 3 and self.where == "shape":
            return logits[:7]
        return super().mask(logits)

    def accept(self, token_id):
        self._fail_at("accept")
        super().accept(token_id)

    @property
    def is_finished(self):
        self._fail_at("is_finished")
        return False


def made(kept: list, *args, kind=Only, **kwargs):
    """A factory that keeps what it made."""

    def make():
        kept.append(kind(*args, **kwargs))
        return kept[-1]

    return make


# -- what a constraint does ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "params",
    [greedy(12), SamplingParams(max_tokens=12, temperature=1.3, seed=4), greedy(12, presence_penalty=1.5)],
    ids=["greedy", "sampled", "penalties"],
)
def test_only_allowed_tokens_are_chosen(params):
    engine = mock_engine()
    run = engine.submit(prompt(5), params, constraint=Only).wait()
    assert len(run.token_ids) == 12
    assert set(run.token_ids) <= DIGITS
    assert run.stop_reason == "length"
    assert_all_returned(engine)


def test_a_greedy_row_takes_the_likeliest_allowed_token():
    tokens = prompt(5)
    odd = frozenset(range(33, 127, 2))
    preferred = mock_next_token(tokens)
    run = mock_engine().submit(tokens, greedy(1), constraint=lambda: Only(odd)).wait()
    assert run.token_ids == [preferred if preferred in odd else 33]


def test_the_end_of_a_constraint_ends_the_request_like_eos_without_spending_a_token():
    engine = mock_engine(eos_token_ids=())
    run = engine.submit(prompt(5), greedy(50), constraint=lambda: Script(b"hello")).wait()
    assert (run.text, run.token_ids, run.stop_reason) == ("hello", list(b"hello"), "eos")
    assert run.usage["output_tokens"] == 5
    assert_all_returned(engine)


def test_the_end_of_a_constraint_goes_before_the_length():
    run = mock_engine().submit(prompt(5), greedy(5), constraint=lambda: Script(b"hello")).wait()
    assert run.stop_reason == "eos"


def test_eos_ends_the_output_where_the_constraint_allows_it():
    kept = []
    run = mock_engine().submit(prompt(5), greedy(9), constraint=made(kept, {EOS})).wait()
    assert (run.token_ids, run.text, run.stop_reason) == ([EOS], "", "eos")
    assert kept[0].accepted == [EOS]


def test_a_constraint_has_the_last_word_over_biases():
    biased = greedy(4, logit_bias={ord("x"): 100, ord("7"): 50})
    assert mock_engine().submit(prompt(5), biased, constraint=Only).wait().text == "7777"


@pytest.mark.parametrize("filters", [{"top_k": 50}, {"top_k": 1}, {"top_p": 0.2}, {"min_p": 0.9}])
def test_filters_see_only_what_the_constraint_left(filters):
    params = SamplingParams(max_tokens=8, temperature=2.0, seed=1, **filters)
    run = mock_engine().submit(prompt(5), params, constraint=lambda: Script(b"exactly!")).wait()
    assert run.text == "exactly!"


def test_logprobs_stay_those_of_the_model():
    tokens = prompt(5)
    run = mock_engine().submit(tokens, greedy(1, logprobs=2), constraint=lambda: Script([0])).wait()
    total = math.log(math.exp(4.0) + VOCABULARY - 1)
    assert run.outputs[0].logprobs == pytest.approx([-total], abs=1e-5)
    assert run.outputs[0].top_logprobs[0][0] == (mock_next_token(tokens), pytest.approx(4.0 - total, abs=1e-5))


def test_stop_strings_and_stop_tokens_work_inside_a_constraint():
    engine = mock_engine()
    string = engine.submit(prompt(5), greedy(50, stop=["lo w"]), constraint=lambda: Script(b"hello world"))
    token = engine.submit(prompt(6), greedy(50, stop_token_ids=[ord("o")]), constraint=lambda: Script(b"hello world"))
    engine.run_until_idle()
    assert (string.text, string.stop_reason) == ("hel", "stop_string")
    assert (token.text, token.stop_reason) == ("hell", "stop_token")
    assert_all_returned(engine)


def test_min_tokens_forbids_eos_while_the_constraint_offers_anything_else():
    run = mock_engine().submit(
        prompt(5), greedy(9, min_tokens=4, logit_bias={EOS: 100}), constraint=lambda: Only(DIGITS | {EOS})
    )
    assert run.wait().token_ids[-1] == EOS
    assert len(run.token_ids) == 5
    assert set(run.token_ids[:4]) <= DIGITS


def test_a_finished_constraint_ends_before_min_tokens():
    run = mock_engine().submit(prompt(5), greedy(9, min_tokens=8), constraint=lambda: Script(b"hello")).wait()
    assert (run.text, run.stop_reason) == ("hello", "eos")


def test_ignoring_eos_does_not_reach_beyond_a_finished_constraint():
    run = mock_engine().submit(prompt(5), greedy(9, ignore_eos=True), constraint=lambda: Script([*b"hi", EOS])).wait()
    assert (run.text, run.token_ids, run.stop_reason) == ("hi", [*b"hi", EOS], "eos")


def test_every_sample_has_its_own_constraint():
    engine, kept = mock_engine(), []
    params = SamplingParams(max_tokens=6, temperature=1.5, seed=3, n=3)
    run = engine.submit(prompt(5), params, constraint=made(kept)).wait()
    assert [constraint.accepted for constraint in kept] == [output.token_ids for output in run.outputs]
    assert len({tuple(output.token_ids) for output in run.outputs}) == 3
    assert all(streamed(run, which)[0] == kept[which].accepted for which in range(3))
    assert_all_returned(engine)


# -- neighbours ----------------------------------------------------------------------------------------------


def test_unconstrained_neighbours_get_what_they_get_alone():
    engine = mock_engine()
    sampled = SamplingParams(max_tokens=10, temperature=1.1, seed=5)
    plain = engine.submit(prompt(5, 0), greedy(10))
    engine.submit(prompt(5, 1), greedy(10), constraint=Only)
    drawn = engine.submit(prompt(5, 2), sampled)
    engine.run_until_idle()
    assert plain.token_ids == continuation(prompt(5, 0), 10)
    assert drawn.token_ids == sampled_continuation(prompt(5, 2), sampled)
    assert_all_returned(engine)


def test_unconstrained_greedy_rows_keep_the_fast_path(monkeypatch):
    slow, inner = [], sampler._sample_row

    def spy(logits, logprobs, row):
        slow.append(row.constraint)
        return inner(logits, logprobs, row)

    monkeypatch.setattr(sampler, "_sample_row", spy)
    engine, kept = mock_engine(), []
    engine.submit(prompt(5, 0), greedy(6))
    engine.submit(prompt(5, 1), greedy(6), constraint=made(kept))
    engine.run_until_idle()
    assert slow == kept * 6


def test_a_seeded_constrained_request_is_the_same_alone_and_in_a_batch():
    params = SamplingParams(max_tokens=10, temperature=1.5, seed=9)
    alone = mock_engine().submit(prompt(7, 1), params, constraint=Only).wait()
    engine = mock_engine(budget=8)
    runs = [engine.submit(prompt(7, i), params, constraint=None if i == 2 else Only) for i in range(4)]
    engine.run_until_idle()
    assert runs[1].token_ids == alone.token_ids


def test_preemption_neither_repeats_nor_skips_a_token_of_the_constraint():
    text = b"a text of forty bytes that must be whole"
    engine, kept = mock_engine(num_blocks=14), []
    engine.submit(prompt(5), greedy(40))
    run = engine.submit(prompt(5, 1), greedy(50), constraint=made(kept, text, kind=Script))
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert run.text.encode() == text
    assert kept[0].accepted == list(text)
    assert_all_returned(engine)


# -- failures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "says", "tokens"),
    [
        ("mask", "its constraint failed: KeyError: 'lost its place'", 3),
        ("nothing left", "its constraint allows no token here", 3),
        ("shape", "its constraint made", 3),
        ("accept", "its constraint failed: KeyError: 'lost its place'", 4),
        ("is_finished", "its constraint failed: KeyError: 'lost its place'", 3),
    ],
)
def test_a_failing_constraint_ends_its_request_and_no_other(where, says, tokens):
    engine = mock_engine()
    before = engine.submit(prompt(5, 0), greedy(8))
    broken = engine.submit(prompt(5, 1), greedy(8), constraint=lambda: Broken(where))
    after = engine.submit(prompt(5, 2), greedy(8), constraint=Only)
    engine.run_until_idle()
    with pytest.raises(ConstraintError, match=says) as failure:
        broken.wait()
    assert str(failure.value).startswith("run r1: ")
    assert broken.stop_reason == "error"
    assert broken.token_ids == continuation(prompt(5, 1), 8)[:tokens]
    assert before.token_ids == continuation(prompt(5, 0), 8)
    assert len(after.token_ids) == 8
    assert_all_returned(engine)


def test_what_min_tokens_and_constraint_forbid_together_is_said():
    run = mock_engine().submit(prompt(5), greedy(9, min_tokens=4), constraint=lambda: Only({EOS}))
    with pytest.raises(ConstraintError, match="allows no token that min_tokens does not forbid"):
        run.wait()


def test_a_factory_that_raises_queues_nothing():
    def impossible():
        raise LookupError("no such grammar")

    engine = mock_engine()
    with pytest.raises(LookupError, match="no such grammar"):
        engine.submit(prompt(5), greedy(3), request_id="mine", constraint=impossible)
    assert not engine.step()
    assert engine.submit(prompt(5), greedy(3), request_id="mine").wait().token_ids == continuation(prompt(5), 3)
    assert_all_returned(engine)
