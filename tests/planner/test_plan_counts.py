"""Formulas of communication and shards are what ranks of a divided model really count and hold."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path += [str(Path(__file__).parents[1] / name) for name in ("engine", "parallel")]
from rank_threads import rank_of, run_ranks
from tiny_models import COMMON, VOCABULARY, as_loaded, family, random_model

from llmlab.parallel.sent_plan import SentPlan, SentRow
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import expert_parallel, pairs_away, pipeline_parallel, tensor_parallel
from llmlab.planner.shards import tensor_shard
from llmlab.trace.split_events import Collective

TOKENS, LOGITS = 13, 3


def step(model, folder, size: int, role: str, micro_batches: int = 1):
    """Every rank's share after one step of a prompt, and its collectives."""
    prompt = tuple((31 * i + 5) % VOCABULARY for i in range(TOKENS))
    plan = SentPlan(0, [SentRow(0, prompt, (9, 3, 27, 1), LOGITS)])

    def body(comm):
        rank = rank_of(as_loaded(model), comm, micro_batches=micro_batches)
        comm.take_events()
        rank.step(plan, True)
        return rank, [event for event in comm.take_events() if isinstance(event, Collective)]

    return run_ranks(folder, size, role, body)


def total(events, place: str, kind: str) -> int:
    return sum(event.nbytes for event in events if (event.place, event.kind) == (place, kind))


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_tensor_parallel_step_sends_what_is_computed(tmp_path, name):
    model = family(name)
    sent = tensor_parallel(ModelShape.of(model.config), TOKENS, 2, "fp32", LOGITS)
    for _, events in step(model, tmp_path, 2, "tensor"):
        assert len(events) == sent.num_messages
        assert sum(event.nbytes for event in events) == sent.nbytes
        for place in ("attention", "mlp", "head"):
            assert total(events, place, sent.at(place).kind) == sent.at(place).total_bytes


def test_the_fullest_rank_holds_its_computed_share(tmp_path):
    """Heads, MLP and vocabulary that two does not divide; here the embedding is whole in every rank."""
    odd = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 47}
    model = random_model("qwen3", **COMMON | odd)
    shape = ModelShape.of(model.config)
    shard = tensor_shard(shape, 2)
    (fullest, _), (other, _) = step(model, tmp_path, 2, "tensor")
    whole_table = (shape.vocab_size - shard.vocab_size) * shape.hidden_size
    assert fullest.num_parameters == shard.num_parameters + whole_table > other.num_parameters
    assert fullest.pool.bytes_per_token == shard.kv_bytes_per_token("fp32")


def test_a_pipelined_step_sends_what_is_computed(tmp_path):
    model = family("llama")
    sent = pipeline_parallel(ModelShape.of(model.config), TOKENS, 2, "fp32", num_logits=LOGITS)
    (_, first), (_, last) = step(model, tmp_path, 2, "pipeline")
    assert total(first, "stage", "send") == total(last, "stage", "receive") == sent.at("stage").total_bytes
    assert total(last, "head", "send") == total(first, "head", "receive") == sent.at("head").total_bytes


def test_an_expert_parallel_step_sends_what_its_routing_says(tmp_path):
    """Dispatch and combine of all ranks together, from the experts that the whole model's routers choose."""
    model = family("mixtral")
    chosen: list[list[list[int]]] = []
    for layer in model.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _, __, output: chosen.append(output[2].tolist()))
    ranks = step(model, tmp_path, 2, "expert")
    chosen.clear()
    with torch.inference_mode():
        model(torch.tensor([[(31 * i + 5) % VOCABULARY for i in range(TOKENS)]]), use_cache=False)
    vector = model.config.hidden_size * 4
    routed = sum(pairs_away(layer, 4, 2) for layer in chosen) * vector
    sent = expert_parallel(ModelShape.of(model.config), TOKENS, 2, "fp32", replicated_attention=True)
    for place in ("dispatch", "combine"):
        assert sum(total(events, place, "all_to_all") for _, events in ranks) == routed
    for _, events in ranks:
        assert total(events, "counts", "all_to_all") == sent.at("counts").total_bytes
        assert total(events, "mlp", "all_gather") == sent.at("mlp").total_bytes
