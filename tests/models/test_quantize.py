"""Weights on integers: rounded as they should be, multiplied by what they stand for, served like ordinary ones."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from tiny_models import COMMON, as_loaded, family, generated, random_model

import llmlab
from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.errors import InvalidParameter, QuantizationUnavailable, UnsupportedModel
from llmlab.models import quantize, quantized_kernels
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.models.quantize import quantized_layers, resident_bytes, round_linears
from llmlab.models.quantized_format import GROUP, Quantization
from llmlab.models.quantized_linear import Int4Linear, Int8Linear, RoundedLinear, packed_layer
from llmlab.models.quantized_weight import joined, round_weight
from llmlab.probes import Ablate, Capture

SIZES = COMMON | {"intermediate_size": 64}
"""Widths that divide into groups."""
FORMATS = [Quantization("int8"), Quantization("int4"), Quantization("int4", head=True), Quantization("int4", "channel")]
every_format = pytest.mark.parametrize("quantization", FORMATS, ids=str)
PROMPT = [5, 6, 7, 8] * 5
GREEDY = SamplingParams(max_tokens=12, logprobs=0)


@pytest.fixture(autouse=True)
def _one_torch_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def weight(out: int = 96, width: int = 128) -> torch.Tensor:
    return torch.randn(out, width, generator=torch.Generator().manual_seed(3)) * 0.1


def rounded_layer(quantization, out=96, dtype=torch.bfloat16, bias=False) -> RoundedLinear:
    extra = torch.nn.Parameter(torch.linspace(-1, 1, out, dtype=dtype), requires_grad=False) if bias else None
    return RoundedLinear(round_weight(weight(out), quantization), extra, dtype)


def quantized_runner(model, quantization, **options):
    return build_runner(as_loaded(model), block_size=4, num_blocks=64, quantization=quantization, **options)


def engine_of(runner, speculation=None) -> Engine:
    return Engine(runner, ByteTokenizer(), config=SchedulerConfig(64, 8), speculation=speculation)


def dequantized_model(model, quantization):
    """A copy whose linear layers have the dequantized weights."""
    copy = deepcopy(model)
    round_linears(copy, quantization)
    return copy


# -- rounding -------------------------------------------------------------------------------------------------


def test_int4_is_never_further_off_than_half_a_step_of_its_group():
    original = weight()
    rounded = round_weight(original, Quantization("int4"))
    error = (rounded.dequantized() - original).abs().unflatten(1, (-1, GROUP))
    step = rounded.scales.float().unsqueeze(-1)
    # scales and zeros are bfloat16, so the ends of the range are off by what those are rounded by
    assert (error <= step * 0.5 + original.abs().max() / 128).all()
    assert error.max() > 0.3 * step.min()
    assert rounded.codes.unique().tolist() == list(range(16))


def test_int8_is_never_further_off_than_half_a_step_of_its_channel():
    original = weight()
    rounded = round_weight(original, Quantization("int8"))
    assert ((rounded.dequantized() - original).abs() <= rounded.scales.float() * 0.51 * 1.01).all()
    assert rounded.codes.abs().amax(1).min() >= 126


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_scales_that_are_shared_by_more_weights_lose_more(name):
    original = weight() * torch.linspace(0.01, 1, 96).unsqueeze(1) * torch.linspace(0.1, 1, 128)
    kinds = ["group", "channel", "tensor"] if name == "int4" else ["channel", "tensor"]
    errors = [(round_weight(original, Quantization(name, kind)).dequantized() - original).norm() for kind in kinds]
    assert errors == sorted(errors)
    assert errors[-1] > 1.5 * errors[0]


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_equal_weights_and_zeros_stay_what_they_are(name):
    original = torch.zeros(64, 64)
    original[1] = 0.5
    found = round_weight(original, Quantization(name)).dequantized()
    assert torch.allclose(found, original, rtol=2**-8)
    assert found.count_nonzero() == 64


def test_rounding_layers_apart_and_together_is_the_same():
    quantization, parts = Quantization("int4"), [weight(32), weight(64)]
    together = round_weight(torch.cat(parts), quantization).dequantized()
    assert torch.equal(joined([round_weight(part, quantization) for part in parts]).dequantized(), together)


def test_a_weight_of_four_bits_with_its_scale_and_zero_takes_five():
    assert round_weight(weight(64, 64), Quantization("int4")).nbytes == 64 * 64 * 5 // 8
    assert round_weight(weight(64, 64), Quantization("int8")).nbytes == 64 * 64 + 64 * 2


# -- multiplying ----------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize("out", [96, 97, 200])
def test_packed_weights_expand_to_the_dequantized_ones(quantization, out):
    layer = rounded_layer(quantization, out, torch.float32)
    packed = packed_layer(layer)
    found = packed(torch.eye(128)).T
    assert packed.dequantize_from == 0
    assert torch.allclose(found, layer.rounded.dequantized(), atol=1e-6)


@every_format
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_the_kernel_and_expanded_weights_give_the_same_within_bfloat16(quantization, rows, bias):
    layer = rounded_layer(quantization, bias=bias)
    x = torch.randn(rows, 1, 128, generator=torch.Generator().manual_seed(rows)).bfloat16()
    expected = x.float() @ layer.rounded.dequantized().T + (layer.bias.float() if bias else 0)
    for dequantize_from in (0, rows + 1):
        found = packed_layer(layer, dequantize_from)(x)
        assert found.shape == (rows, 1, 96)
        assert found.dtype == torch.bfloat16
        assert (found.float() - expected).abs().max() < 0.02 * expected.abs().max()


@every_format
def test_a_row_in_a_batch_comes_out_as_alone(quantization):
    layer = packed_layer(rounded_layer(quantization), dequantize_from=1 << 30)
    x = torch.randn(9, 128, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert torch.equal(layer(x), torch.cat([layer(row[None]) for row in x]))


def test_the_number_of_rows_decides_how_it_is_multiplied(monkeypatch):
    layer, used = packed_layer(rounded_layer(Quantization("int4")), dequantize_from=5), []
    for name in ("by_kernel", "by_expanding"):
        method = getattr(layer, name)
        monkeypatch.setattr(layer, name, lambda x, name=name, method=method: used.append(name) or method(x))
    for rows in (1, 4, 5, 60):
        layer(torch.ones(rows, 128, dtype=torch.bfloat16))
    assert used == ["by_kernel"] * 2 + ["by_expanding"] * 2


# -- serving --------------------------------------------------------------------------------------------------


@every_format
@pytest.mark.parametrize(("kind", "optimize"), [("llama", True), ("llama", False), ("qwen2", True), ("gemma2", True)])
def test_greedy_tokens_are_those_of_the_model_with_dequantized_weights(kind, quantization, optimize):
    model = random_model(kind, **(SIZES | ({"query_pre_attn_scalar": 8} if kind == "gemma2" else {})))
    runner = quantized_runner(model, quantization, optimize=optimize)
    engine = engine_of(runner)
    runs = [engine.submit([1 + i, *PROMPT], GREEDY) for i in range(3)]
    engine.run_until_idle()
    expected = dequantized_model(model, quantization)
    assert [run.token_ids for run in runs] == [generated(expected, [1 + i, *PROMPT], 12) for i in range(3)]
    assert len(quantized_layers(runner.loaded_model)) >= 8
    assert engine.trace.info.quantized == str(quantization)
    assert engine.trace.check() == []


def test_a_layer_that_does_not_divide_into_groups_keeps_its_format():
    runner = quantized_runner(family("llama"), Quantization("int4"))
    kept = [name for name, module in runner.loaded_model.named_modules() if type(module).__name__ == "PackedLinear"]
    assert all("down_proj" in name or "lm_head" in name for name in kept)
    assert len(kept) == 3


def test_a_rounded_head_leaves_the_embedding_alone():
    model = random_model("llama", **(SIZES | {"tie_word_embeddings": True}))
    before = model.get_input_embeddings().weight.clone()
    runner = quantized_runner(model, Quantization("int4", head=True))
    assert torch.equal(runner.loaded_model.get_input_embeddings().weight, before)
    assert "lm_head" in quantized_layers(runner.loaded_model)


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_the_self_check_notices_a_kernel_that_multiplies_wrongly(name, monkeypatch):
    quantization = Quantization(name, dequantize_from=1 << 30)
    model = random_model("llama", **SIZES)
    quantized_runner(model, quantization)
    kind = Int4Linear if name == "int4" else Int8Linear
    right = kind.by_kernel
    monkeypatch.setattr(kind, "by_kernel", lambda layer, x: right(layer, x) * 1.1)
    with pytest.raises(UnsupportedModel, match="dequantized"):
        quantized_runner(model, quantization)


def test_without_fused_layers_it_is_tried_again(monkeypatch):
    model, tried = random_model("llama", **SIZES), []
    check = llmlab.engine.build.passing_backend

    def first_fails(loaded, reference, block_size, lean=None):
        tried.append(lean)
        if len(tried) == 1:
            raise UnsupportedModel("not this way")
        return check(loaded, reference, block_size, lean)

    monkeypatch.setattr(llmlab.engine.build, "passing_backend", first_fails)
    runner = quantized_runner(model, Quantization("int4"), reload=lambda: as_loaded(model))
    assert runner.lean is None
    assert tried[0] is not None
    assert runner.quantized == "int4"
    assert len(quantized_layers(runner.loaded_model)) == 14


@pytest.mark.parametrize("proposer", ["ngram", "early-exit"])
@pytest.mark.parametrize("name", ["int8", "int4"])
def test_speculation_gives_the_tokens_of_plain_decoding(proposer, name):
    model, long = random_model("llama", **SIZES), SamplingParams(max_tokens=30)
    runner = quantized_runner(model, Quantization(name))
    plain = engine_of(runner).submit(PROMPT, long).wait()
    speculation = Speculation(proposer, adaptive=False, k=3, layers=1 if proposer == "early-exit" else None)
    engine = engine_of(runner, with_proposer(speculation, runner, as_loaded(model)))
    run = engine.submit(PROMPT, long).wait()
    assert run.token_ids == plain.token_ids
    assert engine.trace.drafts.attrs["summary"]["accepted"] > 0
    assert engine.trace.check() == []


@every_format
def test_what_is_seen_inside_is_what_is_computed(quantization):
    model = random_model("llama", **SIZES)
    engine = engine_of(quantized_runner(model, quantization))
    run = engine.submit(PROMPT, GREEDY, capture=Capture(attention=True, hidden=True, lens=True)).wait()
    assert run.captured.lens.error.values.max() < 5e-5
    assert run.token_ids == engine.submit(PROMPT, GREEDY).wait().token_ids
    changed = engine.submit(PROMPT, GREEDY, intervene=Ablate(layer=0, head=1)).wait()
    assert changed.outputs[0].logprobs != run.outputs[0].logprobs


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_bytes_are_counted_from_tensors(name):
    model = random_model("llama", **SIZES)
    plain = resident_bytes(build_runner(as_loaded(model), block_size=4, num_blocks=8).loaded_model)
    runner = quantized_runner(model, Quantization(name))
    layers = quantized_layers(runner.loaded_model).values()
    integers = sum(layer.in_features * layer.out_features for layer in layers)
    saved = plain - resident_bytes(runner.loaded_model)
    padding = sum((-layer.out_features % 64) * layer.in_features for layer in layers) if name == "int4" else 0
    bits, extra = (5, 0) if name == "int4" else (8, 2 * sum(layer.out_features for layer in layers))
    assert saved == integers * 4 - (integers + padding) * bits // 8 - extra


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("int5", "int8, int4"),
        (4, "left out"),
        ({"format": "int4"}, "left out"),
        (("int8", "group"), "per channel"),
        (("int4", "row"), "group, channel, tensor"),
        (("int4", None, "yes"), "True or False"),
        (("int4", None, True, -1), "0 is always"),
    ],
)
def test_settings_that_cannot_be_are_refused(given, said):
    with pytest.raises(InvalidParameter, match=said):
        Quantization(*given) if isinstance(given, tuple) else Quantization.of(given)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": "mock", "quantize": "int4"}, "no weights"),
        ({"model": "mock", "quantize": "int3"}, "int8, int4"),
        ({"quantize": "int4", "tensor_parallel": 2}, "do not go together"),
        ({"quantize": Quantization("int4"), "disaggregated": True}, "without further settings"),
    ],
)
def test_what_does_not_go_together_is_refused_before_a_model_is_loaded(options, said):
    with pytest.raises(InvalidParameter, match=said):
        llmlab.open(**options)


def test_another_device_is_refused_by_name():
    loaded = as_loaded(random_model("llama", **SIZES))
    loaded.device = torch.device("cuda")
    with pytest.raises(QuantizationUnavailable, match="device='cpu'"):
        build_runner(loaded, quantization=Quantization("int4"))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_a_torch_without_the_kernel_is_named(name, monkeypatch):
    def missing(*args):
        raise AttributeError("'_OpNamespace' 'aten' object has no attribute")

    monkeypatch.setattr(quantized_kernels, f"operator{name[-1]}", missing)
    assert not quantized_kernels.kernels_work(name)
    with pytest.raises(QuantizationUnavailable, match="leave quantize out"):
        quantize.check_kernels(Quantization(name), torch.device("cpu"))


def test_a_model_without_linear_layers_is_named():
    with pytest.raises(UnsupportedModel, match="no linear layer"):
        quantized_runner(family("gpt2"), Quantization("int8"))
