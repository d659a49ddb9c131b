"""Expert parallel: the same logits and tokens, each token sent only to where its experts are, every byte counted."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from rank_threads import rank_of, run_ranks
from tiny_models import COMMON, EXPERTS, VOCABULARY, as_loaded, family, plain_logprobs, random_model

import llmlab
from llmlab import views
from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.parallel.experts import experts_of
from llmlab.parallel.sent_plan import SentPlan, SentRow
from llmlab.parallel.share import check
from llmlab.parallel.tensor import part_of
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import expert_parallel, pairs_away
from llmlab.probes import Capture
from llmlab.training.moe_model import MoeSize, random_moe, save_moe
from llmlab.views.scene import Rect, Text

QWEN = COMMON | {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 12, "sliding_window": None}
MODELS = {
    "mixtral": lambda: family("mixtral"),
    "gpt_oss": lambda: family("gpt_oss"),
    "qwen3_moe": lambda: random_model("qwen3_moe", **QWEN),
    "five experts": lambda: random_model("mixtral", **COMMON | EXPERTS | {"num_local_experts": 5}),
}
PROMPT = [(31 * i + 5) % VOCABULARY for i in range(23)]
BLOCKS = (9, 3, 27, 1, 14, 30)
CUTS = (0, 13, 22, 23)  # the prompt in a chunk, a chunk and a single token
WIDTH, FLOAT, LAYERS = 32, 4, 2


def divided(folder, model, size: int):
    """Log-probabilities of the divided model by rank, and every rank's share."""
    plans = [
        SentPlan(step, [SentRow(a, tuple(PROMPT[a:b]), BLOCKS, b - a)]) for step, (a, b) in enumerate(pairwise(CUTS))
    ]

    def body(comm):
        rank = rank_of(as_loaded(model), comm)
        return torch.cat([rank.step(plan, True) for plan in plans]).log_softmax(-1), rank

    return tuple(zip(*run_ranks(folder, size, "expert", body), strict=True))


def collectives(rank):
    return [e for e in rank.comm.take_events() if hasattr(e, "kind")]


def chosen_by(model, tokens: list[int]) -> list[torch.Tensor]:
    """The experts that each layer's router chooses, ``(tokens, top_k)``, asked without any of ours."""
    found: list[torch.Tensor] = []
    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]
    hooks = [r.register_forward_hook(lambda module, args, output: found.append(output[2])) for r in routers]
    with torch.inference_mode():
        model(input_ids=torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    return found


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_divided_model_gives_the_whole_model_s_logits_in_every_rank(tmp_path, name, size):
    model = MODELS[name]()
    logits, _ = divided(tmp_path, model, size)
    expected = plain_logprobs(model, PROMPT)
    for found in logits:
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_every_rank_keeps_its_experts_and_all_of_the_rest(tmp_path):
    model = MODELS["five experts"]()
    _, ranks = divided(tmp_path, model, 2)
    whole = sum(p.numel() for p in model.parameters())
    of_an_expert = LAYERS * 3 * WIDTH * 48
    assert [rank.num_parameters for rank in ranks] == [whole - 2 * of_an_expert, whole - 3 * of_an_expert]
    assert [rank.pool.shapes for rank in ranks] == [ranks[0].pool.shapes] * 2


def test_a_token_is_sent_to_its_experts_and_to_nobody_else(tmp_path):
    model = MODELS["mixtral"]()
    chosen = chosen_by(model, PROMPT)
    _, ranks = divided(tmp_path, model, 2)
    events = [e for rank in ranks for e in collectives(rank)]
    for step, (first, end) in enumerate(pairwise(CUTS)):
        for layer in range(LAYERS):
            pairs = pairs_away(chosen[layer][first:end].tolist(), 4, 2)
            sent = {
                place: sum(e.nbytes for e in events if (e.step, e.layer, e.place) == (step, layer, place))
                for place in ("dispatch", "combine")
            }
            assert sent == dict.fromkeys(("dispatch", "combine"), pairs * WIDTH * FLOAT)


def test_four_communications_a_layer_as_the_planner_says(tmp_path):
    model = MODELS["mixtral"]()
    _, ranks = divided(tmp_path, model, 2)
    shape = ModelShape.of(model.config)
    for rank in ranks:
        events = collectives(rank)
        for step, (first, end) in enumerate(pairwise(CUTS)):
            found = [(e.kind, e.layer, e.place) for e in events if e.step == step]
            layer = [
                ("all_to_all", "counts"),
                ("all_to_all", "dispatch"),
                ("all_to_all", "combine"),
                ("all_gather", "mlp"),
            ]
            assert found == [(kind, i, place) for i in range(LAYERS) for kind, place in layer]
            planned = expert_parallel(shape, end - first, 2, "fp32", replicated_attention=True)
            for place in ("counts", "mlp"):  # what does not depend on the router
                counted = sum(e.nbytes for e in events if e.step == step and e.place == place)
                assert counted == LAYERS * planned.at(place).nbytes


def test_the_rows_that_experts_compute_are_all_pairs(tmp_path):
    model = MODELS["mixtral"]()
    chosen = chosen_by(model, PROMPT)
    _, ranks = divided(tmp_path, model, 2)
    for rank in ranks:
        mine = part_of(4, rank.comm.rank, 2)
        rows = [e for e in rank.comm.take_events() if getattr(e, "name", "") == "experts"]
        for layer in range(LAYERS):
            expected = sum(int(expert) in mine for expert in chosen[layer].flatten())
            assert sum(e.num_tokens for e in rows if e.first_layer == layer) == expected


def test_a_rank_alone_communicates_nothing_and_computes_the_same(tmp_path):
    model = MODELS["mixtral"]()
    logits, ranks = divided(tmp_path, model, 1)
    torch.testing.assert_close(logits[0], plain_logprobs(model, PROMPT), atol=1e-4, rtol=1e-4)
    assert all(e.nbytes == 0 for e in collectives(ranks[0]) if e.kind == "all_to_all")


def test_models_without_experts_and_too_many_ranks_are_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"'llama'.*Mixtral"):
        check("expert", family("llama"), 2)
    with pytest.raises(InvalidParameter, match="more than the 4 experts"):
        check("expert", family("mixtral"), 5)
    assert [layer for layer, _ in experts_of(family("mixtral"))] == [0, 1]


