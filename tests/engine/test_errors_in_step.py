"""When a step goes wrong: the requests it concerns fail with the cause, everybody else goes on."""

from __future__ import annotations

import pytest
from mock_serving import (
    assert_all_returned,
    assert_sound,
    continuation,
    greedy,
    mock_engine,
    prompt,
    sampled_continuation,
    streamed,
)

from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel
from llmlab.engine.params import SamplingParams
from llmlab.errors import InvalidLogits, InvalidParameter, LabError
from llmlab.models.byte_tokenizer import ByteTokenizer


class Faulty(MockModel):
    """A mock model that fails in chosen steps, or spoils the logits of one request from some length on."""

    def __init__(self, *, fail_in=(), phase="forward", error=RuntimeError, spoil=None, value=float("nan"), **shape):
        super().__init__(**{"num_blocks": 64, "block_size": 4} | shape)
        self.fail_in, self.phase, self.error = fail_in, phase, error
        self.spoil, self.value = spoil, value

    def build(self, plan):
        if self.phase == "build" and plan.step in self.fail_in:
            raise self.error("out of memory")
        self.plan = plan
        return super().build(plan)

    def forward(self, plan):
        if self.phase == "forward" and plan.step in self.fail_in:
            raise self.error("out of memory")
        logits, first = super().forward(plan), 0
        for row in plan.rows:
            end = first + row.num_logits
            if self.spoil and row.request.id == self.spoil[0] and row.end >= self.spoil[1]:
                logits[first:end] = self.value
            first = end
        return logits


def everybody(engine: Engine, num_tokens: int = 8, **params):
    return [engine.submit(prompt(5, start), greedy(num_tokens, **params)) for start in range(3)]


# -- unusable logits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("length", [5, 8], ids=["first token", "fourth token"])
def test_unusable_logits_end_one_request_and_no_other(value, length):
    engine = mock_engine(runner=Faulty(spoil=("r1", length), value=value))
    healthy, broken, other = everybody(engine)
    engine.run_until_idle()
    with pytest.raises(InvalidLogits, match=r"run r1: the model's logits hold"):
        broken.wait()
    assert broken.stop_reason == "error"
    assert broken.token_ids == continuation(prompt(5, 1), 8)[: length - 5]
    assert healthy.token_ids == continuation(prompt(5, 0), 8)
    assert other.token_ids == continuation(prompt(5, 2), 8)
    assert_all_returned(engine)


def test_sampling_neighbours_of_a_broken_row_draw_what_they_draw_alone():
    engine = mock_engine(runner=Faulty(spoil=("r0", 6)))
    params = [SamplingParams(max_tokens=8, temperature=1.1, seed=seed) for seed in range(3)]
    runs = [engine.submit(prompt(5, seed), params[seed]) for seed in range(3)]
    engine.run_until_idle()
    assert isinstance(runs[0].error, InvalidLogits)
    for seed in (1, 2):
        assert runs[seed].token_ids == sampled_continuation(prompt(5, seed), params[seed])
    assert_all_returned(engine)


def test_one_broken_sample_leaves_the_others_of_its_group():
    engine = mock_engine(runner=Faulty(spoil=("r0.1", 8)))
    run = engine.submit(prompt(6), greedy(6, n=3))
    engine.run_until_idle()
    assert [output.stop_reason for output in run.outputs] == ["length", "error", "length"]
    assert run.outputs[0].token_ids == run.outputs[2].token_ids == continuation(prompt(6), 6)
    with pytest.raises(InvalidLogits):
        run.wait()
    assert_all_returned(engine)


def test_unusable_logits_of_a_prompt_end_every_sample():
    engine = mock_engine(runner=Faulty(spoil=("r0", 0)))
    run = engine.submit(prompt(6), greedy(6, n=3, prompt_logprobs=1))
    engine.run_until_idle()
    assert {output.stop_reason for output in run.outputs} == {"error"}
    assert_all_returned(engine)


