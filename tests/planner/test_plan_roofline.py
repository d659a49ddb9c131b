"""Operations and bytes of a step."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoConfig, AutoModelForCausalLM

from llmlab.errors import InvalidParameter
from llmlab.planner.devices import DEVICES, device
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.roofline import Row, decode, prefill, read_bytes, step_work
from llmlab.planner.weights import weight_bytes

SMALL = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_linear_operations_are_those_torch_counts(kind):
    """torch counts full attention; ours is causal, so attention is compared by what full attention would be."""
    fields = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64} if kind == "gpt2" else SMALL
    config, tokens = AutoConfig.for_model(kind, **fields), 20
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        model(torch.arange(tokens)[None], use_cache=False)
    work = step_work(ModelShape.of(config), [Row(tokens, num_logits=tokens)])
    full = work.attention_flops * tokens**2 / (tokens * (tokens + 1) / 2)
    assert counter.get_total_flops() == work.linear_flops + work.head_flops + full


def test_pairs_of_chunks_sum_to_those_of_the_whole_prompt():
    for name in ("Llama-3-8B", "Gemma-3-270M"):
        shape = ModelShape.of(name)
        whole = step_work(shape, prefill(3000)).attention_flops
        chunks = [step_work(shape, [Row(n, start)]) for start, n in ((0, 700), (700, 300), (1000, 2000))]
        assert sum(chunk.attention_flops for chunk in chunks) == whole


def test_pairs_in_a_window_are_those_of_a_mask():
    attention = next(layer.attention for layer in ModelShape.of("Gemma-3-270M").layers if layer.attention.window)
    for cached, new in ((0, 5), (0, 600), (300, 400), (511, 1), (512, 1), (2000, 9)):
        seen = sum(min(position + 1, attention.window) for position in range(cached, cached + new))
        assert attention.pairs(new, cached) == seen


def test_decode_reads_each_weight_once_and_each_context():
    shape = ModelShape.of("Llama-3-8B")
    one, many = step_work(shape, decode(1, 2000)), step_work(shape, decode(16, 2000))
    table, row = shape.vocab_size * shape.hidden_size * 2, shape.hidden_size * 2
    assert one.weight_bytes == weight_bytes(shape) - table + row, "of the embedding, one row"
    assert many.weight_bytes == one.weight_bytes + 15 * row
    assert many.kv_read_bytes == 16 * one.kv_read_bytes == 16 * shape.kv_bytes(2000)
    assert many.kv_write_bytes == 16 * shape.kv_bytes_per_token()
    assert many.flops == 16 * one.flops


def test_decode_on_an_a100_takes_at_least_the_reading_of_8b():
    """Article B says 5 to 10 ms a step; reading the weights alone takes 7.4 ms, the embedding left out."""
    work = step_work(ModelShape.of("Llama-3-8B"), decode(1, 2000))
    assert work.bound("a100") == "memory"
    assert work.time_s("a100") == pytest.approx(7.49e-3, rel=0.01)


def test_a_long_prefill_is_bound_by_arithmetic_and_decode_by_memory():
    shape = ModelShape.of("Llama-3-8B")
    for name in DEVICES:
        assert step_work(shape, prefill(4000)).bound(name) == "compute"
        assert step_work(shape, decode(1, 100)).bound(name) == "memory"


def test_intensity_at_the_ridge_takes_equally_long():
    on = device("h100")
    work = step_work(ModelShape.of("Llama-3-8B"), prefill(500))
    assert (work.intensity > on.ridge()) == (work.bound(on) == "compute")
    assert on.ridge() == pytest.approx(295, abs=1)


def test_a_batch_touches_experts_as_expected():
    shape = ModelShape.of("Mixtral-8x7B")
    mlp = shape.layers[0].mlp
    assert [round(mlp.experts_touched(n), 3) for n in (1, 2, 8)] == [2, 3.5, 7.199]
    expert = 32 * mlp.expert_parameters * 2
    rest = read_bytes(shape, 1) - 2 * expert
    assert read_bytes(shape, 8) - rest == pytest.approx(7.199 * expert, rel=1e-3)


def test_a_single_token_reads_active_weights_only():
    shape = ModelShape.of("DeepSeek-V3")
    table = shape.vocab_size * shape.hidden_size
    assert read_bytes(shape, 1) == 2 * (shape.active_parameters - table + shape.hidden_size)


def test_mla_attends_on_the_latent_in_decode_only():
    shape = ModelShape.of("DeepSeek-V3")
    latent, expanded = (step_work(shape, decode(1, 1000), layout=layout) for layout in ("latent", "expanded"))
    assert latent.kv_read_bytes == 1000 * 70_272
    assert latent.attention_flops / expanded.attention_flops == (576 + 512) / (192 + 128)
    assert (
        step_work(shape, prefill(10)).attention_flops
        == step_work(shape, prefill(10), layout="expanded").attention_flops
    )


def test_small_weights_are_read_in_less_time():
    shape = ModelShape.of("Llama-3-8B")
    times = [step_work(shape, decode(1, 100), weights=w).time_s("h100") for w in ("bf16", "int8", "int4")]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("rows", [[], [Row(0)], [Row(1, -1)], [Row(1, 0, -1)]])
def test_nonsense_rows_are_refused(rows):
    with pytest.raises(InvalidParameter):
        step_work(ModelShape.of("Llama-3-8B"), rows)
