"""The engine with a trained head: the same tokens as without, through everything that moves a request about."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from tiny_models import COMMON, as_loaded, family, random_model

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.head import TrainedHead
from llmlab.engine.speculative.head_files import WEIGHTS, load_head, output_rows, save_head, weights_sha256
from llmlab.engine.speculative.head_model import DraftHead, HeadConfig
from llmlab.errors import HeadMismatch
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.models.fuse import pack_linears
from llmlab.training.corpus import Sequence
from llmlab.training.features import look
from llmlab.training.loop import Schedule, train
from llmlab.training.objective import Objective

PROMPTS = [[(7 * i + 3 * j) % 97 for j in range(5 + 3 * i)] for i in range(5)]
NUM_TOKENS = 40
CONTINUED = 20


@pytest.fixture(scope="module")
def model():
    return family("llama")


@pytest.fixture(scope="module")
def plain(model) -> list[list[int]]:
    """What the model answers without speculation."""
    engine = make_engine(model, None)
    return answers(engine)


@pytest.fixture(scope="module")
def head(model, plain):
    """A head that has seen the answers to some of the prompts, so it is right often and not always."""
    loaded = as_loaded(model)
    texts = [Sequence((*prompt, *answer), first=len(prompt) - 1) for prompt, answer in zip(PROMPTS, plain, strict=True)]
    # one of them also as the prompt-like beginning of itself, so that the head learns to start late in it
    texts[3] = replace(texts[3], first=len(PROMPTS[3]) + CONTINUED - 1)
    seen = look(loaded, [*texts[:4], *[texts[3]] * 3])
    seen = [replace(one, features=one.features.float()) for one in seen]
    torch.manual_seed(0)
    trained = DraftHead(HeadConfig.for_target(model.config))
    objective = Objective(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    with torch.enable_grad():
        train(
            trained,
            objective,
            seen,
            Schedule(epochs=50, batch_tokens=64, matrix_rate=2e-2, norm_rate=1e-2, late_starts=0.5),
            seed=0,
        )
    return trained


def make_engine(model, head: DraftHead | None, **settings) -> Engine:
    sizes = {"block_size": 4, "num_blocks": settings.pop("num_blocks", 200)}
    config = SchedulerConfig(settings.pop("budget", 64), 8)
    proposer = None
    if head is not None:
        embedding = model.get_input_embeddings().weight
        copy = DraftHead(head.config)
        copy.load_state_dict(head.state_dict())
        drafted = torch.arange(0, 97)
        proposer = TrainedHead(copy, embedding, output_rows(model, drafted), drafted)
    return Engine(
        build_runner(as_loaded(model), **sizes),
        ByteTokenizer(),
        config=config,
        speculation=proposer and Speculation(proposer, adaptive=False),
        **settings,
    )


def answers(engine: Engine, prompts=PROMPTS, **params) -> list[list[int]]:
    params = SamplingParams(**{"max_tokens": NUM_TOKENS, "ignore_eos": True, **params})
    runs = [engine.submit(prompt, params) for prompt in prompts]
    while engine.step():
        engine.scheduler.check_integrity()
    return [output.token_ids for run in runs for output in run.outputs]


def mean_length(engine: Engine) -> float:
    """Output tokens per verified draft."""
    return float(engine.trace.drafts.num_tokens.mean())


def test_greedy_tokens_are_those_of_the_target(model, plain, head):
    engine = make_engine(model, head)
    assert answers(engine) == plain
    assert engine.speculator.error is None
    assert mean_length(engine) > 1.5
    assert engine.trace.check() == []
    assert engine.speculator.proposer._contexts == {}


def test_through_chunks_and_preemptions(model, plain, head):
    engine = make_engine(model, head, num_blocks=18, budget=16)
    assert answers(engine) == plain
    assert engine.trace.requests.num_preemptions.sum() > 0
    assert engine.speculator.error is None
    assert mean_length(engine) > 1.3


def test_samples_of_one_prompt_start_from_its_context(model, plain, head):
    engine = make_engine(model, head)
    found = answers(engine, PROMPTS[:1], n=3, temperature=0.0)
    assert found == [plain[0]] * 3
    by_request = engine.trace.drafts.groupby("request_id").num_tokens.mean()
    assert len(by_request) == 3
    assert by_request.nunique() == 1


def test_a_prefix_hit_costs_little_acceptance(model, plain, head):
    engine = make_engine(model, head)
    prompt = PROMPTS[3] + plain[3][:CONTINUED]
    first = answers(engine, [prompt], max_tokens=NUM_TOKENS - CONTINUED)
    before = mean_length(engine)
    again = answers(engine, [prompt], max_tokens=NUM_TOKENS - CONTINUED)
    assert again == first == [plain[3][CONTINUED:]]
    runs = engine.trace.drafts.groupby("request_id").num_tokens.mean().tolist()
    assert engine.trace.requests.num_cached_tokens.max() > 20
    assert runs[0] == before
    assert runs[1] >= 0.6 * runs[0]


def test_aborting_between_rounds_forgets_the_request(model, head):
    engine = make_engine(model, head)
    run = engine.submit(PROMPTS[0], SamplingParams(max_tokens=NUM_TOKENS))
    for _ in range(4):
        engine.step()
    assert engine.speculator.proposer._contexts
    run.abort()
    engine.step()
    assert engine.speculator.proposer._contexts == {}


# -- files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def target(model, tmp_path):
    """The model as loaded from a folder."""
    folder = tmp_path / "tiny"
    model.save_pretrained(folder)
    return replace(as_loaded(model), path=str(folder))


@pytest.fixture
def saved(target, head, tmp_path):
    folder = tmp_path / "head"
    identity = {"name": target.name, "weights_sha256": weights_sha256(target.path)}
    save_head(folder, head, torch.arange(5, 60), {"target": identity})
    return folder


def test_a_saved_head_is_loaded_as_it_was(target, head, saved):
    found, drafted = load_head(target, saved)
    assert drafted.tolist() == list(range(5, 60))
    assert found.config == head.config
    for name, weight in head.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], weight, atol=1e-6, rtol=2**-8)
    assert TrainedHead.load(target, saved).window == head.config.window


def test_the_folder_of_a_head_can_be_named(target, saved):
    runner = SimpleNamespace(model=target.name)
    assert isinstance(with_proposer(Speculation("head", head=saved), runner, target).proposer, TrainedHead)
    with pytest.raises(HeadMismatch):
        with_proposer(Speculation("head"), runner, target)


def test_a_head_is_never_used_with_another_model(target, saved, tmp_path):
    with pytest.raises(HeadMismatch, match="trained for 'tiny', not for 'other'"):
        load_head(replace(target, name="other"), saved)
    random_model("llama", **COMMON | {"initializer_range": 0.2}).save_pretrained(tmp_path / "changed")
    with pytest.raises(HeadMismatch, match="other weights of 'tiny'"):
        load_head(replace(target, path=str(tmp_path / "changed")), saved)
    with pytest.raises(HeadMismatch, match="no head can be matched"):
        load_head(replace(target, path="hub/name"), saved)


def test_a_missing_or_damaged_head_is_named(target, saved):
    with pytest.raises(HeadMismatch, match=r"no trained head .* train-head"):
        load_head(target)
    weights = saved / WEIGHTS
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(HeadMismatch, match="damaged"):
        load_head(target, saved)
    (saved / "head.json").write_text("[]")
    with pytest.raises(HeadMismatch, match="does not describe a head"):
        load_head(target, saved)


def test_output_rows_of_a_packed_matrix(model):
    loaded = as_loaded(model)
    ids = torch.tensor([3, 0, 96])
    expected = model.get_output_embeddings().weight[ids]
    torch.testing.assert_close(output_rows(loaded.model, ids), expected)
    wide = loaded.model.to(torch.bfloat16)
    if pack_linears(wide) == 0:
        pytest.skip("this build of torch has no packed linear layers")
    torch.testing.assert_close(output_rows(wide, ids).float(), expected, atol=1e-2, rtol=1e-2)


def test_the_same_tensors_in_another_order_are_the_same_weights(target, tmp_path):
    from safetensors.torch import load_file, save_file

    tensors = load_file(f"{target.path}/model.safetensors")
    for name, order, remarks in (("a", sorted(tensors), {"x": "1"}), ("b", sorted(tensors, reverse=True), {"y": "2"})):
        (tmp_path / name).mkdir()
        save_file({key: tensors[key] for key in order}, tmp_path / name / "model.safetensors", metadata=remarks)
    (tmp_path / "c").mkdir()
    half = len(tensors) // 2
    for part, names in (("1", sorted(tensors)[:half]), ("2", sorted(tensors)[half:])):
        save_file({key: tensors[key] for key in names}, tmp_path / "c" / f"model-{part}.safetensors")
    assert len({weights_sha256(tmp_path / name) for name in "abc"} | {weights_sha256(target.path)}) == 1
    tensors[min(tensors)] = tensors[min(tensors)] + 1
    save_file(tensors, tmp_path / "a" / "model.safetensors")
    assert weights_sha256(tmp_path / "a") != weights_sha256(target.path)
