"""Hidden states, embedding rows and routers against transformers' own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from looking import GREEDY, SITUATIONS, computed, hidden_states, model_of, plain, prompt, served
from tiny_models import paged_engine

from llmlab.engine.params import SamplingParams
from llmlab.errors import InvalidParameter
from llmlab.probes import Capture
from llmlab.trace.captures import SERVED

TOLERANCE = {"atol": 2e-5, "rtol": 2e-5}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2"])
def test_hidden_states_are_those_after_each_layer(name, situation):
    model = model_of(name)
    run = served(model, situation, Capture(hidden=True))
    hidden, num_cached = run.captured.hidden, run.usage["cached_tokens"]
    assert hidden.dims == ("layer", "position", "width")
    for layer, expected in enumerate(hidden_states(model, computed(run))):
        np.testing.assert_allclose(hidden.values[layer], expected[num_cached:], **TOLERANCE)


def test_cached_positions_are_marked_and_computed_ones_are_the_rest():
    run = served(model_of("llama"), "prefix hit", Capture(hidden=True))
    states = run.captured.positions
    assert states.position.tolist() == list(range(28))
    assert states.state.tolist() == [SERVED] * 12 + ["computed"] * 16
    assert run.captured.hidden.labels["position"] == tuple(range(12, 28))


def test_without_reading_the_cache_nothing_is_missing():
    engine = paged_engine(model_of("llama"))
    first = engine.submit(prompt(), GREEDY).wait()
    run = engine.submit(prompt(), GREEDY, capture=Capture(hidden=True, use_cache=False)).wait()
    assert run.usage["cached_tokens"] == 0
    assert run.captured.hidden.labels["position"] == tuple(range(28))
    assert run.token_ids == first.token_ids
    assert engine.submit(prompt(), GREEDY).wait().usage["cached_tokens"] == 20


def test_a_running_request_shows_what_there_is_so_far():
    engine = paged_engine(model_of("llama"), budget=10)
    run = engine.submit(prompt(), GREEDY, capture=Capture(hidden=True))
    assert run.captured.hidden is None
    assert run.captured.positions.empty
    engine.step()
    assert run.captured.hidden.labels["position"] == tuple(range(10))
    assert run.captured.positions.state.tolist() == ["computed"] * 10 + ["not reached"] * 18
    run.abort()
    engine.run_until_idle()
    assert run.captured.hidden.shape["position"] == 10


def test_captures_can_be_read_while_a_thread_writes_them():
    engine = paged_engine(model_of("llama"))
    engine.start()
    run = engine.submit(prompt(), SamplingParams(max_tokens=60), capture=Capture(hidden=True, lens=True))
    sizes = []
    while not run.finished:
        captured = run.captured
        sizes.append(captured.hidden.shape["position"] if captured.hidden else 0)
        assert len(engine.trace.arrays) >= len(captured.events)
    engine.close()
    assert sizes == sorted(sizes)
    assert run.captured.hidden.shape["position"] == 82


def test_runs_without_a_capture_have_none():
    assert paged_engine(model_of("llama")).submit(prompt(3), GREEDY).wait().captured is None


def test_of_several_samples_the_first_is_recorded():
    engine = paged_engine(model_of("llama"))
    params = SamplingParams(max_tokens=6, temperature=1.5, seed=5, n=3)
    run = engine.submit(prompt(8), params, capture=Capture(hidden=True)).wait()
    np.testing.assert_allclose(
        run.captured.hidden.values[1], hidden_states(model_of("llama"), computed(run))[1], **TOLERANCE
    )
    assert engine.trace.captured().request_id == run.id
    assert engine.trace.captures.request_id.unique().tolist() == [run.id]


# -- embedding ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_embedding_rows_have_their_nearest_tokens_also_where_the_cache_served_them(name):
    model = model_of(name)
    run = served(model, "prefix hit", Capture(embed=True, neighbours=3))
    captured, ids = run.captured, torch.tensor(computed(run))
    assert captured.embed.labels["position"] == tuple(range(len(ids)))
    np.testing.assert_allclose(captured.embed.values, model.get_input_embeddings()(ids), **TOLERANCE)
    weight = torch.nn.functional.normalize(model.get_input_embeddings().weight, dim=-1)
    cosine = weight[ids] @ weight.T
    cosine[torch.arange(len(ids)), ids] = -1
    best = cosine.topk(3)
    np.testing.assert_array_equal(captured.neighbours.values, best.indices)
    np.testing.assert_allclose(captured.similarity.values, best.values, **TOLERANCE)
    assert captured.positions.state.tolist()[:12] == [SERVED] * 12


# -- routers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"])
def test_routers_show_probabilities_and_chosen_experts(name):
    model = model_of(name)
    run = served(model, "batched", Capture(router=True))
    expected, outputs = [], []
    for module in model.modules():
        if type(module).__name__.endswith("Router"):
            module.register_forward_hook(lambda _, __, out: outputs.append(out))
    plain(model, computed(run))
    expected = [tuple(part.numpy() for part in output) for output in outputs]
    captured = run.captured
    assert captured.router_probs.dims == ("layer", "position", "expert")
    assert captured.router_probs.labels["layer"] == ((1,) if name == "qwen3_moe" else (0, 1))
    np.testing.assert_allclose(captured.router_probs.values.sum(-1), 1, atol=1e-6)
    for i, (logits, weights, experts) in enumerate(expected):
        np.testing.assert_allclose(captured.router_logits.values[i], logits, **TOLERANCE)
        np.testing.assert_allclose(captured.router_weights.values[i], weights, **TOLERANCE)
        np.testing.assert_array_equal(captured.router_experts.values[i], experts)
        np.testing.assert_array_equal(captured.router_probs.values[i].argmax(-1), experts[:, 0])


def test_a_model_without_experts_says_so():
    with pytest.raises(InvalidParameter, match="none of these layers has a router"):
        paged_engine(model_of("llama")).submit(prompt(), GREEDY, capture=Capture(router=True))
