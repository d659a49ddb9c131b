"""Step times: the counts they are made of, the fit, what it refuses, and files."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from random import Random

import numpy as np
import pytest
from paced import TIMES, paced_lab

from llmlab.engine.row_group import MAX_GROUPED
from llmlab.errors import InvalidParameter
from llmlab.planner.calibrate import calibrate, default_path, load_step_times, save_step_times
from llmlab.planner.data_sheet_times import data_sheet_times
from llmlab.planner.fleet import Fleet, poisson, simulate, uniform
from llmlab.planner.roofline import decode, step_work
from llmlab.planner.step_load import FEW, StepLoad, load_of
from llmlab.planner.step_time import StepTimes, fit_steps
from llmlab.trace import Trace
from llmlab.trace.events import EngineInfo


def loads(number: int = 200) -> list[StepLoad]:
    """Steps of every kind: decode, prefill, both, of many contexts."""
    draw = Random(7)
    found = []
    for _ in range(number):
        rows = [(draw.randrange(600), 1) for _ in range(draw.randrange(9))]
        rows += [(draw.randrange(3) * 64, draw.randrange(9, 300)) for _ in range(draw.randrange(2 if rows else 3))]
        found.append(StepLoad.of(rows or [(5, 1)]))
    return found


def test_the_counts_of_a_step():
    load = StepLoad.of([(9, 1), (29, 1), (10, 3), (16, 20)])
    assert (load.num_rows, load.num_tokens) == (4, 25)
    assert load.padded == 2 * 30 + 13
    assert load.pairs == sum(16 + i + 1 for i in range(20))
    assert load.attended == 10 + 30 + (11 + 12 + 13) + load.pairs
    assert load.read == 10 + 30 + 13 + 36


def test_a_decode_step_later_reads_one_position_more_in_every_row():
    rows = [(9, 1), (29, 1), (3, 1)]
    assert StepLoad.of(rows).later(5) == StepLoad.of([(start + 5, 1) for start, _ in rows])


def test_short_rows_are_those_that_the_engine_attends_to_together():
    assert FEW == MAX_GROUPED


def test_the_fit_finds_the_costs_that_made_the_times():
    steps = loads()
    fitted = fit_steps(steps, [TIMES.ns(load) for load in steps], range(len(steps)), "made up")
    assert fitted.error < 1e-3
    assert fitted.knee == TIMES.knee
    assert fitted.step == pytest.approx(TIMES.step, rel=0.02)
    assert fitted.pair == pytest.approx(TIMES.pair, rel=0.05)


def test_steps_that_were_delayed_do_not_lead_the_fit_astray():
    steps, draw = loads(), Random(1)
    times = [TIMES.ns(load) * (4 if draw.random() < 0.1 else 1) for load in steps]
    fitted = fit_steps(steps, times, range(len(steps)), "delayed")
    assert np.median(np.abs(fitted.errors(steps, [TIMES.ns(load) for load in steps]))) < 0.02


def test_no_cost_is_negative():
    steps = loads(60)
    times = [max(1_000_000, 90_000_000 - TIMES.ns(load)) for load in steps]
    fitted = fit_steps(steps, times, range(60), "the more, the shorter")
    assert min(getattr(fitted, name) for name in ("step", "row", "token", "late_token", "padded", "pair")) >= 0


def test_the_error_is_that_of_steps_that_were_held_out():
    steps = loads()
    held = [number % 4 == 3 for number in range(len(steps))]
    times = [TIMES.ns(load) * (2 if out else 1) for load, out in zip(steps, held, strict=True)]
    fitted = fit_steps(steps, times, range(len(steps)), "twice as long where nobody looked")
    assert fitted.error == pytest.approx(0.5, abs=0.01)
    assert (fitted.num_checked, fitted.num_fitted) == (sum(held), len(steps) - sum(held))


def test_too_few_steps_are_refused():
    with pytest.raises(InvalidParameter, match="7 steps are too few"):
        fit_steps(loads(7), [1] * 7, range(7), "short")


def test_a_recorded_trace_gives_the_times_it_was_made_with():
    result = simulate(Fleet(TIMES), poisson(3.0, 40, uniform(20, 200), uniform(5, 40)), record=True)
    with pytest.raises(InvalidParameter, match="a real engine recorded"):
        StepTimes.fit(result.trace)
    events = [replace(e, simulated="") if isinstance(e, EngineInfo) else e for e in result.trace.events]
    fitted = StepTimes.fit(Trace(events))
    steps = [load_of(step) for step in result.trace.index.steps]
    assert np.abs(fitted.errors(steps, [TIMES.ns(load) for load in steps])).max() < 0.02
    assert "recorded steps of a model" in fitted.source


def test_calibrating_a_known_engine_finds_its_times(monkeypatch):
    lab, _ = paced_lab(monkeypatch)
    found = calibrate(lab, quick=True)
    assert found.times.error < 0.01
    assert found.frame.held_out.any()
    assert found.frame.error.abs().max() < 0.05
    assert set(found.table.kind) == {"prefill", "decode"}
    assert found.times.source == "calibrated on mock (int64) on cpu"


def test_a_pool_too_small_for_the_grid_is_refused(monkeypatch):
    lab, _ = paced_lab(monkeypatch, num_blocks=4)
    with pytest.raises(InvalidParameter, match="num_blocks=4 is too small"):
        calibrate(lab, quick=True)


def test_step_times_are_saved_and_found_again(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMLAB_CACHE", str(tmp_path))
    lab, _ = paced_lab(monkeypatch)
    path = default_path(lab.engine.recorder.info)
    assert path.parent.parent == tmp_path
    measured = replace(TIMES, error=0.07, num_fitted=30, num_checked=9)
    assert load_step_times(save_step_times(measured, path)) == measured
    assert "NaN" not in save_step_times(TIMES, path).read_text()
    assert isnan(load_step_times(path).error)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', '{"format": 1, "step_times": {"step": 1}}'])
def test_a_file_that_holds_no_step_times_is_refused(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(InvalidParameter, match="calibrat"):
        load_step_times(tmp_path / "x.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match="bench --calibrate"):
        load_step_times(tmp_path / "none.json")


@pytest.mark.parametrize(("batch", "context"), [(1, 512), (16, 2_048), (64, 4_096)])
def test_a_data_sheet_s_decode_step_is_the_roofline_s(batch, context):
    times = data_sheet_times("Llama-3-8B", "h100")
    expected = step_work(times.shape, decode(batch, context)).time_s("h100")
    assert times.ns(StepLoad.of([(context - 1, 1)] * batch)) == pytest.approx(1e9 * expected, rel=0.01)
    assert times.source.startswith("COMPUTED")


def test_a_data_sheet_s_assumptions_are_named_and_count():
    plain, assumed = (
        data_sheet_times("Llama-3-8B", "h100"),
        data_sheet_times("Llama-3-8B", "h100", reached=0.5, overhead_s=1e-3),
    )
    load = StepLoad.of([(100, 1)])
    assert assumed.ns(load) == pytest.approx(2 * plain.ns(load) + 1e6, rel=1e-3)
    assert "50% of its peaks assumed" in assumed.source
    assert "1 ms more for each step assumed" in assumed.source
    with pytest.raises(InvalidParameter, match="reached=0"):
        data_sheet_times("Llama-3-8B", "h100", reached=0)


def test_more_tokens_touch_more_experts():
    times = data_sheet_times("Mixtral-8x7B", "h200")
    one, many = (times.ns(StepLoad.of([(9, 1)] * batch)) for batch in (1, 16))
    assert many > 2 * one
