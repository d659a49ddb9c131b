"""Lengths of hidden states: those of the capture, pooled by the longest."""

from __future__ import annotations

import numpy as np
import pytest
from captured_runs import check_picture, looked, made_by_hand

from llmlab.probes import Capture
from llmlab.views.hidden import hidden
from llmlab.views.scene import Grid


@pytest.fixture(scope="module")
def whole():
    return looked(capture=Capture(hidden=True))


def test_lengths_are_those_of_the_captured_states(whole):
    trace, request = whole
    view = hidden(trace, request)
    norms = np.linalg.norm(trace.captured(request).hidden.values.astype(np.float64), axis=-1)
    table = view.table()
    assert len(table) == norms.size
    np.testing.assert_allclose(table.length, norms[table.layer, table.position])
    layer, position = np.unravel_index(norms.argmax(), norms.shape)
    assert f"after layer {layer} at position {position} " in view.text


def test_pooling_keeps_the_longest(whole):
    trace, request = whole
    fine, coarse = hidden(trace, request).table(), hidden(trace, request, cells=5).table()
    for row in coarse.itertuples():
        inside = (fine.layer == row.layer) & fine.position.between(row.position, row.position_last)
        assert row.length == fine[inside].length.max()
    assert "the longest of 6 positions" in str(hidden(trace, request, cells=5))


def test_positions_from_the_cache_have_no_column():
    trace, request = looked(situation="prefix hit", capture=Capture(hidden=True))
    view = hidden(trace, request)
    assert view.table().position.min() == 12
    assert "Positions 0-11 have no column: served from cache, not computed." in view.notes


def test_states_of_one_length_and_of_none_can_be_drawn():
    for value in (0.0, 2.0):
        view = hidden(made_by_hand("hidden", ("position", "width"), {0: np.full((3, 4), value, np.float32)}))
        shares = next(mark for mark in view.scene.marks if isinstance(mark, Grid)).values
        assert np.isfinite(shares).all()
        check_picture(view)


def test_a_long_sequence_is_small():
    rng = np.random.default_rng(3)
    layers = {layer: rng.normal(size=(20_000, 8)).astype(np.float32) for layer in range(40)}
    view = hidden(made_by_hand("hidden", ("position", "width"), layers))
    assert "Pooled" in str(view)
    check_picture(view)