def test_a_stream_of_a_broken_request_gives_its_text_and_then_the_error():
    engine = mock_engine(runner=Faulty(spoil=("r0", 8)))
    run, pieces = engine.submit(prompt(5), greedy(8)), []
    with pytest.raises(InvalidLogits):
        pieces.extend(run)
    assert "".join(pieces) == bytes(continuation(prompt(5), 3)).decode()


# -- a runner that raises ------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", ["build", "forward"])
@pytest.mark.parametrize("step", [0, 1, 4])
def test_a_failing_step_fails_its_requests_with_the_cause(phase, step):
    engine = mock_engine(runner=Faulty(fail_in=(step,), phase=phase))
    runs = everybody(engine)
    engine.run_until_idle()
    for run in runs:
        with pytest.raises(
            LabError, match=rf"step {step} failed for run {run.id}: RuntimeError: out of memory"
        ) as info:
            run.wait()
        assert isinstance(info.value.__cause__, RuntimeError)
        assert run.stop_reason == "error"
        assert run.token_ids == continuation(run.prompt_token_ids, 8)[:step]
    assert_all_returned(engine)
    again = engine.submit(prompt(5), greedy(8)).wait()
    assert again.token_ids == continuation(prompt(5), 8)
    assert_all_returned(engine)


@pytest.mark.parametrize("phase", ["build", "forward"])
def test_requests_outside_the_failing_step_go_on(phase):
    engine = mock_engine(runner=Faulty(fail_in=(2,), phase=phase), slots=2)
    first, second, waiting = everybody(engine)
    engine.run_until_idle()
    assert [run.stop_reason for run in (first, second, waiting)] == ["error", "error", "length"]
    assert waiting.token_ids == continuation(prompt(5, 2), 8)
    assert_all_returned(engine)


@pytest.mark.parametrize("step", [0, 1, 3])
def test_a_failing_step_with_several_samples_of_one_run(step):
    engine = mock_engine(runner=Faulty(fail_in=(step,)), slots=4)
    group = engine.submit(prompt(6), greedy(8, n=3))
    late = engine.submit(prompt(5, 1), greedy(8, n=3))
    engine.run_until_idle()
    assert {output.stop_reason for output in group.outputs} == {"error"}
    assert [output.token_ids for output in late.outputs] == [continuation(prompt(5, 1), 8)] * 3
    assert_all_returned(engine)


def test_nothing_of_a_failed_step_is_served_from_the_cache():
    engine = mock_engine(runner=Faulty(fail_in=(0,)))
    failed = engine.submit(prompt(13), greedy(4))
    engine.run_until_idle()
    assert failed.stop_reason == "error"
    again = engine.submit(prompt(13), greedy(4)).wait()
    assert again.usage["cached_tokens"] == 0
    assert again.token_ids == continuation(prompt(13), 4)


def test_the_background_thread_survives_a_failing_step():
    engine = mock_engine(runner=Faulty(fail_in=(3,)))
    engine.start()
    try:
        failed = engine.submit(prompt(5), greedy(8, n=2))
        with pytest.raises(LabError, match="out of memory"):
            failed.wait(timeout=30)
        assert engine.submit(prompt(5, 1), greedy(8)).wait(timeout=30).token_ids == continuation(prompt(5, 1), 8)
        assert engine.is_running
    finally:
        engine.close()
    assert_all_returned(engine)


class Strict(ByteTokenizer):
    """A tokenizer that cannot decode one token."""

    def __init__(self, forbidden: int) -> None:
        self.forbidden = forbidden

    def decode(self, ids, skip_special_tokens=True):
        if self.forbidden in ([ids] if isinstance(ids, int) else ids):
            raise ValueError(f"cannot decode {self.forbidden}")
        return super().decode(ids, skip_special_tokens)


def test_a_token_that_cannot_be_decoded_does_not_end_the_engine():
    engine = mock_engine()
    third = continuation(prompt(5, 1), 3)[-1]
    engine.tokenizer = Strict(third)
    runs = everybody(engine, 3)
    doomed = [run for run in runs if third in continuation(run.prompt_token_ids, 3)]
    engine.run_until_idle()
    assert all(run.stop_reason == "error" for run in doomed)
    assert_all_returned(engine)
    engine.tokenizer = ByteTokenizer()
    assert engine.submit(prompt(5), greedy(3)).wait().token_ids == continuation(prompt(5), 3)


