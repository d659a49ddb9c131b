"""Early exit drafts from the target's own blocks, and disturbs none of them."""

from __future__ import annotations

import pytest
import torch
from guessing import speculating_engine
from mock_serving import assert_all_returned, greedy
from tiny_models import FAMILIES, as_loaded, family, generated, random_model

from llmlab.engine.build import build_runner
from llmlab.engine.params import SamplingParams
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.early_exit import EarlyExit
from llmlab.errors import InvalidParameter
from llmlab.probes import Capture

PROMPT = [(7 * i + 3 * i * i) % 97 for i in range(20)]


def _engine(model, layers: int, optimize: bool = True, num_blocks: int = 64, **shape):
    runner = build_runner(as_loaded(model), block_size=4, num_blocks=num_blocks, optimize=optimize)
    return speculating_engine(EarlyExit(runner, layers), runner=runner, eos_token_ids=(), **shape)


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", ["llama", "qwen2-sliding", "gemma2", "gpt_oss", "gpt2", "mixtral", "phi3-sliding"])
def test_with_all_layers_it_is_the_target_so_every_draft_is_accepted(name, optimize):
    """The K/V it reads from the pool and adds beside it are what the target would have stored."""
    model = family(name)
    engine = _engine(model, layers=2, optimize=optimize)
    runs = [engine.submit(PROMPT[i:], greedy(15)) for i in range(3)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == generated(model, PROMPT[i:], 15)
    assert engine.trace.drafts.attrs["summary"]["acceptance_by_place"] == [1.0] * 4
    assert_all_returned(engine)


@pytest.mark.parametrize("name", FAMILIES)
def test_with_fewer_layers_the_tokens_are_still_the_target_s(name):
    model = family(name)
    engine = _engine(model, layers=1)
    runs = [engine.submit(PROMPT[i:], greedy(12)) for i in range(3)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == generated(model, PROMPT[i:], 12)
    assert_all_returned(engine)


def test_preempted_forked_and_prefix_hitting_requests_keep_their_tokens():
    model = family("llama")
    engine = _engine(model, layers=1, num_blocks=14, budget=9)
    runs = [engine.submit(PROMPT[: 9 + i], greedy(18, n=1 + i % 2)) for i in range(4)]
    for i, run in enumerate(runs):
        run.wait()
        assert all(output.token_ids == generated(model, PROMPT[: 9 + i], 18) for output in run.outputs)
    assert sum(run.usage["preemptions"] for run in runs) > 0
    assert engine.submit(PROMPT[:9], greedy(18)).wait().usage["cached_tokens"] == 8
    assert_all_returned(engine)


def test_drafting_writes_nothing_into_the_pool():
    engine = _engine(family("llama"), layers=1)
    proposer, pool = engine.speculator.proposer, engine.runner.pool
    before: list[list[torch.Tensor]] = []
    propose = proposer.propose

    def watched(rows):
        before.append([part.clone() for part in (*pool.keys, *pool.values)])
        drafts = propose(rows)
        assert all(torch.equal(a, b) for a, b in zip(before[-1], (*pool.keys, *pool.values), strict=True))
        return drafts

    proposer.propose = watched
    engine.submit(PROMPT, greedy(10)).wait()
    assert before


def test_a_seeded_request_with_drawn_drafts_repeats_in_a_batch():
    model, params = family("llama"), SamplingParams(max_tokens=14, temperature=1.0, seed=3)
    alone = _engine(model, layers=1).submit(PROMPT, params).wait()
    engine = _engine(model, layers=1, budget=7)
    others = [engine.submit(PROMPT[i:], greedy(14)) for i in (1, 2)]
    assert engine.submit(PROMPT, params).wait().token_ids == alone.token_ids
    assert all(other.wait().finished for other in others)
    assert alone.usage["accepted_draft_tokens"] > 0


def test_a_number_of_layers_that_the_target_does_not_have_is_refused():
    runner = build_runner(as_loaded(family("llama")), block_size=4, num_blocks=8)
    for layers in (0, 3, True, 1.5):
        with pytest.raises(InvalidParameter, match="from 1 to 2"):
            EarlyExit(runner, layers)


def test_a_model_whose_positions_depend_on_the_batch_is_refused():
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    config = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config |= {"num_attention_heads": 4, "max_position_embeddings": 128, "rope_parameters": rope}
    runner = build_runner(as_loaded(random_model("llama", **config)), block_size=4, num_blocks=32)
    with pytest.raises(InvalidParameter, match="neighbours"):
        with_proposer(Speculation("early-exit"), runner, object())


def test_a_request_whose_inside_is_recorded_is_not_drafted_for_and_the_trace_says_why():
    model = family("llama")
    engine = _engine(model, layers=2)
    captured = engine.submit(PROMPT, greedy(8), capture=Capture(attention=True))
    other = engine.submit(PROMPT[1:], greedy(8))
    assert captured.wait().token_ids == generated(model, PROMPT, 8)
    assert other.wait().usage["accepted_draft_tokens"] > 0
    assert set(engine.trace.drafts.request_id) == {other.id}
    assert engine.trace.draft_policies.request_id.tolist() == [captured.id]
    assert_all_returned(engine)
