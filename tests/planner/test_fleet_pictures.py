"""Pictures of fleets: marked, inside their frame, and telling what the result tells."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from paced import TIMES

from llmlab.errors import InvalidParameter
from llmlab.planner.fleet import Fleet, agents, poisson, simulate, uniform
from llmlab.planner.fleet.pictures import compared, load_latency, replica_lanes
from llmlab.views.scene import Grid, Rect

sys.path.append(str(Path(__file__).parents[1] / "views"))
from pictures import least_contrast, outside, overlapping, unsafe


@pytest.fixture(scope="module")
def curve():
    return {
        rate: simulate(Fleet(TIMES), poisson(rate, 60, uniform(20, 90), uniform(5, 30))) for rate in (1.0, 4.0, 16.0)
    }


@pytest.fixture(scope="module")
def routed():
    work = agents(0.6, 20, 4, uniform(20, 120), uniform(10, 40), think_s=0.5, system=128)
    return {
        routing: simulate(Fleet(TIMES, replicas=3, routing=routing), work)
        for routing in ("round_robin", "least_loaded", "prefix_affine")
    }


@pytest.fixture(scope="module", params=["load_latency", "replica_lanes", "compared"])
def view(request, curve, routed):
    if request.param == "load_latency":
        return load_latency(curve)
    return replica_lanes(routed["prefix_affine"]) if request.param == "replica_lanes" else compared(routed)


def test_it_says_that_it_is_simulated_and_on_what(view):
    assert str(view).startswith("SIMULATED: ")
    assert ">SIMULATED: " in view.svg
    assert "Step times: made up." in view.notes


def test_it_is_drawn_as_every_picture_is(view):
    assert outside(view.scene) == []
    assert overlapping(view.scene) == []
    assert unsafe(view.svg) == []
    for theme in ("light", "dark"):
        assert least_contrast(view.scene, theme)[0] >= 4.5


def test_the_curve_has_a_point_for_each_rate_and_figure(curve):
    view = load_latency(curve)
    points = [mark for mark in view.scene.marks if isinstance(mark, Rect)]
    assert len(points) == 3 * len(curve)
    assert view.table().ttft_p90_ms.tolist() == [curve[rate].summary.ttft_p90_ms for rate in sorted(curve)]
    assert "16 a second" in view.text


def test_lanes_hold_the_mean_number_of_requests_in_the_system(routed):
    result = routed["round_robin"]
    view = replica_lanes(result)
    grids = [mark.values for mark in view.scene.marks if isinstance(mark, Grid)]
    assert len(grids) == 3
    shown = np.concatenate(grids).sum(axis=0).mean()
    top = float(next(m.text for m in view.scene.marks if "full" in getattr(m, "text", "")).split()[-1])
    assert shown * top == pytest.approx(result.summary.in_system, rel=0.15)  # the text rounds the scale
    assert view.table().requests.sum() == len(result.requests)


def test_bars_are_as_long_as_their_figures(routed):
    view = compared(routed, ["hit_rate"])
    bars = [mark.w for mark in view.scene.marks if isinstance(mark, Rect)]
    rates = [run.summary.hit_rate for run in routed.values()]
    assert np.allclose(np.array(bars) / max(bars), np.array(rates) / max(rates))


def test_what_cannot_be_drawn_is_refused(curve):
    with pytest.raises(InvalidParameter, match="two rates"):
        load_latency({1.0: curve[1.0]})
    with pytest.raises(InvalidParameter, match="two runs"):
        compared({"one": curve[1.0]})
    with pytest.raises(InvalidParameter, match="hit_rate"):
        compared({"one": curve[1.0], "other": curve[4.0]}, ["speed"])
