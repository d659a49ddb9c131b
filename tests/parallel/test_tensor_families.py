"""Tensor parallel over threads: tiny random models of several families give the logits of the whole model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from rank_threads import rank_of, run_ranks
from tiny_models import COMMON, FAMILIES, VOCABULARY, as_loaded, family, plain_logprobs, random_model

from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.parallel.sent_plan import SentPlan, SentRow
from llmlab.parallel.share import check
from llmlab.parallel.tensor import cuts_of, part_of
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import tensor_parallel

DIVIDED = ("llama", "llama-with-biases", "qwen2-sliding", "qwen3", "mistral-sliding", "gemma2", "gemma3_text")
REFUSED = ("phi3", "olmo2", "gpt2", "gpt_oss", "mixtral")
PROMPT = [(31 * i + 5) % VOCABULARY for i in range(23)]
BLOCKS = (9, 3, 27, 1, 14, 30)


def chunks() -> list[SentPlan]:
    """The prompt in a chunk, a chunk and a single token, with logits everywhere."""
    cuts = (0, 13, 22, 23)
    return [
        SentPlan(step, [SentRow(a, tuple(PROMPT[a:b]), BLOCKS, b - a)]) for step, (a, b) in enumerate(pairwise(cuts))
    ]


def divided_logits(folder, model, size: int, optimize: bool = True):
    """Log-probabilities of the divided model by rank, and every rank's share."""

    def body(comm):
        rank = rank_of(as_loaded(model), comm, optimize=optimize)
        return torch.cat([rank.step(plan, True) for plan in chunks()]).log_softmax(-1), rank

    return zip(*run_ranks(folder, size, "tensor", body), strict=True)


@pytest.mark.parametrize("name", DIVIDED)
def test_a_divided_model_gives_the_whole_model_s_logits_in_every_rank(tmp_path, name):
    model = family(name)
    expected = plain_logprobs(model, PROMPT)
    logits, _ = divided_logits(tmp_path, model, 2)
    for found in logits:
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_parts_need_not_be_equal(tmp_path):
    """Three key/value heads, an MLP and a vocabulary that two does not divide."""
    odd = {"num_attention_heads": 9, "num_key_value_heads": 3, "intermediate_size": 47}
    model = random_model("qwen3", **COMMON | odd)
    logits, ranks = divided_logits(tmp_path, model, 2, optimize=False)
    torch.testing.assert_close(logits[1], plain_logprobs(model, PROMPT), atol=1e-4, rtol=1e-4)
    assert [rank.pool.shapes[0].num_kv_heads for rank in ranks] == [2, 1]
    layer = ranks[1].runner.inner.loaded_model.model.layers[0]
    assert (layer.self_attn.q_proj.out_features, layer.mlp.up_proj.out_features) == (3 * 8, 23)


def test_every_rank_keeps_its_share_of_weights_and_cache_only(tmp_path):
    model = family("llama")
    _, ranks = divided_logits(tmp_path, model, 2)
    whole = sum(p.numel() for p in model.parameters())
    replicated = sum(p.numel() for name, p in model.named_parameters() if "norm" in name or "embed" in name)
    vocabulary = [len(part_of(VOCABULARY, i, 2)) * 32 for i in range(2)]
    head = VOCABULARY * 32
    expected = [(whole - replicated - head) // 2 + replicated + rows for rows in vocabulary]
    assert [rank.num_parameters for rank in ranks] == expected
    assert sum(rank.pool.nbytes for rank in ranks) == 2 * 2 * 2 * 8 * 4 * 32 * 4  # layers, k and v, heads, dim, bytes


def test_two_sums_a_layer_and_one_gather_a_step_are_counted_and_are_those_of_the_planner(tmp_path):
    model = family("llama")
    _, ranks = divided_logits(tmp_path, model, 2)
    shape = ModelShape.of(model.config)
    tokens = {0: 13, 1: 9, 2: 1}
    for rank in ranks:
        events = [e for e in rank.comm.take_events() if hasattr(e, "kind")]
        for step, count in tokens.items():
            found = [(e.kind, e.layer, e.place, e.nbytes) for e in events if e.step == step]
            sums = [("all_reduce", i, place, count * 32 * 4) for i in range(2) for place in ("attention", "mlp")]
            assert found == [*sums, ("all_gather", -1, "head", count * 49 * 4)]
            planned = tensor_parallel(shape, count, 2, "fp32", num_logits=count)
            assert (len(found), sum(nbytes for *_, nbytes in found)) == (planned.num_messages, planned.nbytes)
            assert all(e.group_size == 2 and e.rank == rank.comm.rank and e.t_ns <= e.end_ns for e in events)


@pytest.mark.parametrize("name", REFUSED)
def test_families_whose_plan_is_another_are_refused_by_name(name):
    with pytest.raises(UnsupportedModel, match=FAMILIES[name][0]):
        check("tensor", family(name), 2)


def test_more_ranks_than_key_value_heads_are_refused_with_what_would_work():
    with pytest.raises(InvalidParameter, match=r"2 key/value heads.*use 2 to 2"):
        check("tensor", family("llama"), 3)
    one = random_model("llama", **COMMON | {"num_key_value_heads": 1})
    with pytest.raises(InvalidParameter, match=r"one key/value head.*pipeline_parallel"):
        check("tensor", one, 2)


def test_the_plan_names_every_matrix_of_every_layer():
    cuts = cuts_of(family("qwen3"))
    assert [(c.layer, c.place, c.name, c.style) for c in cuts[:7]] == [
        (0, "attention", "q_proj", "colwise"),
        (0, "attention", "k_proj", "colwise"),
        (0, "attention", "v_proj", "colwise"),
        (0, "attention", "o_proj", "rowwise"),
        (0, "mlp", "gate_proj", "colwise"),
        (0, "mlp", "up_proj", "colwise"),
        (0, "mlp", "down_proj", "rowwise"),
    ]
    assert len(cuts) == 14


@pytest.mark.parametrize(("total", "size"), [(9, 2), (3, 3), (30, 4), (97, 5)])
def test_parts_cover_everything_once_and_differ_by_one_at_most(total, size):
    parts = [part_of(total, rank, size) for rank in range(size)]
    assert [i for part in parts for i in part] == list(range(total))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
