"""The picture of an online softmax: a bar per tile, and an end that is the whole row's softmax."""

from __future__ import annotations

import numpy as np
import pytest
from captured_runs import check_picture

from llmlab.errors import InvalidParameter
from llmlab.probes import online_softmax_walk
from llmlab.views import online_softmax
from llmlab.views.scene import Rect

RNG = np.random.default_rng(0)
SCORES, VALUES = RNG.normal(0, 2, 37), RNG.normal(size=(37, 5))


def walk(tile: int = 4, scores: np.ndarray = SCORES, values: np.ndarray = VALUES, sink: float | None = None) -> list:
    return list(online_softmax_walk(scores, values, tile, sink))


def test_a_row_per_tile_ends_at_the_whole_row():
    view = online_softmax(walk(), scores=SCORES, values=VALUES)
    table = view.table()
    assert table.first_key.tolist() == list(range(0, 37, 4))
    assert table.last_key.iloc[-1] == 36
    assert table.maximum.iloc[-1] == SCORES.max()
    assert table["sum"].iloc[-1] == pytest.approx(np.exp(SCORES - SCORES.max()).sum())
    assert table.distance_to_last_output.iloc[-1] == 0
    assert "equals the whole row's softmax within 1e-09" in view.text


def test_sums_follow_from_corrections_and_tiles():
    table = online_softmax(walk()).table()
    total = 0.0
    for row in table.itertuples():
        part = SCORES[row.first_key : row.last_key + 1]
        total = total * row.correction + np.exp(part - row.maximum).sum()
        assert row.sum == pytest.approx(total)


def test_raised_maxima_are_the_corrections_that_are_drawn():
    view = online_softmax(walk(), scores=SCORES)
    table = view.table()
    raised = table[(table.maximum > table.maximum.shift()) & table.maximum.shift().notna()]
    assert len(raised) > 1
    assert len([m for m in view.scene.marks if isinstance(m, Rect) and m.fill == "c1"]) == len(raised)
    assert all(f"{row.first_key}-{row.last_key}" in view.text for row in raised.itertuples())
    assert "not compared" in view.text


def test_an_output_that_is_not_the_softmax_is_told():
    assert "differs" in online_softmax(walk(), scores=SCORES + np.arange(37), values=VALUES).text
    assert "differs" in online_softmax(walk(sink=2.0), scores=SCORES, values=VALUES).text
    assert "equals" in online_softmax(walk(sink=2.0), scores=SCORES, values=VALUES, sink=2.0).text


def test_the_same_walk_says_the_same_and_another_one_something_else():
    one, again, other = (online_softmax(walk(tile)) for tile in (4, 4, 5))
    assert (one.text, one.svg) == (again.text, again.svg)
    assert one.svg != other.svg


@pytest.mark.parametrize("tile", [1, 4, 37])
@pytest.mark.parametrize("width", [480, 960])
@pytest.mark.parametrize("scores", [SCORES, np.arange(37.0), -np.arange(37.0), np.zeros(37), np.full(37, -np.inf)])
def test_pictures_keep_inside_their_frame(tile, width, scores):
    check_picture(online_softmax(walk(tile, scores), scores=scores, values=VALUES, width=width))


@pytest.mark.parametrize("scores", [RNG.normal(0, 3, 20_000), np.arange(20_000.0)])
def test_a_long_walk_is_thinned_and_says_so(scores):
    values = np.ones((20_000, 2))
    view = online_softmax(walk(4, scores, values), scores=scores, values=values)
    assert "One tile in 63 is drawn" in str(view)
    assert len(view.table()) == 5_000
    check_picture(view)


@pytest.mark.parametrize(
    ("steps", "options", "message"),
    [
        ([], {}, "must hold the steps"),
        (walk()[::-1], {}, "in their order"),
        (walk(), {"scores": SCORES[:9]}, r"\(37,\)"),
        (walk(), {"values": VALUES[:, :2]}, r"\(37, 5\)"),
    ],
)
def test_what_is_no_walk_is_refused(steps, options, message):
    with pytest.raises(InvalidParameter, match=message):
        online_softmax(steps, **options)
