"""`llmlab bench` with an option that measures one thing only."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from llmlab.cli import app
from llmlab.errors import LabError
from llmlab.planner.calibrate import save_step_times
from llmlab.planner.step_time import StepTimes


def test_two_things_are_not_measured_at_once():
    done = CliRunner().invoke(app, ["bench", "--tiers", "--wire"])
    assert done.exit_code == 2
    assert "--wire and --tiers" in done.output


def test_a_file_in_no_folder_is_refused_before_anything_is_measured(tmp_path):
    done = CliRunner().invoke(app, ["bench", "--phases", "--model", "mock", "--json", str(tmp_path / "no" / "x.json")])
    assert done.exit_code == 2
    assert "there is no folder" in done.output


def test_step_times_that_cannot_be_saved_are_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    times = StepTimes("made up", step=1.0, row=0.0, token=0.0, late_token=0.0, padded=0.0, pair=0.0, knee=1)
    with pytest.raises(LabError, match="not written"):
        save_step_times(times, tmp_path / "file" / "times.json")
