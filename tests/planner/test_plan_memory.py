"""What fits: the parts sum to the memory, more of one thing leaves less of another, nonsense is refused."""

from __future__ import annotations

import json

import pytest

from llmlab.errors import InvalidParameter, UnknownModel
from llmlab.planner.activations import activation_bytes
from llmlab.planner.formats import WeightFormat, weight_format
from llmlab.planner.memory import devices_needed, plan_memory, splits, what_fits, with_memory
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.shards import expert_shard, pipeline_shard, runs, tensor_shard
from llmlab.planner.weights import weight_bytes, weight_bytes_by_part


@pytest.mark.parametrize("weights", ["bf16", "fp8", "int8", "int4", "int4-g128", "nvfp4", "mxfp4"])
@pytest.mark.parametrize("on", ["h100", "h200", "rtx-4090"])
def test_parts_sum_to_the_memory(weights, on):
    plan = plan_memory("Llama-3-8B", on, weights=weights)
    assert plan.weights_fit
    assert sum(plan.parts().values()) == plan.device.memory_bytes
    assert plan.num_requests * plan.kv_bytes_per_request <= plan.room_bytes
    assert (plan.num_requests + 1) * plan.kv_bytes_per_request > plan.room_bytes


def test_what_does_not_fit_has_no_requests():
    plan = plan_memory("Llama-3-70B", "rtx-4090")
    assert (plan.weights_fit, plan.num_requests, plan.num_tokens, plan.longest_request) == (False, 0, 0, 0)
    assert plan.room_bytes < 0


def test_the_longest_request_fits_and_one_more_token_does_not():
    plan = plan_memory("Gemma-3-270M", with_memory("rtx-4090", 2e9))
    assert plan.shape.kv_bytes(plan.longest_request) <= plan.room_bytes < plan.shape.kv_bytes(plan.longest_request + 1)
    assert plan.longest_request > plan.num_tokens, "windows let one long request keep more than many short ones"


def test_int4_bytes_count_a_scale_and_a_zero_point_per_group():
    form = weight_format("int4")
    assert form.nbytes(10, 64) == 10 * 64 // 2 + 10 * 2 * 4
    assert form.nbytes(10, 65) == (10 * 65 * 4 + 10 * 3 * 32) // 8
    assert weight_format("int4-g128").nbytes(1, 128) == 64 + 4
    assert weight_format("int8").nbytes(10, 64) == 10 * 64 + 10 * 2
    assert WeightFormat("four bits", 4).nbytes(3, 3) == 5, "rounded up to whole bytes"


def test_a_small_format_keeps_embedding_norms_and_head_in_16_bits():
    shape = ModelShape.of("Llama-3-8B")
    small, plain = weight_bytes_by_part(shape, "int8"), weight_bytes_by_part(shape, "bf16")
    assert (small["embedding"], small["head"]) == (plain["embedding"], plain["head"])
    assert 0.5 < small["layers"] / plain["layers"] < 0.501


def test_a_tied_head_in_a_small_format_is_kept_beside_the_embedding():
    shape = ModelShape.of("SmolLM2-135M")
    table = weight_format("int8").nbytes(shape.vocab_size, shape.hidden_size)
    assert weight_bytes(shape, "int8", "head") - weight_bytes(shape, "int8") == table


def test_a_router_stays_in_16_bits():
    shape = ModelShape.of("Mixtral-8x7B")
    router = 32 * 8 * 4096
    everything = sum(n * layer.parameters for layer, n in shape.kinds)
    eight = weight_bytes_by_part(shape, WeightFormat("eight bits", 8))["layers"]
    vectors = sum(n * layer.norms for layer, n in shape.kinds) + shape.final_norm
    assert eight == everything + router + vectors + shape.final_norm


def test_activations_grow_with_tokens_and_logits():
    shape = ModelShape.of("Llama-3-8B")
    one = activation_bytes(shape, 1, 0)
    assert one == 2 * (2 * 4096 + 3 * 14336)
    assert activation_bytes(shape, 100, 2) == 100 * one + 2 * 128256 * 4


# -- several devices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["Llama-3-8B", "Mixtral-8x7B", "DeepSeek-V3", "Qwen2.5-7B", "gpt-oss-20b"])
def test_even_tensor_shards_hold_all_matrices_between_them(name):
    """Times the ranks, matrices that are divided give the whole; what is copied comes on top."""
    shape = ModelShape.of(name)
    ranks = splits(shape)[1]
    shard = tensor_shard(shape, ranks)
    whole, part = shape.parameters_by_part, shard.parameters_by_part
    assert whole["experts"] <= ranks * part["experts"] < whole["experts"] * 1.01 + 1
    assert whole["embedding"] == ranks * part["embedding"]
    assert whole["norms"] == part["norms"]
    assert whole["attention"] <= ranks * part["attention"] < whole["attention"] * 1.2


