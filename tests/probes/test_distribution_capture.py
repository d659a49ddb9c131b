"""How tokens were chosen is recorded as it happened, and recording it chooses no other token."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from looking import prompt
from mock_serving import mock_engine
from tiny_models import as_loaded, family, paged_engine

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.step_view import StepView
from llmlab.errors import CaptureTooLarge, InvalidParameter
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.probes import Capture, choices
from llmlab.trace import Trace
from llmlab.trace.events import DraftRound

LOOK = Capture(distribution=8)
FILTERED = SamplingParams(
    max_tokens=8, temperature=1.7, top_k=30, top_p=0.8, min_p=0.02, presence_penalty=1.0, seed=4, logprobs=2
)
PARAMS = {
    "greedy": SamplingParams(max_tokens=8, logprobs=2),
    "greedy, plain": SamplingParams(max_tokens=8),
    "greedy, biased": SamplingParams(max_tokens=8, logit_bias={7: 4.0}, repetition_penalty=1.3),
    "drawn": SamplingParams(max_tokens=8, temperature=1.0, seed=3),
    "filtered": FILTERED,
    "two samples": SamplingParams(max_tokens=8, temperature=0.8, seed=9, n=2),
}
REPEATING = [5, 6, 7, 8] * 5


def batch(params: SamplingParams, capture: Capture | None) -> tuple[list, Engine]:
    engine = paged_engine(family("llama"), budget=13)
    members = ((19, None), (23, capture), (9, None))
    runs = [engine.submit(prompt(length, length), params, capture=c) for length, c in members]
    engine.run_until_idle()
    return runs, engine


@pytest.mark.parametrize("name", PARAMS)
def test_tokens_and_logprobs_are_bit_identical_with_and_without(name):
    (without, _), (looked_at, engine) = (batch(PARAMS[name], capture) for capture in (None, LOOK))
    assert [outputs_of(run) for run in looked_at] == [outputs_of(run) for run in without]
    assert engine.trace.check() == []
    captured = looked_at[1].captured
    assert captured.stopped is None
    assert [choice.token_id for choice in captured.distribution.choices] == looked_at[1].outputs[0].token_ids


def outputs_of(run):
    return [(output.token_ids, output.logprobs, output.top_logprobs) for output in run.outputs]


def speculating(proposer: str, params: SamplingParams, capture: Capture | None, rule: str = "exact"):
    loaded = as_loaded(family("llama"))
    runner = build_runner(loaded, block_size=4, num_blocks=64)
    speculation = with_proposer(Speculation(proposer, adaptive=False, rule=rule), runner, loaded)
    engine = Engine(runner, ByteTokenizer(), config=SchedulerConfig(64, 8), speculation=speculation)
    run = engine.submit([1, *REPEATING], params, capture=capture)
    other = engine.submit([2, *REPEATING], params)
    engine.run_until_idle()
    rounds = [event for event in engine.trace.events if type(event) is DraftRound]
    return run, other, rounds, engine


def judged(rounds):
    return [(r.request_id, r.start, r.tokens, str(r.p), str(r.q), str(r.u), r.outcome, r.token_id) for r in rounds]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("proposer", ["ngram", "early-exit"])
def test_speculation_goes_on_and_its_p_is_the_final_stage(proposer, temperature):
    bias = {5: 9.0, 6: 9.0} if proposer == "ngram" else {}  # two tokens soon repeat what was said
    params = SamplingParams(max_tokens=20, temperature=temperature, top_k=40, seed=5, logit_bias=bias)
    plain, plain_other, plain_rounds, _ = speculating(proposer, params, None)
    run, other, rounds, engine = speculating(proposer, params, Capture(distribution=97))
    assert (run.token_ids, other.token_ids) == (plain.token_ids, plain_other.token_ids)
    assert judged(rounds) == judged(plain_rounds)
    own = [r for r in rounds if r.request_id == run.id]
    assert sum(r.num_accepted for r in own) > 0, "nothing was accepted, so nothing was tested"
    drawn_drafts = {q for r in own for q in r.q} != {1.0}
    assert drawn_drafts == (proposer == "early-exit" and temperature > 0)
    recorded = run.captured.distribution
    for r in own:
        for i, (token_id, p) in enumerate(zip(r.tokens, r.p, strict=True)):
            if (choice := recorded.at(r.start + i)) is not None:
                assert choice.prob[-1][choice.ids == token_id].tolist() == [np.float32(p)]
    assert [choice.token_id for choice in recorded.choices] == run.token_ids
    assert engine.trace.check() == []


def test_the_draw_is_left_out_where_a_draft_was_judged_by_another_number():
    params = SamplingParams(max_tokens=20, temperature=0.9, seed=5)
    run, _, rounds, _ = speculating("early-exit", params, LOOK, rule="own-sample-on-rejection")
    drafted = {r.start + i for r in rounds if r.request_id == run.id for i in range(len(r.tokens))}
    drawn = {c.position for c in run.captured.distribution.choices if not math.isnan(c.uniform)}
    assert drafted
    assert drawn == {c.position for c in run.captured.distribution.choices} - drafted


def test_drafts_beyond_the_end_of_the_output_are_not_recorded():
    params = SamplingParams(max_tokens=40)
    free, _, _, _ = speculating("ngram", params, None)
    stop = SamplingParams(max_tokens=40, stop_token_ids=(free.token_ids[9],))
    run, _, _, _ = speculating("ngram", stop, LOOK)
    choices_ = run.captured.distribution.choices
    assert [choice.position for choice in choices_] == [21 + i for i in range(len(run.token_ids))]


def expected_stages(logits: np.ndarray, params: SamplingParams, counts: dict[int, int]) -> dict[str, np.ndarray]:
    """The stages computed another way: sort the whole row, cut it, normalise."""
    adjusted = logits - params.presence_penalty * np.isin(np.arange(len(logits)), list(counts))
    order = np.lexsort((np.arange(len(logits)), -adjusted))
    warm = np.exp((adjusted - adjusted.max()) / params.temperature)
    keep = np.zeros(len(logits), bool)
    keep[order[: params.top_k]] = True
    top_k = normalised(np.where(keep, warm, 0))
    sizes = np.cumsum(top_k[order])
    keep[order[int(np.searchsorted(sizes, params.top_p)) + 1 :]] = False
    top_p = normalised(np.where(keep, warm, 0))
    min_p = normalised(np.where(keep & (warm >= params.min_p), warm, 0))
    raw, penalties = (normalised(np.exp(row)) for row in (logits, adjusted))
    stages = {"raw": raw, "penalties": penalties, "temperature": normalised(warm), "top-k": top_k}
    return stages | {"top-p": top_p, "min-p": min_p, "final": min_p}


def normalised(weights: np.ndarray) -> np.ndarray:
    return weights / weights.sum()


def test_every_stage_is_what_another_implementation_computes(monkeypatch):
    engine = paged_engine(family("llama"))
    seen, forward = [], engine.runner.forward
    monkeypatch.setattr(engine.runner, "forward", lambda batch: seen.append(forward(batch)) or seen[-1])
    run = engine.submit(prompt(), FILTERED, capture=Capture(distribution=97)).wait()
    for i, choice in enumerate(run.captured.distribution.choices):
        counts = dict.fromkeys(run.token_ids[:i], 1)
        expected = expected_stages(seen[i][-1].double().numpy(), FILTERED, counts)
        assert choice.stages == tuple(expected)
        for j, probs in enumerate(expected.values()):
            np.testing.assert_allclose(choice.prob[j], probs[choice.ids], atol=2e-6)
            assert choice.prob[j].sum() == pytest.approx(1, abs=1e-6)
            assert choice.entropy[j] == pytest.approx(-np.sum(probs[probs > 0] * np.log(probs[probs > 0])), abs=1e-5)
            assert choice.possible[j] == np.count_nonzero(probs)
            assert (choice.excluded[j] == (probs[choice.ids] == 0)).all()


def test_the_draw_falls_into_the_chosen_token():
    run = mock_engine().submit(prompt(), FILTERED, capture=LOOK).wait()
    for choice in run.captured.distribution.choices:
        low = choice.below[choice.chosen]
        assert low - 1e-6 <= choice.uniform <= low + choice.prob[-1][choice.chosen] + 1e-6


def test_candidates_are_the_likeliest_before_and_after_and_the_chosen_one():
    params = SamplingParams(max_tokens=1, temperature=1.0, seed=0, logit_bias={200: 50.0})
    run = mock_engine().submit(prompt(), params, capture=Capture(distribution=2)).wait()
    [choice] = run.captured.distribution.choices
    assert set(choice.ids) == {choice.ids[0], 0, 200}
    assert run.token_ids == [200]
    assert list(choice.rank) == [0, 1, 201 if choice.ids[0] > 200 else 200]
    assert choice.left_at(0) is None, "a small probability is not an excluded token"


class Only:
    """Allows a few tokens, and counts how often it was asked."""

    is_finished = False

    def __init__(self) -> None:
        self.asked = 0

    def mask(self, logits):
        self.asked += 1
        logits[[i for i in range(len(logits)) if i not in (65, 66, 67)]] = -torch.inf
        return logits

    def accept(self, token_id: int) -> None:
        assert token_id in (65, 66, 67)


def test_a_constraint_is_a_stage_and_is_asked_once_a_token():
    only, params = Only(), SamplingParams(max_tokens=4, temperature=1.0, seed=1)
    run = mock_engine().submit(prompt(), params, constraint=lambda: only, capture=LOOK).wait()
    assert only.asked == 4
    for choice in run.captured.distribution.choices:
        assert choice.stages == ("raw", "constraint", "final")
        assert list(choice.possible[1:]) == [3, 3]
        gone = [choice.left_at(i) for i, token in enumerate(choice.ids) if token not in (65, 66, 67)]
        assert gone == ["constraint"] * len(gone)


def test_a_token_that_would_end_too_early_is_excluded_by_the_bans():
    params = SamplingParams(max_tokens=3, min_tokens=2, temperature=1.0, seed=1)
    run = mock_engine().submit(prompt(), params, capture=LOOK).wait()
    possible = [dict(zip(c.stages, c.possible, strict=True)) for c in run.captured.distribution.choices]
    assert [(p["raw"], p["penalties"]) for p in possible] == [(258, 257), (258, 257), (258, 258)]


def test_only_the_sampler_of_its_own_request_is_looked_at(monkeypatch):
    engine = paged_engine(family("llama"))
    views, build = [], engine.runner.build
    monkeypatch.setattr(engine.runner, "build", lambda plan: views.extend(build(plan)) or views[-1:])
    runs = [engine.submit(prompt(5 + i), FILTERED, capture=LOOK if i else None) for i in range(2)]
    engine.step()
    watched = [engine.sequence(r).sample_input().watch is not None for r in engine.scheduler.running]
    engine.run_until_idle()
    assert watched == [False, True]
    assert all(type(batch.view) is StepView and batch.view.probe is None for batch in views)
    assert runs[0].captured is None or not runs[0].captured.kinds


def test_together_with_what_is_inside_the_model():
    engine = paged_engine(family("llama"))
    look = Capture(lens=True, distribution=4, positions=[-1])
    run = engine.submit(prompt(), SamplingParams(max_tokens=3), capture=look).wait()
    [choice] = run.captured.distribution.choices
    top = run.captured.lens.top.sel(layer=1, position=22)
    assert list(top.values[:4]) == list(choice.ids), "the last layer's lens is the raw distribution"
    assert engine.trace.check() == []


def test_of_a_preempted_request_every_choice_is_kept_once():
    engine = mock_engine(num_blocks=9)
    params = SamplingParams(max_tokens=14)
    others = [engine.submit(prompt(9, start), params) for start in (1, 2)]
    run = engine.submit(prompt(9), params, capture=LOOK)
    engine.run_until_idle()
    assert run.usage["preemptions"] > 0
    assert all(other.finished for other in others)
    assert [c.token_id for c in run.captured.distribution.choices] == run.token_ids
    assert engine.trace.check() == []


def test_saved_and_loaded_without_torch(tmp_path):
    engine = mock_engine()
    run = engine.submit(prompt(), FILTERED, capture=LOOK).wait()
    path = engine.trace.save(tmp_path / "a.trace.jsonl.gz", captures=True)
    loaded = Trace.load(path).captured(run.id).distribution.frame()
    assert loaded.equals(run.captured.distribution.frame())
    assert len(loaded) == sum(c.prob.size for c in run.captured.distribution.choices)
    code = (
        "import sys; from llmlab.trace import Trace; "
        f"print(len(Trace.load({str(path)!r}).captured().distribution.frame()), 'torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(loaded)), "False"]


def test_a_budget_is_refused_beforehand_or_ends_the_recording_within_a_token():
    engine = mock_engine()
    with pytest.raises(CaptureTooLarge, match="distribution"):
        engine.submit(prompt(), SamplingParams(max_tokens=50), capture=Capture(distribution=8, max_bytes=9_000))
    run = engine.submit(
        prompt(5),
        SamplingParams(max_tokens=None, stop_token_ids=(95,)),
        capture=Capture(distribution=8, max_bytes=1_500),
    ).wait()
    assert "max_bytes" in run.captured.stopped
    kept = run.captured.distribution.choices
    assert 0 < len(kept) < len(run.token_ids)
    assert [c.token_id for c in kept] == run.token_ids[: len(kept)]


def test_looking_that_fails_ends_only_the_looking(monkeypatch):
    def broken(choice):
        raise RuntimeError("no")

    monkeypatch.setattr(choices, "stages_of", broken)
    without, looked_at = (mock_engine().submit(prompt(), FILTERED, capture=c).wait() for c in (None, LOOK))
    assert looked_at.token_ids == without.token_ids
    assert looked_at.captured.stopped == "RuntimeError: no"
    assert looked_at.captured.distribution is None


@pytest.mark.parametrize("value", [-1, True, 2.5, "all"])
def test_a_number_of_candidates_that_is_none_is_refused(value):
    with pytest.raises(InvalidParameter, match="distribution"):
        Capture(distribution=value)


def test_positions_that_choose_no_token_are_refused():
    with pytest.raises(InvalidParameter, match="-1 chooses the first output token"):
        mock_engine().submit(prompt(), FILTERED, capture=Capture(distribution=4, positions=[0, 1]))


def test_events_that_claim_other_stages_are_not_read():
    engine = mock_engine()
    run = engine.submit(prompt(), FILTERED, capture=LOOK).wait()
    events = [e for e in engine.trace.events if getattr(e, "kind", "").startswith("distribution_")]
    wrong = [replace(e, labels=tuple(range(90, 90 + len(e.labels)))) for e in events]
    trace = Trace([*engine.trace.events[:1], *wrong], arrays=engine.trace.arrays)
    assert run.captured.distribution is not None
    assert trace.captured(run.id).distribution is None
