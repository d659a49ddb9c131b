"""`llmlab bench --fleet`: on an engine whose step times are known, the simulation is right to the last digit."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from paced import TIMES, paced_lab, wait_on
from rich.console import Console
from typer.testing import CliRunner

from llmlab.bench.fleet import (
    calibration_object,
    calibration_tables,
    figures_of,
    fleet_object,
    fleet_table,
    load_for,
    serve,
    simulation_speed,
)
from llmlab.cli import app
from llmlab.planner.calibrate import calibrate, load_step_times


@pytest.fixture(scope="module")
def figures():
    with pytest.MonkeyPatch.context() as patched:
        lab, clock = paced_lab(patched, num_blocks=1_024)
        calibration = calibrate(lab, quick=True)
        workload = load_for(calibration.info, TIMES, 10.0)
        return figures_of(calibration, workload.text, serve(lab, workload, wait_on(lab, clock)))


def said(*tables):
    console = Console(width=140, record=True, file=StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def test_the_replay_of_a_known_engine_is_exact_but_for_the_fit(figures):
    table = figures.table
    assert table.measured["requests"] == table.simulated["requests"] >= 8
    assert table.error.abs().max() < 0.02
    assert (table.refitted / table.measured - 1).abs().max() < 0.02


def test_the_load_keeps_the_engine_busy_but_not_full(figures):
    assert 0.4 < figures.table.measured["engine busy s"] / figures.table.measured["seconds"] <= 1


def test_the_report_has_a_verdict_for_each_target(figures):
    text = said(fleet_table(figures))
    assert text.count(" met ") == 3
    assert "SIMULATED" in text
    assert "held-out" in text
    assert json.loads(json.dumps(fleet_object(figures)))["figures"]["TTFT p50 ms"]["measured"] > 0


def test_the_speed_of_the_simulator_is_told_with_its_work(figures):
    told = said(fleet_table(replace(figures, speed=simulation_speed(TIMES, 200))))
    assert "200 requests of four replicas" in " ".join(told.split())


def test_the_calibration_is_told_with_every_cell(figures):
    text = said(*calibration_tables(figures.calibration))
    assert "each query and key of prefill" in text
    assert "8 x 256" in text
    assert "held out" in text
    steps = json.loads(json.dumps(calibration_object(figures.calibration)))["steps"]
    assert len(steps) == len(figures.calibration.frame)


def test_the_command_saves_what_the_simulator_loads(tmp_path):
    target = tmp_path / "times.json"
    options = ["--calibrate", "--quick", "--model", "mock", "--step-times", str(target), "--json", "-"]
    done = CliRunner().invoke(app, ["bench", *options])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["step_times"] == load_step_times(target).to_json()
