"""The default model over processes: the same tokens as in one process, with everything the engine does switched on."""

from __future__ import annotations

import os
import signal
from contextlib import contextmanager

import psutil
import pytest
import torch

import llmlab
from llmlab import Ablate, Capture
from llmlab.engine.build import check_plans
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.errors import EngineStopped, InvalidParameter, RankFailed
from llmlab.trace.bubble import bubbles
from llmlab.trace.recorder import Recorder

pytestmark = pytest.mark.model

SMALL = {"dtype": "float32", "num_blocks": 6, "max_num_batched_tokens": 24, "max_num_seqs": 4, "background": False}
SHARED = "You are a helpful assistant who answers every question in one short sentence, and in English only. "
REFRAIN = "one two three four one two three four one two three four one two"
QUESTIONS = ("Why is the sky blue?", "Name the capital of France.", "What is a cache?", "How do birds fly?")
TOKENS = 10


def served(lab) -> dict:
    """Several requests that share a prefix in a pool too small for all of them: what came out, and how."""
    lab.ask(SHARED, raw=True, max_tokens=1)
    runs = [lab.submit(SHARED + q, raw=True, max_tokens=TOKENS, ignore_eos=True) for q in QUESTIONS]
    runs.append(lab.submit("One sampled line", seed=5, temperature=0.8, max_tokens=TOKENS, ignore_eos=True))
    for run in runs:
        run.wait()
    return {"tokens": [run.token_ids for run in runs], "facts": facts(lab)}


def facts(lab) -> list[tuple]:
    """Cached, preempted and recomputed tokens of every request: how the engine served them."""
    table = lab.trace.requests
    return list(zip(table.num_cached_tokens, table.num_preemptions, table.num_preempted_tokens, strict=True))


@contextmanager
def unrecorded(runner):
    """For steps that are not the lab's own: a trace's steps have numbers of one engine."""
    recorder = getattr(runner, "recorder", None)
    runner.recorder = None
    yield
    runner.recorder = recorder


def drafted(runner, lab) -> list[int]:
    """Tokens of a run with n-gram speculation, on a second engine over the same runner."""
    speculation = with_proposer(Speculation("ngram", k=4, adaptive=False), runner)
    engine = Engine(runner, lab.tokenizer, config=SchedulerConfig(48, 4), recorder=Recorder(), speculation=speculation)
    with unrecorded(runner):
        run = engine.submit(lab.tokenizer.encode(REFRAIN), SamplingParams(max_tokens=12, ignore_eos=True)).wait()
    assert engine.trace.drafts.num_accepted.sum() > 0
    return run.token_ids


@torch.inference_mode()
def logits_of(lab) -> torch.Tensor:
    runner = lab.engine.runner
    with unrecorded(runner):
        return torch.cat([runner.forward(runner.build(plan)) for plan in check_plans(lab.loaded.model, 1)])


@pytest.fixture(scope="module")
def whole() -> dict:
    """What one process answers."""
    with llmlab.open(**SMALL) as lab:
        return served(lab) | {"drafted": drafted(lab.engine.runner, lab), "logits": logits_of(lab)}


@pytest.fixture(scope="module")
def tensor(whole):
    """Three processes, each with one key/value head of every layer."""
    with llmlab.open(tensor_parallel=3, **SMALL) as lab:
        pids = lab.engine.runner.group.pids
        yield lab
    assert not any(map(psutil.pid_exists, pids))


@pytest.fixture(scope="module")
def pipeline(whole):
    """Two processes with 15 layers each; a test may end it."""
    with llmlab.open(pipeline_parallel=2, micro_batches=3, **SMALL) as lab:
        yield lab


@pytest.fixture(params=["tensor", "pipeline"])
def divided(request):
    return request.getfixturevalue(request.param)


