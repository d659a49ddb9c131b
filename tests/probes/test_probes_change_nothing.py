"""Looking changes no token, costs neighbours nothing, keeps to its budget, and cleans up."""

from __future__ import annotations

import numpy as np
import pytest
from looking import GREEDY, model_of, prompt
from tiny_models import paged_engine

from llmlab.engine.params import SamplingParams
from llmlab.engine.step_view import StepView
from llmlab.errors import CaptureTooLarge, InvalidParameter, LabError
from llmlab.probes import Capture
from llmlab.probes.store import Shelf

EVERYTHING = Capture(attention=True, scores=True, qkv=True, hidden=True, lens=True, embed=True, targets=[3])


def batch(engine, capture):
    """Three requests in mixed steps, the middle one captured; tokens and exact log-probabilities of all."""
    runs = [engine.submit(prompt(length, length), GREEDY, capture=c) for length, c in members(capture)]
    engine.run_until_idle()
    return [(run.token_ids, run.outputs[0].logprobs) for run in runs]


def members(capture):
    return ((19, None), (23, capture), (9, None))


@pytest.mark.parametrize("optimize", [True, False])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "mixtral", "gpt_oss"])
def test_tokens_and_logprobs_are_bit_identical_with_and_without(name, optimize):
    model = model_of(name)
    without, looked_at = (
        batch(paged_engine(model, optimize=optimize, budget=13), capture) for capture in (None, EVERYTHING)
    )
    assert looked_at == without


def test_steps_without_a_captured_row_are_plain_steps(monkeypatch):
    engine = paged_engine(model_of("gemma2"))
    views, build = [], engine.runner.build

    def spy(plan):
        batches = build(plan)
        views.extend((len(plan.rows), type(batch.view), batch.view.probe) for batch in batches)
        return batches

    monkeypatch.setattr(engine.runner, "build", spy)
    engine.submit(prompt(5), SamplingParams(max_tokens=9))
    engine.submit(prompt(6), SamplingParams(max_tokens=3), capture=Capture(hidden=True))
    engine.run_until_idle()
    probed = [probe is not None for _, _, probe in views]
    assert probed == [True] * 3 + [False] * 6
    assert all((view is StepView) == (probe is None) for _, view, probe in views)
    assert not hooks_of(engine)


def hooks_of(engine) -> list:
    return [
        hook
        for module in engine.runner.loaded_model.modules()
        for hooks in (module._forward_hooks, module._forward_pre_hooks)
        for hook in hooks.values()
    ]


# -- hooks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_users_hook_keeps_working_and_stays(name):
    model = model_of(name)
    engine = paged_engine(model)
    seen = []
    layer = engine.runner.anatomy.layers[1]
    handle = layer.register_forward_hook(lambda _, __, out: seen.append(out.shape))
    runs = [engine.submit(prompt(9, i), GREEDY, capture=Capture(hidden=True, attention=True)) for i in range(2)]
    engine.run_until_idle()
    assert len(seen) == 6
    assert len(hooks_of(engine)) == 1
    for i, run in enumerate(runs):
        alone = paged_engine(model).submit(prompt(9, i), GREEDY, capture=Capture(hidden=True, attention=True)).wait()
        np.testing.assert_allclose(run.captured.hidden.values, alone.captured.hidden.values, atol=2e-5, rtol=1e-5)
    handle.remove()
    assert not hooks_of(engine)


@pytest.mark.parametrize("name", ["gemma2", "mixtral"])
def test_hooks_are_gone_after_a_step_that_raised(name):
    engine = paged_engine(model_of(name))

    def fail(*_):
        raise RuntimeError("from the user's hook")

    handle = engine.runner.anatomy.layers[0].register_forward_hook(fail)
    with pytest.raises(LabError, match="from the user's hook"):
        engine.submit(prompt(), GREEDY, capture=EVERYTHING).wait()
    assert hooks_of(engine) == [fail]
    handle.remove()
    assert engine.submit(prompt(), GREEDY, capture=Capture(hidden=True)).wait().captured.hidden is not None
    assert not hooks_of(engine)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_a_look_that_fails_stops_its_own_capture_only(name, monkeypatch):
    model = model_of(name)
    expected = batch(paged_engine(model), None)

    def fail(*_):
        raise MemoryError("no room")

    engine = paged_engine(model)
    monkeypatch.setattr(engine.runner.anatomy, "logits", fail)
    runs = [engine.submit(prompt(length, length), GREEDY, capture=c) for length, c in members(EVERYTHING)]
    other = engine.submit(prompt(4), GREEDY, capture=Capture(hidden=True))
    engine.run_until_idle()
    assert [(run.token_ids, run.outputs[0].logprobs) for run in runs[:1]] == expected[:1]
    assert runs[1].token_ids == expected[1][0]
    assert "MemoryError: no room" in runs[1].captured.stopped
    assert other.captured.stopped is None
    assert other.captured.hidden.shape["position"] == 9


