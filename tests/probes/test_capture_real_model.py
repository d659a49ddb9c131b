"""Captures of the default model, through the lab."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from looking import computed

import llmlab
from llmlab.models import DEFAULT_MODEL
from llmlab.models.load import load
from llmlab.probes import Ablate, Capture

pytestmark = pytest.mark.model

QUESTION = "Name the capital of France."


@pytest.fixture(scope="module")
def lab(model_path):
    with llmlab.open(DEFAULT_MODEL, device="cpu", dtype="float32", threads=1, background=False) as lab:
        yield lab


@pytest.fixture(scope="module")
def run(lab):
    capture = Capture(attention=True, lens=[-8, -1], layers=[0, 14, -1], positions=slice(-4, None), targets=" Paris")
    return lab.submit(QUESTION, max_tokens=8, capture=capture).wait()


def test_attention_equals_eager_attention(run):
    model = load(DEFAULT_MODEL, device="cpu", dtype="float32").model
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        expected = model(input_ids=torch.tensor([computed(run)]), output_attentions=True, use_cache=False).attentions
    attention = run.captured.attention
    assert attention.shape == {"layer": 3, "head": 9, "query": 4 + len(run.token_ids) - 1, "key": len(computed(run))}
    for layer in attention.labels["layer"]:
        weights = expected[layer][0][:, list(attention.labels["query"])]
        np.testing.assert_allclose(attention.sel(layer=layer).values, weights, atol=1e-5)


def test_the_lens_ends_at_the_answer(run):
    lens, start = run.captured.lens, len(run.prompt_token_ids) - 1
    assert lens.error.values.max() < 1e-3
    last = lens.top.sel(layer=29, rank=0)
    assert [int(last.sel(position=start + i).values) for i in range(len(run.token_ids))] == run.token_ids
    assert lens.rank.labels["layer"] == (22, 29)
    assert run.captured.cost_ms > 0


def test_looking_and_changing_leave_the_answer_alone(lab, run):
    again = lab.ask(QUESTION, max_tokens=8)
    assert again.token_ids == run.token_ids
    changed = lab.submit(QUESTION, max_tokens=8, intervene=[Ablate(layer=0)]).wait()
    assert changed.token_ids != run.token_ids
    assert changed.usage["cached_tokens"] == 0
    assert lab.ask(QUESTION, max_tokens=8).token_ids == run.token_ids
    assert lab.trace.check() == []
