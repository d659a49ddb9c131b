"""What probe tests share: prompts, the transformers' own answer, and runs in every serving situation."""

from __future__ import annotations

import torch
from tiny_models import COMMON, SLIDING, VOCABULARY, family, paged_engine, random_model

from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.run import Run
from llmlab.probes import Capture

NEW = 6
GREEDY = SamplingParams(max_tokens=NEW, logprobs=0)


def prompt(length: int = 23, start: int = 0) -> list[int]:
    return torch.randint(1, VOCABULARY, (length,), generator=torch.Generator().manual_seed(start)).tolist()


def model_of(name: str):
    """One of the engine tests' families, or ``mqa`` (one K/V head), or a variation on the last layers of a model."""
    if name == "mqa":
        return random_model("llama", **(COMMON | {"num_key_value_heads": 1}))
    if name == "llama-tied":
        return random_model("llama", **(COMMON | {"tie_word_embeddings": True}))
    if name == "gemma2-capped":
        config = COMMON | SLIDING | {"query_pre_attn_scalar": 8, "final_logit_softcapping": 2.0}
        return random_model("gemma2", **config)
    if name == "qwen3_moe":
        return random_model("qwen3_moe", **(COMMON | MOE | {"mlp_only_layers": [0]}))
    if name == "qwen2_moe":
        return random_model("qwen2_moe", **(COMMON | MOE | {"shared_expert_intermediate_size": 24}))
    return family(name)


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "decoder_sparse_step": 1}


def computed(run: Run) -> list[int]:
    """The tokens whose positions were computed: all but the last chosen."""
    return [*run.prompt_token_ids, *run.token_ids[:-1]]


@torch.inference_mode()
def plain(model, tokens: list[int], **options):
    """One eager forward pass of the untouched model, without a cache."""
    return model(input_ids=torch.tensor([tokens]), use_cache=False, **options)


def hidden_states(model, tokens: list[int]) -> list[torch.Tensor]:
    """After each layer, ``(tokens, width)``. (``output_hidden_states`` has the last one after the final norm.)"""
    states, layers = [], next(m for m in model.modules() if isinstance(m, torch.nn.ModuleList))
    hooks = [
        layer.register_forward_hook(lambda _, __, out: states.append(out[0] if isinstance(out, tuple) else out))
        for layer in layers
    ]
    plain(model, tokens)
    for hook in hooks:
        hook.remove()
    return [state[0] for state in states]


def whole(engine: Engine, capture: Capture) -> Run:
    """Prefill in one step, then decoding."""
    return engine.submit(prompt(), GREEDY, capture=capture).wait()


def beside_others(engine: Engine, capture: Capture) -> Run:
    """In the middle of a batch of prefills and decodes."""
    engine.submit(prompt(3, 1), SamplingParams(max_tokens=9))
    engine.submit(prompt(31, 2), GREEDY)
    engine.step()
    run = engine.submit(prompt(), GREEDY, capture=capture)
    engine.submit(prompt(17, 3), GREEDY)
    engine.run_until_idle()
    return run.wait()


def after_a_prefix(engine: Engine, capture: Capture) -> Run:
    """The first 12 positions come from the prefix cache."""
    engine.submit(prompt()[:14], SamplingParams(max_tokens=1)).wait()
    run = engine.submit(prompt(), GREEDY, capture=capture).wait()
    assert run.usage["cached_tokens"] == 12
    return run


def preempted(engine: Engine, capture: Capture) -> Run:
    """Its blocks are taken by earlier requests, and it computes again."""
    params = SamplingParams(max_tokens=14, logprobs=0)
    others = [engine.submit(prompt(9, start), params) for start in (1, 2)]
    run = engine.submit(prompt(9), params, capture=capture)
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert all(other.finished for other in others)
    return run.wait()


def swapped(engine: Engine, capture: Capture) -> Run:
    """Its blocks wait in the host pool for a while, and nothing is computed twice."""
    run = preempted(engine, capture)
    assert run.usage["recomputed_tokens"] == 0
    return run


SITUATIONS = {
    "whole": (whole, {}),
    "chunked": (whole, {"budget": 5}),
    "batched": (beside_others, {"budget": 11}),
    "prefix hit": (after_a_prefix, {}),
    "preempted": (preempted, {"num_blocks": 9}),
    "swapped": (swapped, {"num_blocks": 9, "host_blocks": 20}),
    "untouched modules": (beside_others, {"budget": 11, "optimize": False}),
}


def served(model, situation: str, capture: Capture) -> Run:
    """A run of ``model`` with ``capture`` in one of :data:`SITUATIONS`."""
    submit, options = SITUATIONS[situation]
    engine = paged_engine(model, **options)
    run = submit(engine, capture)
    engine.check_integrity()
    assert engine.trace.check() == []
    assert run.captured.stopped is None
    return run
