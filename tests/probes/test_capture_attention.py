"""Captured attention, queries, keys and values against transformers' own eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from looking import SITUATIONS, computed, model_of, plain, served
from transformers import DynamicCache

from llmlab.probes import Capture

TOLERANCE = 1e-5
MODELS = ("llama", "mqa", "gpt2", "qwen2-sliding", "mistral-sliding", "gemma2", "gpt_oss", "phi3-sliding", "qwen3")


def close(actual, expected) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), atol=TOLERANCE, rtol=1e-5)


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_those_of_eager_attention(name, situation):
    """Queries served from the prefix cache have no row, but every row has their keys."""
    model = model_of(name)
    run = served(model, situation, Capture(attention=True))
    expected = plain(model, computed(run), output_attentions=True).attentions
    attention = run.captured.attention
    num_cached = run.usage["cached_tokens"]
    assert attention.dims == ("layer", "head", "query", "key")
    assert attention.labels["query"] == tuple(range(num_cached, len(computed(run))))
    assert attention.labels["key"] == tuple(range(len(computed(run))))
    for layer, weights in enumerate(expected):
        close(attention.values[layer], weights[0, :, num_cached:])


@pytest.mark.parametrize("name", ["llama", "mqa", "mistral-sliding", "gemma2"])
def test_scores_become_the_weights_and_hidden_keys_are_minus_infinity(name):
    run = served(model_of(name), "batched", Capture(attention=True, scores=True))
    scores, attention = run.captured.scores, run.captured.attention
    close(torch.from_numpy(scores.values.copy()).softmax(-1), attention.values)
    assert np.array_equal(np.isneginf(scores.values), attention.values == 0)
    if name == "gemma2":
        assert np.abs(scores.values[np.isfinite(scores.values)]).max() <= 3.0


@pytest.mark.parametrize("situation", ["chunked", "prefix hit", "preempted", "swapped"])
@pytest.mark.parametrize("name", ["llama", "mqa", "gpt2"])
def test_keys_and_values_are_kept_once_per_kv_head_also_where_the_cache_served_them(name, situation):
    model = model_of(name)
    run = served(model, situation, Capture(qkv=True))
    cache = DynamicCache()
    with torch.inference_mode():
        model(input_ids=torch.tensor([computed(run)]), cache=cache, use_cache=True)
    captured = run.captured
    assert captured.key.shape["kv_head"] == {"llama": 2, "mqa": 1, "gpt2": 4}[name]
    assert captured.query.shape["head"] == 4
    for layer, theirs in enumerate(cache.layers):
        close(captured.key.values[layer], theirs.keys[0])
        close(captured.value.values[layer], theirs.values[0])


def test_queries_times_keys_are_the_scores():
    run = served(model_of("llama"), "chunked", Capture(qkv=True, scores=True))
    captured, scale = run.captured, 8**-0.5
    for head in range(4):
        query, key = captured.query.sel(layer=1, head=head), captured.key.sel(layer=1, kv_head=head // 2)
        products = query.values @ key.values.T * scale
        scores = captured.scores.sel(layer=1, head=head).values
        seen = np.isfinite(scores)
        close(products[seen], scores[seen])


def test_only_what_was_asked_for_is_kept():
    run = served(model_of("llama"), "chunked", Capture(attention=1, hidden=[0], qkv=-1, heads=[3], positions=[-1, 4]))
    captured = run.captured
    assert captured.kinds == ("hidden", "attention", "query", "key", "value")
    assert captured.attention.labels == {"layer": (1,), "head": (3,), "query": (4, 22), "key": tuple(range(23))}
    assert captured.key.labels == {"layer": (1,), "kv_head": (1,), "position": (4, 22), "dim": tuple(range(8))}
    assert captured.hidden.labels["layer"] == (0,)
    assert captured.scores is None
    assert captured.lens is None


def test_a_sliding_layer_sees_only_its_window():
    run = served(model_of("mistral-sliding"), "whole", Capture(attention=True))
    ages = np.arange(28)[:, None] - np.arange(28)
    seen = run.captured.attention.values != 0
    assert not seen[:, :, (ages < 0) | (ages >= 16)].any()
    assert seen[:, :, (ages >= 0) & (ages < 16)].all()
