from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedTokenizerFast

from llmlab.errors import FetchError, InvalidParameter, UnknownModel, UnsupportedModel
from llmlab.models import load, resolve
from llmlab.models.load import check_architecture, placement, weight_bytes

CONFIG = {
    "vocab_size": 258,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": [2, 1],
    "tie_word_embeddings": True,
}


def save_tokenizer(folder) -> None:
    words = ["<s>", "</s>", *sorted(ByteLevel.alphabet())]
    backend = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer, backend.decoder = ByteLevel(add_prefix_space=False), ByteLevelDecoder()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>").save_pretrained(folder)


@pytest.fixture
def folder(tmp_path):
    """A random Llama of two layers with a byte-level tokenizer whose EOS is id 1."""
    path = tmp_path / "tiny-llama"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**CONFIG)).save_pretrained(path)
    save_tokenizer(path)
    return path


def test_local_folder_loads_ready_for_inference(folder):
    loaded = load(folder, device="cpu")
    assert (loaded.name, loaded.path, loaded.max_model_len) == ("tiny-llama", str(folder), 64)
    assert (loaded.device, loaded.dtype) == (torch.device("cpu"), torch.float32)
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("Zug, 雪")) == "Zug, 雪"


def test_weights_arrive_unchanged(folder):
    loaded = load(str(folder), device="cpu")
    expected = load_file(folder / "model.safetensors")["model.layers.1.mlp.up_proj.weight"]
    assert torch.equal(loaded.model.model.layers[1].mlp.up_proj.weight, expected)


def test_eos_ids_of_generation_config_and_tokenizer_are_joined_without_repeats(folder):
    assert load(folder, device="cpu").eos_token_ids == (2, 1)


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16])
def test_dtype_is_taken_as_text_or_torch_dtype(folder, dtype):
    loaded = load(folder, device="cpu", dtype=dtype)
    assert loaded.dtype == loaded.model.lm_head.weight.dtype == torch.bfloat16


def test_automatic_dtype_is_float32_without_cuda(folder):
    assert load(folder, device="cpu", dtype="auto").dtype == torch.float32


@pytest.mark.parametrize(("key", "value"), [("dtype", "int8"), ("device", "toaster"), ("device", "cuda:99")])
def test_bad_dtype_or_device_is_refused_with_what_works(folder, key, value):
    with pytest.raises(InvalidParameter, match=r"float32|cpu"):
        load(folder, **{key: value})


def test_loading_prints_nothing_and_restores_the_log_level(folder, capfd):
    before = transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled()
    load(folder, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert before == (transformers.logging.get_verbosity(), transformers.logging.is_progress_bar_enabled())


def test_pickled_weights_are_refused_with_the_conversion(folder):
    state = LlamaForCausalLM(LlamaConfig(**CONFIG)).state_dict()
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"only as pickle \(pytorch_model\.bin\).*save_pretrained"):
        load(folder, device="cpu")


def test_pickled_weights_beside_an_unrelated_safetensors_file_are_not_read(folder):
    torch.save(LlamaForCausalLM(LlamaConfig(**CONFIG)).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    with pytest.raises(FetchError, match=r"no file named model\.safetensors"):
        load(folder, device="cpu")


def test_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors is missing"):
        load(folder, device="cpu")


def test_folder_without_tokenizer_is_refused(folder):
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(UnsupportedModel, match="tokenizer"):
        load(folder, device="cpu")


def test_missing_weights_are_refused_instead_of_made_up(folder):
    LlamaModel(LlamaConfig(**{**CONFIG, "tie_word_embeddings": False})).save_pretrained(folder)
    with pytest.raises(UnsupportedModel, match=r"lack weights the model needs: lm_head\.weight"):
        load(folder, device="cpu")


def test_code_in_the_folder_is_never_run(folder):
    config = {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\nclass OwnConfig: pass\n")
    with pytest.raises(UnsupportedModel, match="which llmlab never runs"):
        load(folder, device="cpu")
    assert not (folder / "ran").exists()


REFUSED = [
    "bamba",
    "falcon_h1",
    "falcon_mamba",
    "jamba",
    "lfm2",
    "lfm2_moe",
    "mamba",
    "mamba2",
    "minimax",
    "nemotron_h",
    "qwen3_next",
    "recurrent_gemma",
    "rwkv",
    "xlstm",
    "zamba",
    "zamba2",
]


@pytest.mark.parametrize("kind", REFUSED)
def test_recurrent_model_is_refused_by_name_before_weights_are_looked_for(tmp_path, kind):
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=f"'{kind}' keeps recurrent or compressed state"):
        load(tmp_path, device="cpu")


@pytest.mark.parametrize(("kind", "reason"), [("t5", "encoder-decoder"), ("vit", "no causal language model")])
def test_model_that_is_no_decoder_is_refused_by_name(tmp_path, kind, reason):
    AutoConfig.for_model(kind).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModel, match=rf"'?{kind}'?.*{reason}|{reason}.*'{kind}'"):
        load(tmp_path, device="cpu")


ACCEPTED = [
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_oss",
    "llama",
    "mistral",
    "mixtral",
    "phi3",
    "qwen2",
    "qwen3",
]


@pytest.mark.parametrize("kind", ACCEPTED)
def test_attention_only_model_is_not_refused(kind):
    assert check_architecture(AutoConfig.for_model(kind)) is None


def test_unknown_name_says_what_exists_and_how_to_write_a_hub_model():
    with pytest.raises(UnknownModel, match=r"smollm2-135m.*local folder.*'hub:org/name'"):
        resolve("nonesuch")
    with pytest.raises(UnknownModel, match=r"'hub:some/model'"):
        resolve("some/model")


def test_folder_without_config_is_refused(tmp_path):
    with pytest.raises(UnknownModel, match=r"no config\.json"):
        resolve(tmp_path)


def test_hub_is_used_only_when_asked_for():
    assert resolve("hub:org/name").from_hub
    assert resolve("org/name", allow_hub=True).path_or_id == "org/name"
    with pytest.raises(UnknownModel, match="not a hub id"):
        resolve("hub:../secrets/file")


def test_hub_model_that_cannot_be_reached_is_named(monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(FetchError, match=r"'llmlab-tests/nonesuch' could not be loaded from the hub"):
        load("hub:llmlab-tests/nonesuch", device="cpu")


def test_weight_bytes_counts_shared_weights_once(folder):
    stored = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert weight_bytes(LlamaConfig(**CONFIG), torch.bfloat16) == 2 * stored


def test_model_larger_than_free_memory_is_spread_over_devices(monkeypatch):
    config, cuda = LlamaConfig(**CONFIG), torch.device("cuda")
    size = weight_bytes(config, torch.float32)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * size, 2 * size))
    assert placement(config, cuda, torch.float32) == {"device_map": {"": cuda}}
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (size, 2 * size))
    assert placement(config, cuda, torch.float32) == {"device_map": "auto"}
    numbered = torch.device("cuda", 1)
    assert placement(config, numbered, torch.float32) == {"device_map": {"": numbered}}
    assert placement(config, torch.device("cpu"), torch.float32) == {}


def test_damaged_and_mismatched_weights_are_named(folder):
    weights = folder / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FetchError, match="damaged"):
        load(folder, device="cpu")
    weights.write_bytes(whole)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"intermediate_size": 40}))
    with pytest.raises(UnsupportedModel, match="do not fit"):
        load(folder, device="cpu")
