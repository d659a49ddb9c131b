"""The logit lens: its last row is the model's answer, and it never holds all layers' logits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from looking import GREEDY, SITUATIONS, computed, hidden_states, model_of, plain, prompt, served
from tiny_models import paged_engine

from llmlab.errors import InvalidParameter
from llmlab.probes import Capture
from llmlab.probes.anatomy import Anatomy

TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}
HEADS = ("llama", "llama-tied", "gpt2", "gemma2-capped", "gpt_oss", "qwen3")
"""RMSNorm and LayerNorm, tied and untied heads, capped logits."""


@pytest.mark.parametrize("name", HEADS)
def test_the_last_row_is_the_models_own_logits(name):
    model = model_of(name)
    run = served(model, "chunked", Capture(lens=True, targets=[7, 90], top=4))
    lens = run.captured.lens
    logprobs = plain(model, computed(run)).logits[0].log_softmax(-1)
    last = lens.top.labels["layer"][-1]
    assert lens.error.values.max() < 2e-5
    assert lens.error.labels["position"] == tuple(range(22, 28))
    np.testing.assert_allclose(lens.top_logprob.sel(layer=last).values, logprobs.topk(4).values, **TOLERANCE)
    np.testing.assert_array_equal(lens.top.sel(layer=last).values, logprobs.topk(4).indices)
    np.testing.assert_allclose(lens.target_logprob.sel(layer=last).values, logprobs[:, [7, 90]], **TOLERANCE)
    assert lens.top.sel(layer=last, rank=0).values[22:].tolist() == run.token_ids
    assert not lens.kl.sel(layer=last).values.any()


@pytest.mark.parametrize("situation", SITUATIONS)
def test_every_layer_is_read_like_the_last(situation):
    model = model_of("llama")
    run = served(model, situation, Capture(lens=True, targets=[7]))
    lens, num_cached = run.captured.lens, run.usage["cached_tokens"]
    states = hidden_states(model, computed(run))
    with torch.no_grad():
        first, last = (model.lm_head(model.model.norm(s)).log_softmax(-1)[num_cached:] for s in states)
    np.testing.assert_allclose(lens.entropy.values[0], -(first.exp() * first).sum(-1), **TOLERANCE)
    np.testing.assert_allclose(lens.kl.values[0], (last.exp() * (last - first)).sum(-1), **TOLERANCE)
    np.testing.assert_array_equal(lens.rank.values[0, :, 0], (first > first[:, 7:8]).sum(-1))
    position = num_cached + 3
    trajectory = lens.rank_trajectory(7, position)
    assert trajectory.tolist() == [int((part[3] > part[3, 7]).sum()) for part in (first, last)]
    table = lens.frame()
    assert list(table) == ["layer", "position", "lens_top", "lens_top_logprob", "lens_entropy", "lens_kl"]
    assert len(table) == 2 * len(first)


def test_only_one_layer_and_a_chunk_of_positions_have_logits_at_a_time(monkeypatch):
    sizes, original = [], Anatomy.logits

    def spy(self, hidden):
        sizes.append(len(hidden))
        return original(self, hidden)

    monkeypatch.setattr(Anatomy, "logits", spy)
    engine = paged_engine(model_of("llama"), budget=128)
    run = engine.submit(prompt(110), GREEDY, capture=Capture(lens=True)).wait()
    assert run.captured.lens.top.shape == {"layer": 2, "position": 115, "rank": 5}
    assert max(sizes) == 64


def test_some_layers_still_compare_with_the_last():
    lens = served(model_of("llama"), "chunked", Capture(lens=0)).captured.lens
    assert lens.kl.labels["layer"] == (0,)
    assert (lens.kl.values > 0.01).any()
    assert lens.rank is None
    with pytest.raises(InvalidParameter, match="targets"):
        lens.rank_trajectory(7, 3)


def test_targets_may_be_text_of_one_token():
    engine = paged_engine(model_of("llama"))
    run = engine.submit(prompt(), GREEDY, capture=Capture(lens=True, targets="A")).wait()
    assert run.captured.lens.rank.labels["target"] == (ord("A"),)
    for wrong, message in (("AB", "2 tokens"), ("", "0 tokens"), (97, "not an id")):
        with pytest.raises(InvalidParameter, match=message):
            engine.submit(prompt(), GREEDY, capture=Capture(lens=True, targets=[wrong]))