# -- the budget -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "capture",
    [
        {"attention": True},
        {"scores": 0, "heads": 1},
        {"qkv": True},
        {"qkv": True, "heads": [0, 1]},
        {"hidden": True, "dtype": "float16"},
        {"lens": True, "targets": [3, 4]},
        {"embed": True},
        {"attention": True, "hidden": True, "lens": 0, "positions": slice(-3, None)},
    ],
)
@pytest.mark.parametrize("budget", [64, 5])
def test_the_estimate_covers_what_is_kept_and_its_number_is_enough(capture, budget):
    model = model_of("llama")
    with pytest.raises(CaptureTooLarge, match="max_bytes is 10") as refused:
        paged_engine(model).submit(prompt(), GREEDY, capture=Capture(**capture, max_bytes=10))
    needed = int(str(refused.value).rsplit(" ", 1)[1])
    run = paged_engine(model, budget=budget).submit(prompt(), GREEDY, capture=Capture(**capture, max_bytes=needed))
    run.wait()
    assert run.captured.stopped is None
    assert run.captured.nbytes == sum(array.nbytes for array in run.store.arrays.values()) <= needed
    assert needed <= 1.5 * run.captured.nbytes + 200


def test_a_refused_capture_leaves_nothing_behind():
    engine = paged_engine(model_of("llama"))
    with pytest.raises(CaptureTooLarge):
        engine.submit(prompt(), GREEDY, capture=Capture(attention=True, max_bytes=10), request_id="mine")
    assert engine.submit(prompt(), GREEDY, request_id="mine").wait().finished


def test_an_open_length_stops_at_the_budget_and_says_so():
    model = model_of("llama")
    free = SamplingParams(max_tokens=None, ignore_eos=True)
    expected = paged_engine(model, num_blocks=16).submit(prompt(9), free).wait()
    engine = paged_engine(model, num_blocks=16)
    run = engine.submit(prompt(9), free, capture=Capture(hidden=True, max_bytes=5000)).wait()
    assert run.token_ids == expected.token_ids
    assert "max_bytes=5,000 is reached" in run.captured.stopped
    assert 4000 < run.captured.nbytes <= 5000
    states = run.captured.positions.state
    assert set(states) == {"computed", "not kept"}
    assert engine.trace.check() == []


def test_an_engine_forgets_the_oldest_arrays_beyond_its_limit():
    engine = paged_engine(model_of("llama"))
    engine._shelf = Shelf(limit=12_000)
    runs = [engine.submit(prompt(9, i), GREEDY, capture=Capture(hidden=True, max_bytes=8000)).wait() for i in range(4)]
    held = engine.trace.captures.groupby("request_id").held.all()
    assert held.to_dict() == {"r0": False, "r1": False, "r2": True, "r3": True}
    assert runs[0].captured.hidden is not None


# -- refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "records nothing"),
        ({"hidden": True, "dtype": "int8"}, "dtype"),
        ({"hidden": True, "max_bytes": -1}, "max_bytes"),
        ({"lens": True, "top": 0}, "top=0"),
        ({"lens": True, "targets": [1.5]}, "targets"),
        ({"embed": 3}, "embed=3"),
    ],
)
def test_a_capture_that_cannot_work_is_refused(arguments, message):
    with pytest.raises(InvalidParameter, match=message):
        Capture(**arguments)


@pytest.mark.parametrize("empty", [{"heads": []}, {"hidden": []}, {"positions": lambda p: False}])
def test_a_capture_of_nothing_is_refused(empty):
    with pytest.raises(InvalidParameter, match="chooses none"):
        paged_engine(model_of("llama")).submit(prompt(), GREEDY, capture=Capture(attention=True, **empty))


def test_a_model_without_insides_is_refused():
    import llmlab

    with llmlab.open("mock", background=False) as lab:
        with pytest.raises(InvalidParameter, match="nothing to look into"):
            lab.submit("hello", capture=Capture(hidden=True))
        with pytest.raises(InvalidParameter, match=r"must be a Capture"):
            lab.submit("hello", capture="attention")
        assert lab.ask("hello", max_tokens=2).finished
