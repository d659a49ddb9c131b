"""Bytes that are computed are the bytes that are allocated."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache

from llmlab.models.quantized_format import Quantization
from llmlab.models.quantized_weight import round_weight
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.weights import weight_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))
from tiny_models import COMMON, FAMILIES, family, paged_engine, random_model

# widths of whole groups of 32
LINEAR = COMMON | {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}


def held(model) -> int:
    """Bytes of a model's parameters."""
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_weights_and_pool_of_tiny_models(name):
    model = family(name)
    shape = ModelShape.of(model.config)
    assert weight_bytes(shape, "fp32") == held(model)
    assert weight_bytes(shape, "bf16") == held(model.to(torch.bfloat16))
    pool = paged_engine(family(name), num_blocks=8, block_size=4).runner.pool
    assert pool.nbytes == shape.kv_bytes(8 * 4, "fp32", windows=False)
    assert pool.bytes_per_token == shape.kv_bytes_per_token("fp32")


MLA = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6,
    "v_head_dim": 5, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1, "moe_intermediate_size": 20, "first_k_dense_replace": 1, "pad_token_id": None,
    "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["deepseek_v2", "deepseek_v3"])
def test_transformers_caches_the_latent(kind):
    """The cache of a small random MLA model after 7 tokens; expanded keys and values would be several times as many."""
    model = random_model(kind, **MLA)
    cache = DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.arange(7)[None], cache=cache, use_cache=True)
    shape = ModelShape.of(model.config)
    stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert stored == shape.kv_bytes(7, "fp32", "latent") == 7 * 2 * (16 + 4) * 4
    assert shape.kv_bytes(7, "fp32", "expanded") == 7 * 2 * 4 * (6 + 4 + 5) * 4


def test_a_sliding_cache_stops_growing_at_the_window():
    """transformers drops what the next token will not see: one position less than the window, which it is part of."""
    model = family("mistral-sliding")
    shape, cache = ModelShape.of(model.config), DynamicCache(config=model.config)
    with torch.inference_mode():
        model(torch.arange(40)[None], cache=cache, use_cache=True)
    stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert stored == shape.kv_bytes(15, "fp32")
    assert shape.kv_bytes(16, "fp32") == shape.kv_bytes(40, "fp32") < shape.kv_bytes(40, "fp32", windows=False)


@pytest.mark.model
def test_weights_and_pool_of_the_default_model(model_path):
    import llmlab

    shape = ModelShape.of(model_path)
    assert shape.num_parameters == ModelShape.of("SmolLM2-135M").num_parameters == 134_515_008
    with llmlab.open(dtype="bfloat16", background=False, optimize=False, num_blocks=64) as lab:
        pool = lab.engine.runner.pool
        assert weight_bytes(shape, "bf16") == held(lab.engine.runner._model)
        assert pool.nbytes == shape.kv_bytes(pool.num_blocks * pool.block_size)
        assert pool.bytes_per_token == shape.kv_bytes_per_token() == 23_040


@pytest.mark.parametrize("form", ["int8", "int4"])
@pytest.mark.parametrize("head", [False, True])
def test_rounded_weights_take_the_computed_bytes(form, head):
    """Every linear layer's codes, scales and zero points, and the rest in bfloat16."""
    model = random_model("llama", **LINEAR).to(torch.bfloat16)
    quantization = Quantization(form, head=head)
    linears = [m for m in model.modules() if isinstance(m, torch.nn.Linear) and (head or m is not model.lm_head)]
    rounded = sum(round_weight(linear.weight, quantization).nbytes for linear in linears)
    rest = held(model) - sum(linear.weight.nbytes for linear in linears)
    assert weight_bytes(ModelShape.of(model.config), form, "head" if head else "layers") == rounded + rest
