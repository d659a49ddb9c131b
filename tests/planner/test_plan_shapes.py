"""Sizes computed from configs are those of the models that transformers builds."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llmlab.errors import UnknownModel, UnknownShape
from llmlab.planner.families import FAMILIES
from llmlab.planner.known import known_models
from llmlab.planner.model_shape import ModelShape

SMALL = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
}
MIXTURE = {"num_local_experts": 5, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
DEEPSEEK = {
    "kv_lora_rank": 16, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 6, "v_head_dim": 5,
    "n_routed_experts": 6, "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 20,
    "first_k_dense_replace": 1, "num_key_value_heads": 6,
}  # fmt: skip
BIASED = {"attention_bias": True, "mlp_bias": True}
GPT2 = {"vocab_size": 97, "n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 40}
CASES = {
    "llama": ("llama", SMALL),
    "llama with biases": ("llama", SMALL | BIASED),
    "llama tied": ("llama", SMALL | {"tie_word_embeddings": True}),
    "qwen2 with windows": ("qwen2", SMALL | {"use_sliding_window": True, "max_window_layers": 1, "sliding_window": 8}),
    "qwen3": ("qwen3", SMALL),
    "mistral": ("mistral", SMALL | {"sliding_window": 8}),
    "gemma": ("gemma", SMALL),
    "gemma2": ("gemma2", SMALL | {"sliding_window": 8}),
    "gemma3": ("gemma3_text", SMALL | {"sliding_window": 8}),
    "phi3": ("phi3", SMALL | {"pad_token_id": None, "head_dim": 8}),
    "olmo2": ("olmo2", SMALL | {"head_dim": 8}),
    "granite with biases": ("granite", SMALL | BIASED),
    "smollm3": ("smollm3", SMALL | {"pad_token_id": None}),
    "cohere": ("cohere", SMALL | {"pad_token_id": None}),
    "gpt2": ("gpt2", GPT2),
    "gpt2 with an inner width": ("gpt2", GPT2 | {"n_inner": 56}),
    "gpt_neox": ("gpt_neox", SMALL | {"head_dim": 8, "num_key_value_heads": None}),
    "phi": ("phi", SMALL | {"head_dim": 8}),
    "starcoder2": ("starcoder2", SMALL),
    "mixtral": ("mixtral", SMALL | MIXTURE),
    "qwen2_moe": ("qwen2_moe", SMALL | MIXTURE | {"head_dim": 8, "decoder_sparse_step": 2}),
    "qwen3_moe": ("qwen3_moe", SMALL | MIXTURE | {"mlp_only_layers": [1]}),
    "olmoe": ("olmoe", SMALL | MIXTURE | {"head_dim": 8}),
    "granitemoe": ("granitemoe", SMALL | MIXTURE | {"head_dim": 8}),
    "gpt_oss": ("gpt_oss", SMALL | MIXTURE | {"sliding_window": 8}),
    "deepseek_v2": ("deepseek_v2", SMALL | DEEPSEEK),
    "deepseek_v2 without a query latent": ("deepseek_v2", SMALL | DEEPSEEK | {"q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", SMALL | DEEPSEEK),
    "deepseek_v3 with biases": ("deepseek_v3", SMALL | DEEPSEEK | {"attention_bias": True}),
}


def built(config) -> int:
    """Parameters of the model that transformers builds, on the meta device."""
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("case", CASES)
def test_parameters_are_those_of_the_built_model(case):
    kind, fields = CASES[case]
    config = AutoConfig.for_model(kind, **fields)
    assert ModelShape.of(config).num_parameters == built(config)


def test_every_family_is_built_once_here():
    assert {kind for kind, _ in CASES.values()} == set(FAMILIES)


@pytest.mark.parametrize("name", known_models())
def test_known_models_have_the_parameters_of_the_built_ones(name):
    """DeepSeek-V3 with 4 of its 61 layers: building all takes seconds."""
    fields = dict(known_models()[name].config)
    if name == "DeepSeek-V3":
        fields["num_hidden_layers"] = 4
    shape = ModelShape.of(fields)
    assert shape.is_exact
    assert shape.num_parameters == built(AutoConfig.for_model(**fields))


@pytest.mark.parametrize(
    ("name", "parameters", "active"),
    [
        ("SmolLM2-135M", 134_515_008, 134_515_008),
        ("Llama-3-8B", 8_030_261_248, 8_030_261_248),
        ("Llama-3-70B", 70_553_706_496, 70_553_706_496),
        ("Mixtral-8x7B", 46_702_792_704, 12_879_925_248),
        ("DeepSeek-V3", 671_026_404_352, 37_552_282_624),
    ],
)
def test_parameters_of_known_models(name, parameters, active):
    shape = ModelShape.of(name)
    assert (shape.num_parameters, shape.active_parameters) == (parameters, active)
    assert sum(shape.parameters_by_part.values()) == parameters


def test_windows_are_those_of_the_built_configs():
    """A raw config without ``layer_types`` means the same layers as transformers makes of it."""
    for kind in ("mistral", "gemma2", "gemma3_text", "gpt_oss", "qwen2", "qwen3"):
        fields = SMALL | MIXTURE | {"num_hidden_layers": 14, "sliding_window": 8}
        fields |= {"use_sliding_window": True, "max_window_layers": 3} if kind.startswith("qwen") else {}
        given = AutoConfig.for_model(kind, **fields).to_dict()
        raw = {name: value for name, value in given.items() if name != "layer_types"}
        ours = [layer.attention.window for layer in ModelShape.of(raw).layers]
        types = given.get("layer_types") or ["sliding_attention"] * 14
        assert ours == [8 if each == "sliding_attention" else None for each in types], kind


def test_a_folder_a_dict_and_a_config_give_the_same_shape(tmp_path):
    config = AutoConfig.for_model("qwen2", **SMALL)
    config.save_pretrained(tmp_path)
    assert ModelShape.of(str(tmp_path), "m") == ModelShape.of(config.to_dict(), "m") == ModelShape.of(config, "m")


def test_names_are_found_in_any_spelling():
    assert ModelShape.of("meta-llama/Meta-Llama-3-8B") == ModelShape.of("llama-3-8b") == ModelShape.of("LLAMA_3_8B")


def test_the_text_part_of_a_config_of_text_and_images_counts():
    text = AutoConfig.for_model("gemma3_text", **SMALL).to_dict()
    assert (
        ModelShape.of({"model_type": "gemma3", "text_config": text}).num_parameters
        == ModelShape.of(text).num_parameters
    )


def test_an_unknown_family_is_counted_like_llama_and_says_so():
    shape = ModelShape.of(SMALL | {"model_type": "novel"})
    assert not shape.is_exact
    assert shape.num_parameters == ModelShape.of(SMALL | {"model_type": "llama"}).num_parameters


def test_a_missing_field_is_named():
    fields = {name: value for name, value in SMALL.items() if name != "num_attention_heads"}
    with pytest.raises(UnknownShape, match="num_attention_heads"):
        ModelShape.of(fields | {"model_type": "llama"})
    with pytest.raises(UnknownShape, match="num_experts_per_tok"):
        ModelShape.of(SMALL | {"model_type": "mixtral", "num_local_experts": 4})


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"model_type": "mamba2"}, "recurrent"),
        ({"model_type": "jamba", "mamba_d_state": 16}, "mamba_d_state"),
        ({"layer_types": ["linear_attention", "full_attention", "full_attention"]}, "linear_attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"num_key_value_heads": 4}, "share"),
        ({"num_hidden_layers": -1}, "num_hidden_layers"),
        ({"num_hidden_layers": "3"}, "num_hidden_layers"),
        ({"num_experts": 2, "num_experts_per_tok": 3}, "experts"),
        ({"num_hidden_layers": 10**9}, "no model has more"),
        ({"layer_types": 3}, "layer_types=3"),
        ({"layer_types": [["full_attention"]] * 3}, r"\['full_attention'\]"),
        ({"num_experts": 2, "num_experts_per_tok": 1, "mlp_layer_types": ["sparse"]}, "names 1 layers"),
        ({"num_experts": 2, "num_experts_per_tok": 1, "mlp_only_layers": 1}, "mlp_only_layers=1"),
        ({"num_experts": 2, "num_experts_per_tok": 1, "n_shared_experts": "x"}, "n_shared_experts"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(fields, word):
    with pytest.raises(UnknownShape, match=word):
        ModelShape.of(SMALL | {"model_type": "llama"} | fields)


def test_unknown_names_and_damaged_folders_are_refused(tmp_path):
    with pytest.raises(UnknownModel, match="Llama-3-8B"):
        ModelShape.of("no-such-model")
    with pytest.raises(UnknownShape, match="cannot be read"):
        ModelShape.of(tmp_path)
    for text in ("not json", json.dumps([1, 2])):
        (tmp_path / "config.json").write_text(text)
        with pytest.raises(UnknownShape, match=r"config\.json"):
            ModelShape.of(tmp_path)


def test_the_planner_needs_no_torch():
    import subprocess
    import sys

    modules = "memory, split_step, disaggregation, pictures"
    code = f"import sys; from llmlab.planner import {modules}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