def test_tokens_are_those_of_one_process_with_hits_chunks_preemptions_and_seeds(divided, whole):
    found = served(divided)
    assert found == {name: whole[name] for name in found}
    cached, preemptions, _ = zip(*found["facts"], strict=True)
    assert max(cached) > 0
    assert sum(preemptions) > 0
    assert divided.trace.check() == []
    assert any(row.is_prefill and not row.sampled for step in divided.trace.index.steps for row in step.rows)


def test_logits_are_those_of_one_process(divided, whole):
    error = (logits_of(divided) - whole["logits"]).abs().max() / whole["logits"].abs().max()
    assert error < 1e-4


def test_drafts_are_verified_by_all_ranks_together(divided, whole):
    assert drafted(divided.engine.runner, divided) == whole["drafted"]


def test_insides_that_no_process_has_are_refused_by_name(divided):
    for looked in ({"capture": Capture(attention=True)}, {"intervene": Ablate(layer=0, head=0)}):
        with pytest.raises(InvalidParameter, match=r"divided.*open it undivided"):
            divided.submit("Hi", max_tokens=1, **looked)
    chosen = divided.ask("Hi", max_tokens=2, capture=Capture(distribution=4))
    assert chosen.captured is not None


def test_the_trace_says_how_the_model_is_divided_and_what_the_whole_cache_takes(divided, whole):
    info = divided.engine.recorder.info
    assert info.split in ("tensor 3", "pipeline 2, 3 micro-batches")
    assert (info.num_layers, info.num_kv_heads, info.kv_bytes_per_token) == (30, 3, 30 * 2 * 3 * 64 * 4)


def test_every_layer_of_every_step_has_its_two_sums_of_the_right_size_in_every_rank(tensor):
    trace = tensor.trace
    tokens = {step.step: sum(row.num_tokens for row in step.rows) for step in trace.index.steps}
    sums = trace.collectives.query("kind == 'all_reduce'")
    assert set(sums.step) == set(tokens)
    assert sums.groupby(["step", "rank"]).size().unique().tolist() == [2 * 30]
    assert sums.groupby(["step", "layer", "place"]).size().unique().tolist() == [3]
    assert (sums.nbytes == sums.step.map(tokens) * 576 * 4).all()


def test_bytes_of_a_stage_are_hidden_states_and_bubbles_are_the_formula_s(pipeline):
    trace = pipeline.trace
    tokens = {step.step: sum(row.num_tokens for row in step.rows) for step in trace.index.steps}
    sent = trace.collectives.query("kind == 'send' and place == 'stage'").groupby("step").nbytes.sum()
    assert sent.to_dict() == {step: count * 576 * 4 for step, count in tokens.items()}
    found = bubbles(trace)
    assert (found.micro_batches == found.step.map(tokens).clip(upper=3)).all()
    assert (found.idle_share == found.expected_share).all()


def test_times_of_all_ranks_lie_within_their_step(divided):
    trace = divided.trace
    steps = {step.step: step for step in trace.index.steps}
    work = [e for e in trace.index.rank_work if e.name == "forward"]
    assert {e.rank for e in work} == set(range(divided.engine.runner.group.size))
    assert all(steps[e.step].forward_ns <= e.t_ns <= e.end_ns <= steps[e.step].sample_ns for e in work)


def test_a_rank_that_dies_ends_open_requests_with_its_name_and_leaves_no_process(pipeline):
    group = pipeline.engine.runner.group
    run = pipeline.submit("Tell a long story.", max_tokens=50, ignore_eos=True)
    waiting = pipeline.submit("Tell another one.", max_tokens=50, ignore_eos=True)
    pipeline.engine.step()
    os.kill(group.pids[0], signal.SIGKILL)
    for ended in (run, waiting):
        with pytest.raises(RankFailed, match=r"rank 1 of 2 \(pipeline\).*ended by signal 9"):
            ended.wait()
    assert not any(map(psutil.pid_exists, group.pids))
    with pytest.raises(EngineStopped):
        pipeline.submit("Hi", max_tokens=1)
    assert pipeline.trace.check() == []