# -- an interrupt --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("step", [0, 1, 2])
@pytest.mark.parametrize("phase", ["build", "forward"])
def test_an_interrupted_step_never_leads_to_wrong_tokens(n, step, phase):
    """The stop button of a notebook raises in the middle of a step that is stepped by hand."""
    engine = mock_engine(runner=Faulty(fail_in=(step,), phase=phase, error=KeyboardInterrupt))
    run = engine.submit(prompt(6), greedy(8, n=n))
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    assert_sound(engine)
    engine.runner.fail_in = ()
    engine.run_until_idle()
    for which, output in enumerate(run.outputs):
        expected = continuation(prompt(6), 8)
        assert output.stop_reason in ("length", "error")
        assert streamed_or_failed(run, which) == expected[: len(output.token_ids)]
        assert output.stop_reason == "error" or output.token_ids == expected
    assert_all_returned(engine)


def streamed_or_failed(run, which: int) -> list[int]:
    if run.error is None:
        return streamed(run, which)[0]
    with pytest.raises(LabError):
        run.wait()
    return run.outputs[which].token_ids


def test_an_interrupt_between_choosing_and_emitting_leaves_no_half_made_step(monkeypatch):
    engine = mock_engine()
    run = engine.submit(prompt(6), greedy(8))
    engine.step()

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("llmlab.engine.step.sample", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    engine.run_until_idle()
    assert run.stop_reason == "error" or run.token_ids == continuation(prompt(6), 8)
    assert all(row.num_tokens > 0 for step in engine.trace._index.steps for row in step.rows)
    assert_all_returned(engine)


def test_logits_of_the_wrong_shape_fail_the_step():
    class Short(MockModel):
        def forward(self, plan):
            return super().forward(plan)[:-1] if plan.step == 1 else super().forward(plan)

    engine = mock_engine(runner=Short(64, 4))
    runs = everybody(engine)
    engine.run_until_idle()
    assert {run.stop_reason for run in runs} == {"error"}
    assert engine.submit(prompt(5), greedy(3)).wait().token_ids == continuation(prompt(5), 3)
    assert_all_returned(engine)


def test_blocks_of_a_request_with_unusable_logits_cannot_be_hit():
    engine = mock_engine(runner=Faulty(spoil=("r0", 20)))
    run = engine.submit(prompt(20, 0), greedy(8))
    engine.run_until_idle()
    assert isinstance(run.error, InvalidLogits)
    assert (engine.pool.num_cached, engine.pool.num_free) == (0, engine.pool.num_blocks)
    again = engine.submit(prompt(20, 0), greedy(8))
    engine.run_until_idle()
    assert again.usage["cached_tokens"] == 0
    assert again.token_ids == continuation(prompt(20, 0), 8)
    assert_sound(engine)


def test_a_tokenizer_that_fails_ends_its_run_and_not_the_thread():
    class Broken(ByteTokenizer):
        def decode(self, ids, **options):
            if self.broken:
                raise RuntimeError("no such piece")
            return super().decode(ids, **options)

    tokenizer = Broken()
    tokenizer.broken = True
    engine = Engine(MockModel(num_blocks=16), tokenizer)
    engine.start()
    failed = engine.submit(prompt(5), greedy(4))
    with pytest.raises(LabError, match="no such piece"):
        failed.wait(10)
    tokenizer.broken = False
    assert engine.submit(prompt(5), greedy(4)).wait(10).token_ids == continuation(prompt(5), 4)
    engine.close()


def test_ids_of_samples_cannot_be_taken_twice():
    engine = mock_engine()
    engine.submit(prompt(5), greedy(4), request_id="a.1")
    with pytest.raises(InvalidParameter, match=r"'a\.1' is in use"):
        engine.submit(prompt(5), greedy(4, n=2), request_id="a")
    engine.run_until_idle()
    assert_all_returned(engine)
