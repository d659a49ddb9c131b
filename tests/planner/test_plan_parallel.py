"""What split models send each other, and what waiting costs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations

import pytest

from llmlab.errors import InvalidParameter
from llmlab.planner.communication import all_gather_sent, all_reduce_sent
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import (
    bubble,
    expert_parallel,
    expert_parallel_bytes,
    pairs_away,
    pipeline_parallel,
    pipeline_parallel_bytes,
    ranks_touched,
    tensor_parallel,
    tensor_parallel_bytes,
)
from llmlab.planner.roofline import decode, prefill, step_work
from llmlab.planner.shards import pipeline_shard
from llmlab.planner.split_step import split_step

SMOL, LARGE, MIXTURE = (ModelShape.of(name) for name in ("SmolLM2-135M", "Llama-3-70B", "Mixtral-8x7B"))


def test_tensor_parallel_sums_twice_in_every_layer():
    sent = tensor_parallel(SMOL, 7, 3, "fp32", num_logits=2)
    assert sent.at("attention").count == sent.at("mlp").count == 30
    assert sent.at("attention").nbytes == 7 * 576 * 4
    assert sent.at("head").nbytes == 2 * 16384 * 4
    assert sent.num_messages == 61
    assert tensor_parallel_bytes(SMOL, 7, 3, "fp32") == 2 * 30 * 7 * 576 * 4
    assert tensor_parallel_bytes(LARGE, 1, 8) == 2 * 80 * 8192 * 2


def test_one_rank_sends_nothing():
    assert tensor_parallel(SMOL, 7, 1).nbytes == pipeline_parallel(SMOL, 7, 1).nbytes == 0
    assert expert_parallel(MIXTURE, 7, 1).time_s("10gbps") == 0


def test_a_ring_by_hand():
    """Four ranks pass a quarter of the tensor six times: three times to sum, three times to spread the sums."""
    assert all_reduce_sent(400, 4) == 6 * 100
    assert all_gather_sent(100, 4) == 3 * 100


def test_a_pipeline_sends_each_token_over_each_boundary_once():
    for micro_batches in (1, 2, 5):
        sent = pipeline_parallel(SMOL, 10, 3, "fp32", micro_batches)
        assert sent.num_messages == micro_batches
        assert sent.nbytes == 10 * 576 * 4
    assert pipeline_parallel_bytes(SMOL, 10, 3, "fp32") == 2 * 10 * 576 * 4
    assert pipeline_parallel(SMOL, 10, 3, "fp32", num_logits=4).at("head").nbytes == 4 * 49152 * 4


def idle_slots(stages: int, micro_batches: int) -> float:
    """The bubble by filling in a table of stages and slots."""
    length = micro_batches + stages - 1
    busy = {(stage, stage + micro) for stage in range(stages) for micro in range(micro_batches)}
    return 1 - len(busy) / (stages * length)


@pytest.mark.parametrize("stages", [1, 2, 5])
@pytest.mark.parametrize("micro_batches", [1, 4, 16])
def test_the_bubble_is_the_share_of_empty_slots(stages, micro_batches):
    assert bubble(stages, micro_batches) == pytest.approx(idle_slots(stages, micro_batches))


def test_expert_parallel_bytes_are_the_expectation_of_even_routing():
    """Against drawn routings: 4,000 tokens, 2 of 8 experts each, over 4 ranks."""
    draw = random.Random(0)
    chosen = [draw.sample(range(8), 2) for _ in range(4000)]
    vector = MIXTURE.hidden_size * 2
    drawn = 2 * 32 * pairs_away(chosen, 8, 4) * vector
    assert drawn == pytest.approx(expert_parallel_bytes(MIXTURE, 4000, 4), rel=0.03)


def test_pairs_that_stay_at_home_are_not_sent():
    assert pairs_away([[0, 1], [2, 3]], num_experts=4, ranks=2) == 0
    assert pairs_away([[2, 3], [0, 3]], num_experts=4, ranks=2) == 3
    assert pairs_away([[2, 3], [0, 3]], num_experts=4, ranks=1) == 0


@pytest.mark.parametrize(("experts", "top_k", "ranks"), [(8, 2, 4), (8, 2, 8), (6, 3, 2), (4, 4, 2)])
def test_ranks_touched_by_counting_all_choices(experts, top_k, ranks):
    choices = list(combinations(range(experts), top_k))
    counted = sum(len({expert // (experts // ranks) for expert in choice}) for choice in choices) / len(choices)
    assert ranks_touched(experts, top_k, ranks) == pytest.approx(counted)


def test_sending_once_per_rank_saves_bytes():
    deep = ModelShape.of("DeepSeek-V3")
    per_expert, per_rank = (expert_parallel_bytes(deep, 128, 16, per=per) for per in ("expert", "rank"))
    assert per_rank / per_expert == pytest.approx(6.523 / 8, rel=0.001)


def test_layers_without_experts_send_nothing():
    assert expert_parallel(ModelShape.of("DeepSeek-V3"), 16, 4).at("dispatch").count == 58


def test_replicated_attention_gathers_the_shares():
    sent = expert_parallel(MIXTURE, 10, 4, "fp32", replicated_attention=True)
    assert sent.at("mlp").nbytes == 3 * 4096 * 4
    assert sent.at("counts").nbytes == 6 * 8


# -- put together ---------------------------------------------------------------------------------------------


def test_tensor_parallel_pays_on_a_fast_link_and_not_on_a_slow_one():
    """Article B: only where devices are connected fast enough."""
    alone = split_step(LARGE, decode(1, 2000), "tensor", 1, "h100", "nvlink4")
    assert split_step(LARGE, decode(1, 2000), "tensor", 8, "h100", "nvlink4").time_s < alone.time_s / 3
    assert split_step(LARGE, decode(1, 2000), "tensor", 8, "h100", "10gbps").time_s > alone.time_s


def test_a_pipeline_does_not_mind_a_slow_link_but_idles():
    step = split_step(LARGE, decode(1, 2000), "pipeline", 4, "h100", "10gbps")
    assert step.communication_s < 0.01 * step.time_s
    assert step.idle_s / (step.compute_s + step.idle_s) == bubble(4, 1)
    full = split_step(LARGE, decode(16, 2000), "pipeline", 4, "h100", "10gbps", micro_batches=16)
    assert full.idle_s / (full.compute_s + full.idle_s) == bubble(4, 16)


def test_stages_do_the_whole_step_between_them():
    """Operations and bytes of all stages, the head in the last one only; each reads the hidden states it is given."""
    shape, rows = LARGE, decode(4, 2000)
    inner = [replace(row, num_logits=0) for row in rows]
    parts = [step_work(pipeline_shard(shape, 4, i), rows if i == 3 else inner) for i in range(4)]
    whole = step_work(shape, rows)
    assert sum(part.flops for part in parts) == whole.flops
    assert sum(part.nbytes for part in parts) == whole.nbytes + 3 * 4 * shape.hidden_size * 2
    step = split_step(shape, rows, "pipeline", 4, "h100", "nvlink4")
    assert step.compute_s == max(part.time_s("h100") for part in parts)


def test_one_device_is_no_split():
    for split in ("tensor", "pipeline", "expert"):
        step = split_step(MIXTURE, decode(8, 500), split, 1, "h200", "nvlink4")
        assert (step.communication_s, step.idle_s) == (0, 0)
        assert step.time_s == pytest.approx(step_work(MIXTURE, decode(8, 500)).time_s("h200"))


def test_each_split_divides_what_a_device_holds():
    for split in ("tensor", "pipeline", "expert"):
        whole, part = (split_step(MIXTURE, decode(8, 500), split, n, "h200", "nvlink4") for n in (1, 4))
        assert whole.weight_bytes / 4 <= part.weight_bytes < whole.weight_bytes / 3


def test_long_prefills_send_more_than_decode():
    few, many = (tensor_parallel(LARGE, n, 4).sent_bytes for n in (1, 1000))
    assert many == 1000 * few
    assert split_step(LARGE, prefill(1000), "tensor", 4, "h100", "nvlink4").sent_bytes > many


@pytest.mark.parametrize(
    "call",
    [
        lambda: tensor_parallel(SMOL, 0, 2),
        lambda: tensor_parallel(SMOL, 1, 0),
        lambda: pipeline_parallel(SMOL, 4, 31),
        lambda: pipeline_parallel(SMOL, 4, 2, micro_batches=5),
        lambda: expert_parallel(SMOL, 4, 2),
        lambda: expert_parallel(MIXTURE, 4, 9),
        lambda: expert_parallel(MIXTURE, 4, 2, per="layer"),
        lambda: bubble(0, 1),
        lambda: split_step(SMOL, decode(1, 10), "sideways", 2, "h100", "nvlink4"),
        lambda: split_step(SMOL, decode(1, 10), "pipeline", 2, "h100", "nvlink4", micro_batches=2),
        lambda: split_step(SMOL, decode(1, 10), "tensor", 2, "h100", "string"),
    ],
)
def test_nonsense_is_refused(call):
    with pytest.raises(InvalidParameter):
        call()