# -- over processes -----------------------------------------------------------------------------------------

SIZE = MoeSize(layers=2, width=32, heads=2, kv_heads=1, experts=5, expert_width=16, context=256)
QUESTIONS = ["What is a router? " * 6, "What is a router? " * 4, "dispatch", "x"]
OPTIONS = {
    "device": "cpu",
    "dtype": "float32",
    "threads": 1,
    "num_blocks": 40,
    "max_num_batched_tokens": 48,
    "background": False,
}


def served(lab, **options):
    """Several requests together, the second with a beginning that is in the cache; their tokens."""
    first = lab.submit(QUESTIONS[0], raw=True, max_tokens=2, ignore_eos=True)
    first.wait()
    runs = [lab.submit(q, raw=True, max_tokens=24, ignore_eos=True, **options) for q in QUESTIONS]
    for run in runs:
        run.wait()
    return runs


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_moe(random_moe(SIZE, 3), tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="module")
def whole(folder):
    with llmlab.open(folder, **OPTIONS) as lab:
        yield lab, served(lab, capture=Capture(router=True))


@pytest.fixture(scope="module")
def split(folder):
    with llmlab.open(folder, **OPTIONS, expert_parallel=2) as lab:
        yield lab, served(lab)


def test_processes_give_the_tokens_of_one(whole, split):
    assert [run.token_ids for run in split[1]] == [run.token_ids for run in whole[1]]
    assert split[0].trace.check() == []


def test_serving_features_were_used(split):
    requests, schedule = split[0].trace.requests, split[0].trace.schedule
    assert requests.num_cached_tokens.max() >= 16
    assert (schedule.query("action == 'ran'").groupby("step").request_id.nunique() > 2).any()
    assert (schedule.query("action == 'ran' and is_prefill").groupby("request_id").step.nunique() > 1).any()


def test_both_processes_computed_their_experts_rows(split):
    ranks, steps = split[0].trace.ranks, split[0].trace.steps
    rows = ranks.query("name == 'experts'")
    assert set(rows["rank"]) == {0, 1}
    per_step = rows.groupby("step").num_tokens.sum()
    assert per_step.to_dict() == {s.step: s.num_tokens * 2 * SIZE.layers for s in steps.itertuples()}


def test_dispatched_and_combined_bytes_are_the_same_pairs(split):
    sent = split[0].trace.collectives.groupby(["step", "layer", "place"]).nbytes.sum().unstack()
    assert (sent["dispatch"] == sent["combine"]).all()
    assert (sent["dispatch"] % (SIZE.width * 4) == 0).all()
    assert split[0].engine.runner.split == "expert 2"


def test_the_lanes_show_all_layers_and_the_experts_part_of_the_work(split):
    view = views.rank_lanes(split[0].trace, first_step=3, last_step=3)
    assert "layers 0 to 1;" in view.text
    drawn = [mark for mark in view.scene.marks if isinstance(mark, Rect) and ": experts " in mark.tip]
    assert len(drawn) == 2 * SIZE.layers
    assert any(isinstance(mark, Text) and mark.text == "of that, its experts" for mark in view.scene.marks)
