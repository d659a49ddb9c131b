"""Pipeline parallel over threads: stages of tiny random models together give the logits of the whole model."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from rank_threads import rank_of, run_ranks
from tiny_models import COMMON, FAMILIES, VOCABULARY, as_loaded, plain_logprobs, random_model

from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.parallel.sent_plan import SentPlan, SentRow
from llmlab.parallel.share import check
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import pipeline_parallel_bytes

NAMES = ("llama", "qwen2-sliding", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3", "olmo2", "mixtral")
PROMPTS = ([(31 * i + 5) % VOCABULARY for i in range(23)], [(17 * i + 3) % VOCABULARY for i in range(9)])
BLOCKS = ((9, 3, 27, 1, 14, 30), (2, 5, 7))


def deep(name: str, layers: int = 5):
    """A model of a family with an odd number of layers."""
    kind, config = FAMILIES[name]
    return random_model(kind, **config | {"num_hidden_layers": layers})


def steps() -> list[SentPlan]:
    """Two prompts in chunks, then a token of each, with logits everywhere."""
    bounds = ((0, 13, 22, 23), (0, 4, 8, 9))
    rows = [
        [SentRow(a, tuple(prompt[a:b]), blocks, b - a) for a, b in pairwise(cuts)]
        for prompt, blocks, cuts in zip(PROMPTS, BLOCKS, bounds, strict=True)
    ]
    return [SentPlan(step, list(pair)) for step, pair in enumerate(zip(*rows, strict=True))]


def piped(folder, model, size: int, count: int, optimize: bool = True) -> list:
    """Log-probabilities of both prompts as rank 0 has them, and the ranks."""

    def body(comm):
        rank = rank_of(as_loaded(model), comm, optimize=optimize, micro_batches=count)
        return [rank.step(plan, True) for plan in steps()], rank

    results = run_ranks(folder, size, "pipeline", body)
    (logits, _), ranks = results[0], [rank for _, rank in results]
    assert all(part is None for given, _ in results[1:] for part in given)
    both = [part.split([row.num_tokens for row in plan.rows]) for part, plan in zip(logits, steps(), strict=True)]
    return [torch.cat(parts).log_softmax(-1) for parts in zip(*both, strict=True)], ranks


@pytest.mark.parametrize("name", NAMES)
def test_stages_give_the_whole_model_s_logits(tmp_path, name):
    model = deep(name)
    logits, _ = piped(tmp_path, model, 2, 2)
    for found, prompt in zip(logits, PROMPTS, strict=True):
        torch.testing.assert_close(found, plain_logprobs(model, prompt), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("count", [1, 3, 7])
def test_any_number_of_micro_batches_gives_the_same(tmp_path, count):
    model = deep("llama")
    logits, ranks = piped(tmp_path, model, 3, count)
    torch.testing.assert_close(logits[0], plain_logprobs(model, PROMPTS[0]), atol=1e-4, rtol=1e-4)
    for rank in ranks:
        work = [e for e in rank.comm.events if getattr(e, "name", "") == "forward"]
        for step, plan in enumerate(steps()):
            found = [e for e in work if e.step == step]
            assert [e.micro_batch for e in found] == list(range(min(count, plan.num_tokens)))
            assert sum(e.num_tokens for e in found) == plan.num_tokens


def test_a_stage_keeps_its_layers_their_cache_and_nothing_else(tmp_path):
    model = deep("llama")
    _, ranks = piped(tmp_path, model, 3, 1, optimize=False)
    assert [(rank.share.first_layer, rank.share.last_layer) for rank in ranks] == [(0, 1), (2, 3), (4, 4)]
    layer = sum(p.numel() for p in model.model.layers[0].parameters())
    embedding, norm = VOCABULARY * 32, 32
    stub = 32  # one row stands in for the embedding
    expected = [embedding + 2 * layer, stub + 2 * layer, stub + layer + norm + embedding]
    assert [rank.num_parameters for rank in ranks] == expected
    block = 2 * 2 * 4 * 8 * 4  # keys and values, heads, tokens, dim, bytes
    assert [rank.pool.nbytes for rank in ranks] == [32 * layers * block for layers in (2, 2, 1)]


def test_messages_are_counted_once_where_they_leave_and_once_where_they_arrive(tmp_path):
    model = deep("llama")
    _, ranks = piped(tmp_path, model, 3, 2)
    planned = pipeline_parallel_bytes(ModelShape.of(model.config), 17, 3, "fp32")
    events = [e for rank in ranks for e in rank.comm.events if hasattr(e, "kind") and e.step == 0]
    tokens, logits = 17, 17
    for kind in ("send", "receive"):
        found = [e for e in events if e.kind == kind]
        hidden = sum(e.nbytes for e in found if e.place == "stage")
        assert hidden == 2 * tokens * 32 * 4 == planned  # two boundaries
        assert sum(e.nbytes for e in found if e.place == "head") == logits * VOCABULARY * 4
    boundaries = {(e.rank, e.kind, e.layer) for e in events if e.place == "stage"}
    assert boundaries == {(0, "send", 1), (1, "receive", 1), (1, "send", 3), (2, "receive", 3)}


def test_a_step_without_logits_sends_none_back(tmp_path):
    plan = SentPlan(0, [SentRow(0, (1, 2, 3), (4,), 0)])

    def body(comm):
        rank = rank_of(as_loaded(deep("llama")), comm, micro_batches=2)
        return rank.step(plan, True), [e.place for e in rank.comm.events if hasattr(e, "kind")]

    (logits, first), (nothing, last) = run_ranks(tmp_path, 2, "pipeline", body)
    assert (tuple(logits.shape), nothing) == ((0, VOCABULARY), None)
    assert first == last == ["stage", "stage"]


def test_more_stages_than_layers_and_families_without_a_plan_are_refused_by_name():
    with pytest.raises(InvalidParameter, match="2 layers"):
        check("pipeline", random_model("llama", **COMMON), 3)
    kind, config = FAMILIES["gpt2"]
    with pytest.raises(UnsupportedModel, match=r"gpt2.*no plan"):
        check("pipeline", random_model(kind, **config), 2)
