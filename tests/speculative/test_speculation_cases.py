"""What goes wrong with speculation elsewhere, each case on the mock model, where every token is known."""

from __future__ import annotations

import pytest
from guessing import Guesser, speculating_engine
from mock_serving import (
    EOS,
    assert_all_returned,
    assert_sound,
    continuation,
    greedy,
    mock_engine,
    prompt,
    sampled_continuation,
    step_until,
    streamed,
)

from llmlab.engine.params import SamplingParams
from llmlab.engine.sampler import SampleInput
from llmlab.engine.speculative.ngram import NGram
from llmlab.engine.speculative.proposer import Draft, DraftRow
from llmlab.errors import InvalidParameter


def _text(tokens: list[int]) -> str:
    return bytes(tokens).decode("latin-1")


@pytest.mark.parametrize("right", [0.0, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("k", [1, 3, 8])
def test_greedy_tokens_are_those_of_plain_greedy(right, k):
    engine = speculating_engine(Guesser(right), k=k, num_blocks=200)
    runs = [engine.submit(prompt(5 + i, i), greedy(10 + i)) for i in range(12)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == continuation(prompt(5 + i, i), 10 + i)
        assert run.token_ids == streamed(run)[0]
    assert_all_returned(engine)


def test_right_guesses_save_steps_and_wrong_ones_cost_none():
    def steps(proposer) -> int:
        engine = speculating_engine(proposer)
        engine.submit(prompt(5), greedy(21)).wait()
        return len(engine.trace.steps)

    assert steps(Guesser(right=1.0)) == 1 + 20 // 5
    assert steps(Guesser(right=0.0)) == 21


@pytest.mark.parametrize(
    "rules",
    [
        {"frequency_penalty": 1.5, "presence_penalty": 1.0},
        {"repetition_penalty": 3.0},
        {"logit_bias": {70: 3.9, 71: -50.0}},
        {"min_tokens": 12},
        {"temperature": 0.7, "seed": 3, "frequency_penalty": 1.5},
        {"temperature": 1.5, "seed": 4, "top_k": 20},
        {"temperature": 0.8, "seed": 5, "top_p": 0.5, "min_p": 0.1},
    ],
    ids=lambda rules: ",".join(rules),
)
def test_named_drafts_leave_the_tokens_of_every_sampling_rule_as_they_are(rules):
    params = SamplingParams(max_tokens=24, **rules)
    plain = mock_engine(eos_every=7).submit(prompt(6), params).wait()
    fast = speculating_engine(Guesser(0.8, eos_every=7), eos_every=7).submit(prompt(6), params).wait()
    assert fast.token_ids == plain.token_ids
    assert fast.stop_reason == plain.stop_reason


@pytest.mark.parametrize("rules", [{"frequency_penalty": 2.0, "repetition_penalty": 2.0}, {"logit_bias": {80: 5.0}}])
def test_drawn_drafts_are_judged_by_the_same_penalties_at_temperature_zero(rules):
    params = SamplingParams(max_tokens=24, **rules)
    plain = mock_engine().submit(prompt(6), params).wait()
    assert speculating_engine(Guesser(0.8, draws=True)).submit(prompt(6), params).wait().token_ids == plain.token_ids


@pytest.mark.parametrize("max_tokens", range(1, 12))
def test_max_tokens_cuts_an_accepted_draft(max_tokens):
    engine = speculating_engine(Guesser(right=1.0), k=8)
    run = engine.submit(prompt(5), greedy(max_tokens)).wait()
    assert run.token_ids == continuation(prompt(5), max_tokens)
    assert run.stop_reason == "length"
    assert_all_returned(engine)


def test_eos_inside_an_accepted_draft_ends_the_output_there():
    for start in range(12):
        engine = speculating_engine(Guesser(right=1.0, eos_every=9), k=8, eos_every=9)
        run = engine.submit(prompt(5, start), greedy(40)).wait()
        assert run.token_ids == continuation(prompt(5, start), 40, 9)
        assert run.stop_reason == ("eos" if run.token_ids[-1] == EOS else "length")
        assert_all_returned(engine)


@pytest.mark.parametrize("place", [1, 2, 3, 4, 5, 9])
def test_a_stop_id_or_string_inside_an_accepted_draft_ends_the_output_there(place):
    tokens = continuation(prompt(5), 20)
    place = tokens.index(tokens[place])
    engine = speculating_engine(Guesser(right=1.0), k=8)
    by_id = engine.submit(prompt(5), greedy(20, stop_token_ids=[tokens[place]])).wait()
    assert (by_id.stop_reason, by_id.token_ids) == ("stop_token", tokens[: place + 1])
    stop = _text(tokens[place : place + 2])
    end = _text(tokens).index(stop)
    by_string = engine.submit(prompt(5), greedy(20, stop=stop)).wait()
    assert (by_string.stop_reason, by_string.text) == ("stop_string", _text(tokens[:end]))
    assert by_string.token_ids == tokens[: end + 2]
    assert streamed(by_string)[1] == by_string.text
    assert_all_returned(engine)


def test_what_follows_a_stop_in_a_draft_is_in_no_count_and_no_block_that_can_be_found():
    tokens = continuation(prompt(5), 20)
    engine = speculating_engine(Guesser(right=1.0), k=8)
    run = engine.submit(prompt(5), greedy(20, stop_token_ids=[tokens[3]])).wait()
    assert run.usage["output_tokens"] == 4
    # the first token comes with the prompt, three of eight drafts are accepted, the stop among them
    assert (run.usage["accepted_draft_tokens"], run.usage["rejected_draft_tokens"]) == (3, 5)
    found = {block.tokens for block in engine.pool.blocks if block.content}
    whole = [*prompt(5), *tokens[:3]]
    assert found == {tuple(whole[0:4]), tuple(whole[4:8])}


@pytest.mark.parametrize("context", [16, 17, 18, 23])
def test_a_draft_never_runs_past_the_context(context):
    engine = speculating_engine(Guesser(right=1.0), k=8, max_model_len=context)
    run = engine.submit(prompt(8), SamplingParams(max_tokens=None)).wait()
    assert run.token_ids == continuation(prompt(8), context - 8)
    assert run.stop_reason == "context"
    assert max(row.start + row.num_tokens for step in _steps(engine) for row in step.rows) < context
    assert_all_returned(engine)


def _steps(engine):
    return [event for event in engine.trace.events if type(event).__name__ == "Step"]


def test_a_draft_needs_no_more_blocks_than_the_request_was_admitted_with():
    engine = speculating_engine(Guesser(right=1.0), k=16, num_blocks=5)
    run = engine.submit(prompt(8), greedy(13)).wait()
    assert run.token_ids == continuation(prompt(8), 13)
    assert_all_returned(engine)


def test_drafts_take_neither_budget_nor_blocks_from_others():
    engine = speculating_engine(Guesser(right=1.0), k=8, budget=6, num_blocks=9, slots=4)
    runs = [engine.submit(prompt(4 + i, i), greedy(12)) for i in range(3)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == continuation(prompt(4 + i, i), 12)
    plain = mock_engine(budget=6, num_blocks=9, slots=4)
    others = [plain.submit(prompt(4 + i, i), greedy(12)) for i in range(3)]
    assert all(run.wait().finished for run in others)
    assert sum(run.usage["preemptions"] for run in runs) <= sum(run.usage["preemptions"] for run in others)
    for step in _steps(engine):
        assert {row.request_id for row in step.rows if row.num_draft} <= {row.request_id for row in step.rows}
        assert sum(row.num_tokens for row in step.rows) <= 6
    assert_all_returned(engine)


def test_a_draft_that_found_no_room_is_judged_later_with_the_same_result():
    """A budget of one token a step leaves no room for any draft, and still every draft token is judged once."""
    params = SamplingParams(max_tokens=20, temperature=1.0, seed=11)
    wide = speculating_engine(Guesser(0.7, draws=True)).submit(prompt(5), params).wait()
    narrow = speculating_engine(Guesser(0.7, draws=True), budget=1)
    run = narrow.submit(prompt(5), params).wait()
    assert run.token_ids == wide.token_ids
    assert run.usage["accepted_draft_tokens"] == wide.usage["accepted_draft_tokens"] > 0
    assert "held" in set(narrow.trace.drafts.outcome)
    assert_all_returned(narrow)


@pytest.mark.parametrize("draws", [True, False])
def test_a_seeded_request_repeats_alone_in_a_batch_and_preempted(draws):
    params = SamplingParams(max_tokens=16, temperature=1.2, seed=5)

    def tokens(neighbours: int, **shape) -> tuple[list[int], int]:
        engine = speculating_engine(Guesser(0.7, draws=draws), **shape)
        others = [engine.submit(prompt(7, 1 + i), greedy(16)) for i in range(neighbours)]
        run = engine.submit(prompt(6), params).wait()
        assert all(other.wait().finished for other in others)
        assert_all_returned(engine)
        return run.token_ids, run.usage["preemptions"]

    alone, _ = tokens(0)
    assert tokens(5)[0] == alone
    preempted = [tokens(2, num_blocks=blocks, budget=budget) for blocks in (8, 9, 10, 11) for budget in (5, 9, 64)]
    assert {tuple(found) for found, _ in preempted} == {tuple(alone)}
    assert sum(count for _, count in preempted) > 0


def test_seeded_tokens_are_those_without_speculation_when_drafts_are_named():
    params = SamplingParams(max_tokens=30, temperature=1.2, seed=5)
    run = speculating_engine(Guesser(0.6)).submit(prompt(6), params).wait()
    assert run.token_ids == sampled_continuation(prompt(6), params)
    adaptive = speculating_engine(Guesser(0.6, draws=True), adaptive=True).submit(prompt(6), params).wait()
    assert adaptive.token_ids == run.token_ids
    assert adaptive.usage["accepted_draft_tokens"] > 0


def test_a_second_identical_prompt_hits_the_cache_and_accepts_as_much():
    engine = speculating_engine(Guesser(0.8))
    first = engine.submit(prompt(13), greedy(24)).wait()
    second = engine.submit(prompt(13), greedy(24)).wait()
    assert second.usage["cached_tokens"] == 12
    assert second.token_ids == first.token_ids
    assert second.usage["accepted_draft_tokens"] >= first.usage["accepted_draft_tokens"]
    longer = engine.submit([*prompt(13), *first.token_ids, 9], greedy(8)).wait()
    assert longer.usage["cached_tokens"] == 36
    assert longer.token_ids == continuation([*prompt(13), *first.token_ids, 9], 8)
    assert_all_returned(engine)


def test_samples_of_one_prompt_draft_each_for_themselves():
    proposer = Guesser(0.8)
    engine = speculating_engine(proposer)
    params = SamplingParams(max_tokens=15, temperature=1.0, seed=2, n=4)
    run = engine.submit(prompt(7), params).wait()
    assert [output.token_ids for output in run.outputs] == [
        sampled_continuation(prompt(7), params, which) for which in range(4)
    ]
    assert proposer.forks == [(run.id, f"{run.id}.{i}") for i in (1, 2, 3)]
    assert sorted(proposer.forgotten) == sorted(output.request_id for output in run.outputs)
    assert_all_returned(engine)


def test_an_abort_with_a_draft_in_hand_returns_everything():
    proposer = Guesser(1.0)
    engine = speculating_engine(proposer, budget=2, k=8)
    run = engine.submit(prompt(5), greedy(40))
    step_until(engine, lambda: any(request.draft for request in engine.scheduler.running))
    run.abort()
    engine.run_until_idle()
    assert run.stop_reason == "aborted"
    assert run.token_ids == continuation(prompt(5), 40)[: len(run.token_ids)]
    assert proposer.forgotten == [run.id]
    assert_all_returned(engine)


def test_text_of_several_tokens_comes_in_one_delta_and_never_half_a_character():
    engine = speculating_engine(Guesser(1.0), k=4)
    run = engine.submit(prompt(5), greedy(11)).wait()
    sizes = [len(delta.token_ids) for delta in run.deltas()]
    assert sizes == [1, 5, 5]
    assert "".join(delta.text for delta in run.deltas()) == run.text == _text(run.token_ids)


class Even:
    """Allows even tokens only."""

    is_finished = False

    def mask(self, logits):
        logits[1::2] = -float("inf")
        return logits

    def accept(self, token_id):
        assert token_id % 2 == 0


def test_a_constrained_request_is_not_drafted_for_and_the_trace_says_why():
    proposer = Guesser(1.0)
    engine = speculating_engine(proposer)
    run = engine.submit(prompt(5), greedy(12), constraint=Even)
    other = engine.submit(prompt(6), greedy(12))
    assert all(token % 2 == 0 for token in run.wait().token_ids)
    assert other.wait().usage["accepted_draft_tokens"] > 0
    assert {row.request_id for row in proposer.asked} == {other.id}
    (policy,) = engine.trace.draft_policies.itertuples()
    assert (policy.request_id, policy.k) == (run.id, 0)
    assert "constraint" in policy.reason
    assert_sound(engine)


class Failing(Guesser):
    """Fails at its third proposal."""

    def propose(self, rows):
        if len(self.asked) >= 2:
            raise RuntimeError("out of ideas")
        return super().propose(rows)


class TooLong(Guesser):
    """Drafts more than it is asked for."""

    def propose(self, rows):
        return [Draft((1,) * 9, (None,) * 9) for _ in rows]


class OutOfRange(Guesser):
    """Drafts a token that the target does not have."""

    def propose(self, rows):
        return [Draft((9999,), (None,)) for _ in rows]


class Unforgetting(Guesser):
    """Fails when a request ends."""

    def forget(self, request_id):
        raise KeyError(request_id)


@pytest.mark.parametrize(
    ("proposer", "said"),
    [(Failing, "out of ideas"), (TooLong, "asked for 4"), (OutOfRange, "9999"), (Unforgetting, "KeyError")],
)
def test_a_failing_proposer_ends_speculation_and_no_request(proposer, said):
    engine = speculating_engine(proposer(0.5))
    run = engine.submit(prompt(5), greedy(20))
    with pytest.warns(RuntimeWarning, match=said):
        run.wait()
    assert run.token_ids == continuation(prompt(5), 20)
    assert said in engine.trace.draft_policies.reason.iloc[-1]
    assert engine.submit(prompt(6), greedy(9)).wait().token_ids == continuation(prompt(6), 9)
    assert_all_returned(engine)


def test_logprobs_and_alternatives_are_those_of_plain_decoding():
    params = greedy(16, logprobs=3)
    plain = mock_engine().submit(prompt(5), params).wait().outputs[0]
    fast = speculating_engine(Guesser(0.8)).submit(prompt(5), params).wait().outputs[0]
    assert fast.logprobs == pytest.approx(plain.logprobs, abs=1e-6)
    assert [[i for i, _ in top] for top in fast.top_logprobs] == [[i for i, _ in top] for top in plain.top_logprobs]


def test_prompt_logprobs_and_prewarming_work_as_before():
    engine = speculating_engine(Guesser(0.9))
    scored = engine.submit(prompt(9), greedy(8, prompt_logprobs=1)).wait()
    assert len(scored.prompt_logprobs) == 8
    assert scored.token_ids == continuation(prompt(9), 8)
    assert engine.submit(prompt(20, 1), greedy(0)).wait().token_ids == []
    assert_all_returned(engine)


def test_sources_say_where_each_token_came_from():
    engine = speculating_engine(Guesser(0.7))
    run = engine.submit(prompt(5), greedy(30)).wait()
    tokens = engine.trace.tokens
    sources = tokens[tokens["index"].notna()].source
    assert sources.iloc[0] == "target"
    assert set(sources) == {"target", "accepted", "recovered", "bonus"}
    assert (sources == "accepted").sum() == run.usage["accepted_draft_tokens"]
    drafts = engine.trace.drafts
    assert drafts.num_tokens.sum() + (sources == "target").sum() == 30
    assert (sources == "bonus").sum() == (drafts.outcome == "bonus").sum()


def test_without_speculation_nothing_is_drafted_or_recorded_about_it():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(8)).wait()
    assert len(engine.trace.drafts) == len(engine.trace.draft_policies) == 0
    assert "accepted_draft_tokens" not in run.usage
    assert engine.trace.info.speculative == "off"


class TestNGram:
    """Prompt lookup."""

    def _proposal(self, tokens: list[int], k: int = 4, proposer: NGram | None = None) -> tuple[int, ...]:
        rules = SampleInput(SamplingParams(), 0, 0, len(tokens), (), (), 0, ())
        row = DraftRow("r", tokens, k, rules, 258)
        return (proposer or NGram()).propose([row])[0].tokens

    def test_the_longest_match_wins_over_a_later_shorter_one(self):
        assert self._proposal([1, 2, 3, 4, 50, 51, 52, 53, 3, 4, 60, 61, 1, 2, 3, 4]) == (50, 51, 52, 53)

    def test_of_equally_long_matches_the_latest_wins(self):
        assert self._proposal([1, 2, 50, 9, 1, 2, 60, 9, 8, 1, 2], k=2) == (60, 9)

    def test_a_loop_is_continued_beyond_the_end(self):
        assert self._proposal([7, 8, 9, 7, 8, 9, 7, 8], k=5) == (9, 7, 8, 9, 7)

    def test_nothing_is_proposed_where_nothing_matches(self):
        assert self._proposal([1, 2, 3, 4, 5, 6]) == ()
        assert self._proposal([1]) == ()

    def test_growing_texts_are_indexed_once_and_give_the_same(self):
        text = [i * i % 11 for i in range(80)]
        growing = NGram()
        for end in range(1, 80):
            assert self._proposal(text[:end], proposer=growing) == self._proposal(text[:end])

    def test_sizes_that_make_no_sense_are_refused(self):
        with pytest.raises(InvalidParameter):
            NGram(longest=1, shortest=2)
