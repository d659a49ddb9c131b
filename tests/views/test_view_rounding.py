"""Weights before and after rounding, and times by rows: facts, marks, refusals."""

from __future__ import annotations

import numpy as np
import pictures
import pytest

from llmlab.errors import InvalidParameter
from llmlab.views.rounding import rounding
from llmlab.views.row_costs import row_costs
from llmlab.views.scene import Rect

WEIGHTS = np.sin(np.arange(64) * 0.7) * np.linspace(0.1, 1, 64)


def rounded(groups: int = 2, spread: float = 1.0):
    parts = WEIGHTS.reshape(groups, -1)
    low, high = parts.min(1) * spread, parts.max(1) * spread
    scales = (high - low) / 15
    zeros = low + 8 * scales
    codes = np.clip(np.round((parts - zeros[:, None]) / scales[:, None]) + 8, 0, 15).ravel()
    return codes, scales, zeros


def test_the_table_holds_every_weight_and_its_error():
    view = rounding(WEIGHTS, *rounded())
    table = view.table()
    assert np.allclose(table.weight, WEIGHTS)
    assert np.allclose(table.weight + table.error, table.rounded)
    assert list(table.groupby("group").size()) == [32, 32]
    assert len([mark for mark in view.scene.marks if isinstance(mark, Rect)]) == 2 * 64


def test_the_text_says_how_far_weights_moved():
    fine, coarse = rounding(WEIGHTS, *rounded()), rounding(WEIGHTS, *rounded(spread=4.0))
    errors = [view.table().error.abs().mean() for view in (fine, coarse)]
    assert errors[1] > 2 * errors[0]
    assert f"mean error {fine.table().error[:32].abs().mean():.4f}" in fine.text
    assert fine.text != coarse.text
    assert str(fine) == str(rounding(WEIGHTS, *rounded()))


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("width", [500, 960])
def test_marks_stay_inside_and_apart(groups, width):
    scene = rounding(WEIGHTS, *rounded(groups), width=width).scene
    assert pictures.outside(scene) == []
    assert pictures.overlapping(scene) == []


def test_equal_weights_can_be_drawn():
    view = rounding(np.full(32, 0.25), np.full(32, 8), [0.0], [0.25])
    assert "1 of 16 levels used" in view.text
    assert pictures.outside(view.scene) == []


@pytest.mark.parametrize(
    "given",
    [
        (WEIGHTS, WEIGHTS[:3], [1.0], [0.0]),
        (WEIGHTS, WEIGHTS, [1.0, 1.0], [0.0]),
        (WEIGHTS, WEIGHTS, [1.0] * 3, [0.0] * 3),
        (np.ones(200), np.ones(200), [1.0], [0.0]),
        ([], [], [], []),
        (WEIGHTS, WEIGHTS, [], []),
    ],
)
def test_shapes_that_do_not_go_together_are_refused(given):
    with pytest.raises(InvalidParameter):
        rounding(*given)


TIMES = {1: {"bf16": 30.0, "int4, kernel": 15.0}, 16: {"bf16": 50.0, "int4, kernel": 85.0}}


def test_times_are_in_the_table_and_not_in_the_text():
    view = row_costs(TIMES)
    assert view.table().loc[16, "int4, kernel (ms)"] == 85.0
    assert view.text == row_costs({16: {"bf16": 1.0, "int4, kernel": 2.0}, 1: {"bf16": 3.0, "int4, kernel": 4.0}}).text
    assert view.svg != row_costs({1: TIMES[16], 16: TIMES[1]}).svg


@pytest.mark.parametrize(
    "times",
    [
        TIMES,
        {8: {"one": 5.0}},
        {n: {f"way {i}": 1.0 + i / 100 for i in range(8)} for n in (1, 2, 4, 8, 1024)},
        {1: {"slow": 1e5, "fast": 1e-3}, 2: {"slow": 1e5, "fast": 1e-3}},
    ],
)
def test_curves_and_their_names_stay_inside_and_apart(times):
    scene = row_costs(times).scene
    assert pictures.outside(scene) == []
    assert pictures.overlapping(scene) == []


@pytest.mark.parametrize(
    "times", [{}, {1: {}}, {1: {"a": 1.0}, 2: {"b": 1.0}}, {1: {"a": 0.0}}, {0: {"a": 1.0}}, {1: {"a": float("nan")}}]
)
def test_times_that_cannot_be_drawn_are_refused(times):
    with pytest.raises(InvalidParameter):
        row_costs(times)
