"""The catalogue's default model with its real weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import llmlab
from llmlab.models import DEFAULT_MODEL, damaged_files, fetch, load, lookup

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def loaded():
    return load(DEFAULT_MODEL, device="cpu")


def test_fetched_folder_holds_safetensors_tokenizer_and_template(loaded):
    folder = fetch(lookup(DEFAULT_MODEL))
    names = {path.name for path in folder.iterdir()}
    assert {"model.safetensors", "tokenizer.json", "chat_template.jinja", "config.json"} <= names
    assert not [name for name in names if name.endswith((".gguf", ".bin", ".whl"))]
    assert damaged_files(folder, hashes=True) == []


def test_the_tied_matrix_has_the_name_that_other_servers_look_for():
    with safe_open(fetch(lookup(DEFAULT_MODEL)) / "model.safetensors", "pt") as file:
        names = set(file.keys())
    assert "model.embed_tokens.weight" in names
    assert "lm_head.weight" not in names


def test_shape_is_that_of_the_catalogue(loaded):
    config = loaded.model.config
    shape = (
        config.num_hidden_layers,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.vocab_size,
    )
    assert shape == (30, 9, 3, 49_152)
    assert sum(p.numel() for p in loaded.model.parameters()) == lookup(DEFAULT_MODEL).num_parameters
    assert (loaded.eos_token_ids, loaded.max_model_len, loaded.dtype) == ((2,), 8192, torch.float32)


def test_digits_are_split_before_anything_else(loaded):
    assert loaded.tokenizer.tokenize("a\n\n1. 2024") == ["a", "ĊĊ", "1", ".", "Ġ", "2", "0", "2", "4"]


def test_greedy_answer_to_a_rendered_chat_has_known_ids(loaded):
    messages = [{"role": "user", "content": "Count from 1 to 10."}]
    prompt = loaded.tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    assert prompt["input_ids"][0, :4].tolist() == [1, 9690, 198, 2683]
    with torch.inference_mode():
        output = loaded.model.generate(**prompt, max_new_tokens=16, do_sample=False)
    answer = output[0, prompt["input_ids"].shape[1] :].tolist()
    # the smallest top-1 margin on this path is 1.2 logits
    assert answer == [33, 30, 216, 33, 198, 34, 30, 216, 34, 198, 35, 30, 216, 35, 198, 36]


def test_second_start_in_a_fresh_process_is_quick_and_quiet(loaded):
    script = (
        "import time, torch, transformers; from llmlab.models import load; torch.set_num_threads(1); "
        "start = time.perf_counter(); load('smollm2-135m', device='cpu'); print(time.perf_counter() - start)"
    )
    root = Path(llmlab.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert float(done.stdout) < 10
    assert done.stderr == ""