def test_k_v_is_divided_between_ranks_but_not_below_one_head():
    shape = ModelShape.of("Llama-3-70B")
    per_token = [tensor_shard(shape, ranks).kv_bytes_per_token() for ranks in (1, 2, 8, 16)]
    assert per_token == [327_680, 163_840, 40_960, 40_960]
    latent = ModelShape.of("DeepSeek-V3")
    assert tensor_shard(latent, 8).kv_bytes_per_token() == latent.kv_bytes_per_token(), "every rank keeps the latent"


def test_uneven_heads_go_to_the_fullest_rank():
    shard = tensor_shard(ModelShape.of("SmolLM2-135M"), 2)
    assert (shard.layers[0].attention.num_heads, shard.layers[0].attention.num_kv_heads) == (6, 2)


@pytest.mark.parametrize("stages", [2, 3, 7])
def test_stages_hold_the_whole_model_between_them(stages):
    for name in ("Llama-3-8B", "SmolLM2-135M"):
        shape = ModelShape.of(name)
        parts = [pipeline_shard(shape, stages, stage) for stage in range(stages)]
        copied = shape.vocab_size * shape.hidden_size if shape.tied else 0
        assert sum(part.num_parameters for part in parts) == shape.num_parameters + copied
        assert sum(part.kv_bytes_per_token() for part in parts) == shape.kv_bytes_per_token()


def test_experts_are_divided_and_the_rest_is_copied():
    shape = ModelShape.of("Mixtral-8x7B")
    shard = expert_shard(shape, 4)
    whole, part = shape.parameters_by_part, shard.parameters_by_part
    assert whole["experts"] == 4 * part["experts"]
    assert {k: v for k, v in whole.items() if k != "experts"} == {k: v for k, v in part.items() if k != "experts"}


def test_fewest_devices_are_found():
    assert devices_needed("Llama-3-70B", "h100").num_devices == 4
    assert devices_needed("Llama-3-70B", "h100", weights="int4").num_devices == 1
    assert devices_needed("Llama-3-70B", "h100", requests=200).num_devices > 4
    with pytest.raises(InvalidParameter, match="does not fit"):
        devices_needed("SmolLM2-135M", with_memory("rtx-4090", 1e6))


def test_even_splits():
    assert splits(ModelShape.of("SmolLM2-135M")) == [1, 3, 9]
    assert splits(ModelShape.of("Llama-3-70B")) == [1, 2, 4, 8, 16, 32, 64]


def test_runs_are_as_equal_as_they_can_be():
    assert [len(run) for run in runs(10, 4)] == [3, 3, 2, 2]
    assert [i for run in runs(10, 4) for i in run] == list(range(10))


def test_a_grid_has_a_plan_for_each_pair():
    grid = what_fits("Llama-3-8B", "h100", [1000, 2000], ["bf16", "int4"])
    assert [[plan.context for plan in row] for row in grid] == [[1000, 2000]] * 2
    assert grid[0][0].num_requests > grid[0][1].num_requests < grid[1][1].num_requests


def test_a_plan_is_json():
    told = json.loads(json.dumps(plan_memory("Mixtral-8x7B", "h200").to_dict()))
    assert told["computed"] is True
    assert told["bytes"]["weights"] == 93_405_585_408


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"context": 0}, "context"),
        ({"num_devices": 0}, "num_devices"),
        ({"num_devices": 12}, "heads"),
        ({"reserve": 1}, "reserve"),
        ({"reserve": -0.1}, "reserve"),
        ({"step_tokens": -1}, "step_tokens"),
        ({"weights": "int5"}, "int4"),
        ({"weights": "int4-g0"}, "int4"),
        ({"kv": "nvfp4"}, "number format"),
        ({"layout": "compressed"}, "latent"),
        ({"scope": "some"}, "layers"),
    ],
)
def test_nonsense_is_refused_by_name(settings, word):
    with pytest.raises(InvalidParameter, match=word):
        plan_memory("Llama-3-8B", "h100", **settings).to_dict()


def test_unknown_models_and_devices_are_refused_by_name():
    with pytest.raises(UnknownModel, match="Llama-3-8B"):
        plan_memory("nothing", "h100")
    with pytest.raises(InvalidParameter, match="h100"):
        plan_memory("Llama-3-8B", "h1000")
    with pytest.raises(InvalidParameter, match="no experts"):
        expert_shard(ModelShape.of("Llama-3-8B"), 2)
    with pytest.raises(InvalidParameter, match="stages"):
        pipeline_shard(ModelShape.of("Llama-3-8B"), 33, 0)
