"""Attention over blocks against transformers' own: random models of many families, served for real."""

from __future__ import annotations

import pytest
import torch
from tiny_models import (
    COMMON,
    FAMILIES,
    VOCABULARY,
    WINDOW,
    as_loaded,
    family,
    generated,
    paged_engine,
    plain_logprobs,
    random_model,
)

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request
from llmlab.engine.run import Run
from llmlab.engine.step_view import StepView
from llmlab.errors import UnsupportedModel

TOLERANCE = 2e-5
"""Largest difference of float32 log-probabilities: sums of the same numbers in another order."""
SCORED = SamplingParams(max_tokens=6, prompt_logprobs=0, logprobs=0)


@pytest.fixture(scope="module")
def llama():
    return family("llama")


def tokens(length: int, start: int = 0) -> list[int]:
    return torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(start)).tolist()


def scored(run: Run) -> torch.Tensor:
    """Log-probabilities of every token of prompt and output but the first."""
    return torch.tensor([value for value, _ in run.prompt_logprobs] + run.outputs[0].logprobs)


def alone(model, prompt: list[int], params: SamplingParams = SCORED, **options) -> Run:
    return paged_engine(model, **options).submit(prompt, params).wait()


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=TOLERANCE, rtol=0)


def assert_like_plain(model, run: Run) -> None:
    """Every log-probability is that of one plain forward pass over prompt and output."""
    sequence = [*run.prompt_token_ids, *run.token_ids]
    plain = plain_logprobs(model, sequence)
    places = torch.arange(len(sequence) - 1)
    assert_close(scored(run), plain[places, torch.tensor(sequence[1:])])


# -- paged = contiguous --------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "untouched"])
@pytest.mark.parametrize("name", FAMILIES)
def test_a_mixed_chunked_batch_answers_like_generate(name, optimize):
    """Prompts longer than the window, chunks of odd sizes, prefill and decode in the same steps."""
    model = family(name)
    engine = paged_engine(model, optimize=optimize, budget=7)
    runs = [engine.submit(tokens(length, length), SCORED) for length in (WINDOW + 23, 3, 27, 17, 1)]
    engine.run_until_idle()
    mixed = [step for step in engine.trace.steps.itertuples() if step.num_prefill_tokens and step.num_decode_tokens]
    assert mixed
    for run in runs:
        assert run.token_ids == generated(model, run.prompt_token_ids, 6)
        assert_like_plain(model, run)
    engine.check_integrity()
    assert engine.trace.check() == []


@pytest.mark.parametrize("block_size", [1, 3, 16, 64])
def test_the_block_size_changes_nothing(llama, block_size):
    run = alone(llama, tokens(37), block_size=block_size, num_blocks=64, budget=10)
    assert_like_plain(llama, run)


@pytest.mark.parametrize("budget", range(1, 12))
def test_every_chunk_size_gives_the_logits_of_a_whole_prefill(llama, budget):
    whole, chunked = alone(llama, tokens(23)), alone(llama, tokens(23), budget=budget)
    assert chunked.token_ids == whole.token_ids
    assert_close(scored(chunked), scored(whole))


def test_a_prefix_hit_gives_the_logits_of_a_recomputation(llama):
    params = SamplingParams(max_tokens=6, logprobs=0)
    fresh = alone(llama, tokens(23), params)
    engine = paged_engine(llama)
    engine.submit(tokens(23)[:14], SamplingParams(max_tokens=1)).wait()
    hit = engine.submit(tokens(23), params).wait()
    assert hit.usage["cached_tokens"] == 12
    assert hit.token_ids == fresh.token_ids
    assert_close(scored(hit), scored(fresh))


def test_a_preempted_request_goes_on_as_if_undisturbed(llama):
    engine = paged_engine(llama, num_blocks=9)
    params = SamplingParams(max_tokens=14, logprobs=0)
    runs = [engine.submit(tokens(9, start), params) for start in range(3)]
    engine.run_until_idle()
    assert sum(run.usage["preemptions"] for run in runs) > 0
    for run in runs:
        undisturbed = alone(llama, run.prompt_token_ids, params)
        assert run.token_ids == undisturbed.token_ids
        assert_close(scored(run), scored(undisturbed))


