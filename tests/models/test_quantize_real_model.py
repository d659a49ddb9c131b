"""On the real weights: int4 takes the bytes that the planner computes, answers like bfloat16, and is drafted for."""

from __future__ import annotations

import pytest

import llmlab
from llmlab.bench.quality import fixed_text, perplexity
from llmlab.engine.speculative.config import Speculation
from llmlab.models.quantize import linear_bytes, quantized_layers, resident_bytes
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.weights import weight_bytes
from llmlab.probes import Capture

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def int4(model_path):
    head = Speculation("head", adaptive=False, k=3)
    with llmlab.open(quantize="int4", threads=1, num_blocks=64, background=False, speculative=head) as lab:
        yield lab


def test_bytes_are_those_the_planner_computes(int4, model_path):
    shape = ModelShape.of(str(model_path))
    own_head = 2 * shape.vocab_size * shape.hidden_size  # packed for its kernel, so not the embedding's memory
    assert resident_bytes(int4.loaded.model) == weight_bytes(shape, "int4") + own_head
    layers = quantized_layers(int4.loaded.model).values()
    assert linear_bytes(int4.loaded.model) == sum(layer.in_features * layer.out_features for layer in layers) * 5 // 8
    assert int4.trace.info.quantized == "int4"
    assert int4.trace.info.dtype == "bfloat16"


def test_it_answers_and_a_trained_head_drafts_for_it(int4):
    run = int4.ask("Name the capital of France.", max_tokens=16)
    assert "Paris" in run.text
    assert run.usage["accepted_draft_tokens"] > 0
    assert int4.trace.check() == []


def test_the_last_layer_of_the_lens_is_the_models_answer(int4):
    run = int4.ask("Name the capital of France.", max_tokens=4, capture=Capture(lens=True, layers=[29]))
    chosen = run.captured.lens.top.sel(layer=29, rank=0).values[-4:]
    assert chosen.tolist() == run.token_ids


def test_perplexity_is_that_of_ordinary_prose(int4):
    text = fixed_text()[:1500]
    assert 10 < perplexity(int4, text) < 60
