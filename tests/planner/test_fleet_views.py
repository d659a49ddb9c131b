"""Every picture of a simulated trace says SIMULATED, and no picture of a recorded one does."""

from __future__ import annotations

import pytest
from paced import TIMES

import llmlab
from llmlab import Trace, views
from llmlab.planner.fleet import Fleet, at_once, simulate
from llmlab.views.batch_lanes import batch_lanes
from llmlab.widgets.scene_json import to_json


@pytest.fixture(scope="module")
def simulated():
    return simulate(Fleet(TIMES, num_blocks=20), at_once(6, 60, 12), record=True).trace


@pytest.fixture(scope="module")
def recorded():
    with llmlab.open("mock", background=False) as lab:
        lab.ask("hello", max_tokens=4)
        return lab.trace


@pytest.mark.parametrize("name", views.OF_A_TRACE)
def test_a_picture_says_whether_it_is_simulated(name, simulated, recorded):
    made, real = (getattr(views, name)(trace) for trace in (simulated, recorded))
    assert made.simulated
    assert str(made).startswith("SIMULATED: ")
    assert ">SIMULATED: " in made.svg
    assert "Simulated. Step times: made up." in made.notes
    assert not real.simulated
    assert "SIMULATED" not in str(real) + real.svg


def test_a_comparison_with_one_simulated_side_is_marked(simulated, recorded):
    first, second = simulated.requests.request_id[0], recorded.requests.request_id[0]
    assert views.compare((recorded, second), (simulated, first)).simulated
    assert not views.compare((recorded, second), (recorded, second)).simulated


def test_a_view_is_marked_however_it_is_imported(simulated):
    assert batch_lanes is views.batch_lanes
    assert to_json(batch_lanes(simulated))["simulated"]


def test_a_saved_trace_stays_simulated(simulated, tmp_path):
    loaded = Trace.load(simulated.save(tmp_path / "fleet.jsonl.gz"))
    assert loaded.info.simulated == TIMES.source
    assert str(views.batch_lanes(loaded)) == str(views.batch_lanes(simulated))