@pytest.mark.parametrize("length", [8, 10])
def test_samples_write_into_their_own_copy_of_the_last_block(llama, length):
    engine = paged_engine(llama)
    run = engine.submit(tokens(length), SamplingParams(max_tokens=12, temperature=1.5, seed=5, n=4, logprobs=0)).wait()
    assert len({tuple(output.token_ids) for output in run.outputs}) == 4
    for output in run.outputs:
        sequence = [*run.prompt_token_ids, *output.token_ids]
        plain = plain_logprobs(llama, sequence)[length - 1 : -1]
        assert_close(torch.tensor(output.logprobs), plain.gather(1, torch.tensor(output.token_ids)[:, None])[:, 0])


def test_optimizing_changes_no_token(llama):
    for name in ("llama", "mistral-sliding", "qwen2-sliding"):
        model = family(name)
        runs = [alone(model, tokens(40), SamplingParams(max_tokens=40), optimize=flag) for flag in (True, False)]
        assert runs[0].token_ids == runs[1].token_ids


# -- neighbours ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimize", [True, False], ids=["optimized", "untouched"])
def test_greedy_tokens_do_not_depend_on_the_batch(llama, optimize):
    """Stated tolerance: equal tokens, and log-probabilities within 2e-5 in float32 on the CPU."""
    prompts = [tokens(length, length) for length in (5, 12, 1, 30, 8)]
    solo = [alone(llama, prompt, optimize=optimize) for prompt in prompts]
    for order in (range(5), reversed(range(5))):
        engine = paged_engine(llama, optimize=optimize, budget=11)
        runs = {i: engine.submit(prompts[i], SCORED) for i in order}
        engine.run_until_idle()
        for i, run in runs.items():
            assert run.token_ids == solo[i].token_ids
            assert_close(scored(run), scored(solo[i]))


ROPES = {
    "dynamic": {"rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
    "longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "factor": 4.0,
            "rope_theta": 1e4,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 16,
        }
    },
}


def scaled_rope(kind: str):
    longest = {"max_position_embeddings": 16} if kind == "dynamic" else {}
    return random_model("llama", **(COMMON | ROPES[kind] | longest))


@pytest.mark.parametrize(("kind", "length"), [("dynamic", 8), ("longrope", 8), ("longrope", 29)])
def test_a_long_neighbour_does_not_change_rotary_frequencies(kind, length):
    model = scaled_rope(kind)
    engine = paged_engine(model)
    room = engine.capacity.max_model_len - SCORED.max_tokens
    prompt = tokens(min(length, room))
    solo = alone(model, prompt)
    engine.submit(tokens(min(60, room), 1), SamplingParams(max_tokens=6))
    engine.step()
    beside = engine.submit(prompt, SCORED)
    engine.run_until_idle()
    assert_close(scored(beside), scored(solo))


def longest_longrope_prompt(model) -> list[int]:
    """29 tokens, beyond the 16 at which the frequencies switch, unless the runner serves only shorter ones."""
    return tokens(min(29, paged_engine(model).capacity.max_model_len - SCORED.max_tokens))


def test_longrope_frequencies_do_not_depend_on_chunks():
    model = scaled_rope("longrope")
    prompt = longest_longrope_prompt(model)
    whole, chunked = alone(model, prompt), alone(model, prompt, budget=7)
    assert_close(scored(chunked), scored(whole))


def test_longrope_frequencies_do_not_depend_on_prefix_hits():
    model, params = scaled_rope("longrope"), SamplingParams(max_tokens=6, logprobs=0)
    prompt = longest_longrope_prompt(model)
    fresh = alone(model, prompt, params)
    engine = paged_engine(model)
    engine.submit(prompt[:9], SamplingParams(max_tokens=1)).wait()
    again = engine.submit(prompt, params).wait()
    assert again.usage["cached_tokens"] == 8
    assert_close(scored(again), scored(fresh))


@pytest.mark.parametrize("prefix_cache", [True, False])
def test_nan_left_in_unused_blocks_reaches_nobody(llama, prefix_cache):
    """A request whose keys became NaN leaves them in its blocks; whoever gets the blocks must not care."""
    engine = paged_engine(llama, num_blocks=16, prefix_cache=prefix_cache)
    for tensor in (*engine.runner.pool.keys, *engine.runner.pool.values):
        tensor.fill_(torch.nan)
    runs = [engine.submit(tokens(length, length), SCORED) for length in (10, 3, 14)]
    engine.run_until_idle()
    for run in runs:
        assert run.error is None
        assert_like_plain(llama, run)


