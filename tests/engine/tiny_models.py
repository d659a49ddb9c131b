"""Random models of a few thousand weights, one per family, and engines on them."""

from __future__ import annotations

from copy import deepcopy

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.models.load import LoadedModel

VOCABULARY = 97
CONTEXT = 128
WINDOW = 16  # longer than the load-time self-check's prompt, shorter than the tests' prompts
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "initializer_range": 0.3,
}
GPT2 = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": CONTEXT,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.3,
}
SLIDING = {"sliding_window": WINDOW}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": ("llama", COMMON),
    "llama-with-biases": ("llama", COMMON | {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", COMMON),
    "qwen2-sliding": ("qwen2", COMMON | SLIDING | {"use_sliding_window": True, "max_window_layers": 1}),
    "qwen3": ("qwen3", COMMON),
    "mistral-sliding": ("mistral", COMMON | SLIDING),
    "mistral": ("mistral", COMMON | {"sliding_window": None}),
    "gemma2": ("gemma2", COMMON | SLIDING | {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 3.0}),
    "gemma3_text": ("gemma3_text", COMMON | SLIDING | {"query_pre_attn_scalar": 8}),
    "gpt_oss": ("gpt_oss", COMMON | SLIDING | EXPERTS),
    "gpt2": ("gpt2", GPT2),
    "phi3": ("phi3", COMMON | {"sliding_window": None}),
    "phi3-sliding": ("phi3", COMMON | SLIDING),
    "olmo2": ("olmo2", COMMON),
    "mixtral": ("mixtral", COMMON | EXPERTS | {"sliding_window": None}),
}


def random_model(kind: str, **config):
    """A float32 model in eval mode with weights large enough for clear preferences."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config), attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("sinks", "bias")):
                parameter.normal_(0, 0.5)
    return model.float().eval().requires_grad_(False)


def family(name: str):
    """A random model of one of ``FAMILIES``."""
    kind, config = FAMILIES[name]
    return random_model(kind, **config)


def as_loaded(model, name: str = "tiny") -> LoadedModel:
    """The model as the loader would hand it over; the caller's model stays untouched."""
    copy = deepcopy(model)
    return LoadedModel(copy, ByteTokenizer(), name, "", (), CONTEXT, torch.device("cpu"), torch.float32)


def paged_engine(
    model,
    *,
    optimize: bool = True,
    num_blocks: int = 64,
    block_size: int = 4,
    budget: int = 64,
    slots: int = 8,
    prefix_cache: bool | str = True,
    host_blocks: int = 0,
) -> Engine:
    """A hand-stepped engine on a copy of ``model``."""
    runner = build_runner(as_loaded(model), block_size=block_size, num_blocks=num_blocks, optimize=optimize)
    config = SchedulerConfig(budget, slots)
    tiers = {"host_blocks": host_blocks, "swap": "always"}
    return Engine(runner, ByteTokenizer(), config=config, prefix_cache=prefix_cache, **tiers)


def generated(model, prompt: list[int], num_tokens: int) -> list[int]:
    """What transformers' own greedy ``generate`` answers."""
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        max_new_tokens=num_tokens,
        do_sample=False,
        pad_token_id=0,
    )
    return output[0, len(prompt) :].tolist()


@torch.inference_mode()
def plain_logprobs(model, tokens: list[int]) -> torch.Tensor:
    """Log-probabilities ``(len(tokens), vocabulary)`` of one forward pass without any cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