# -- what the adapter must keep by itself --------------------------------------------------------------------


def test_attention_registered_without_a_mask_is_causal(llama):
    """A later token must not change an earlier logit, in one chunk and across chunks."""
    runner = build_runner(as_loaded(llama), block_size=4, num_blocks=16)
    answers = []
    for last in (5, 60):
        request = Request("r", [*tokens(20), last], SamplingParams(), seed=0, max_tokens=1)
        request.block_table = list(range(6))
        rows = [ScheduledRow(request, 0, 13, 0, True, False, 13), ScheduledRow(request, 13, 8, 0, True, True, 8)]
        answers.append(torch.cat([runner.forward(runner.build(StepPlan(0, [row]))) for row in rows]))
    assert torch.equal(answers[0][:20], answers[1][:20])
    assert not torch.equal(answers[0][20], answers[1][20])


def test_every_layer_attends_once_per_pass():
    """For the plain path and for the replaced decoder layers alike."""
    for optimize in (True, False):
        runner = build_runner(as_loaded(family("llama")), block_size=4, num_blocks=8, optimize=optimize)
        request = Request("r", tokens(5), SamplingParams(), seed=0, max_tokens=1, block_table=[0, 1])
        (batch,) = runner.build(StepPlan(0, [ScheduledRow(request, 0, 5, 0, True, True, 1)]))
        runner.forward([batch])
        assert isinstance(batch.view, StepView)
        assert batch.view.attention_calls == 2


def test_a_hook_on_a_layer_fires_and_changes_no_token(llama):
    """Known models run without their wrappers, unless somebody wants to look inside."""
    loaded, seen = as_loaded(family("llama")), []
    engine = Engine(build_runner(loaded, block_size=4, num_blocks=16), loaded.tokenizer)
    before = engine.submit(tokens(9), SCORED).wait()
    with_hook = loaded.model.model.layers[1].register_forward_hook(lambda *_: seen.append(1))
    during = engine.submit(tokens(9), SCORED).wait()
    with_hook.remove()
    assert len(seen) == len(during.token_ids)
    assert during.token_ids == before.token_ids
    assert_close(scored(during), scored(before))
    assert_like_plain(llama, during)


SMALL = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_attention_heads": 4}
REFUSED = {
    "bloom": SMALL | {"n_layer": 2, "n_head": 4},
    "falcon": SMALL | {"num_hidden_layers": 2, "max_position_embeddings": 64},
    "mamba": {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    "llama4_text": COMMON | {"attention_chunk_size": WINDOW, "num_local_experts": 2},
    "deepseek_v3": COMMON
    | {
        "num_key_value_heads": 4,
        "kv_lora_rank": 8,
        "q_lora_rank": 8,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 16,
    },
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_family_that_cannot_be_served_is_refused_by_name(kind):
    """Silently wrong logits are the alternative: these ignore our attention, or attend in another way."""
    model = random_model(kind, **REFUSED[kind])
    with pytest.raises(UnsupportedModel, match=f"architecture '{kind}'"):
        build_runner(as_loaded(model), block_size=4, num_blocks=16)


def test_an_encoder_is_not_served_as_a_decoder():
    model = random_model("bert", **SMALL, num_hidden_layers=2, intermediate_size=64)
    for parameter in model.parameters():
        parameter.data.mul_(10)  # as in a trained model, what a token attends to decides its logits
    with pytest.raises(UnsupportedModel, match="encoder"):
        build_runner(as_loaded(model), block_size=4, num_blocks=16)


def test_a_refused_optimization_falls_back_to_fresh_untouched_weights(llama, monkeypatch):
    broken = family("llama")

    def spoil(model, quantization):
        model.lm_head.weight.mul_(1.5)

    monkeypatch.setattr("llmlab.engine.build.speed_up", spoil)
    runner = build_runner(as_loaded(broken), block_size=4, num_blocks=64, reload=lambda: as_loaded(llama))
    run = Engine(runner, as_loaded(llama).tokenizer).submit(tokens(9), SCORED).wait()
    assert_like_plain(llama, run)
    with pytest.raises(UnsupportedModel, match="differ by"):
        build_runner(as_loaded(broken), block_size=4, num_blocks=64)
