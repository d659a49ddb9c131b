"""Thumbnails of all heads: which share a K/V head, what they pool, and the means beside them."""

from __future__ import annotations

import numpy as np
import pytest
from captured_runs import check_picture, looked, made_by_hand

from llmlab.errors import InvalidParameter
from llmlab.probes import Capture
from llmlab.trace.events import EngineInfo
from llmlab.trace.trace import Trace
from llmlab.views import attention_heads
from llmlab.views.attention_heads import FAINT
from llmlab.views.scene import Grid, Text


@pytest.fixture(scope="module")
def whole():
    return looked()


def grids(view) -> list[Grid]:
    return [mark for mark in view.scene.marks if isinstance(mark, Grid)]


def words(view) -> list[str]:
    return [mark.text for mark in view.scene.marks if isinstance(mark, Text)]


def test_there_is_a_thumbnail_per_layer_and_head_with_its_key(whole):
    trace, request = whole
    keys = [grid.row_keys[0] for grid in grids(attention_heads(trace, request))]
    assert sorted((key["layer"], key["head"]) for key in keys) == [(i, h) for i in range(2) for h in range(4)]


def test_heads_that_share_a_kv_head_are_grouped(whole):
    trace, request = whole
    view = attention_heads(trace, request)
    assert "K/V head 0: query heads 0-1" in view.text
    assert "K/V head 1: query heads 2-3" in view.text
    assert [text for text in words(view) if text.startswith("K/V")] == ["K/V head 0", "K/V head 1"]
    assert view.table().kv_head.tolist() == [0, 0, 1, 1] * 2
    one = looked("mqa", capture=Capture(attention=True))
    assert "K/V head 0: query heads 0-3" in attention_heads(*one).text


def test_some_heads_keep_their_kv_heads():
    trace, request = looked(capture=Capture(attention=True, heads=[1, 2]))
    view = attention_heads(trace, request)
    assert view.table()[["head", "kv_head"]].drop_duplicates().to_numpy().tolist() == [[1, 0], [2, 1]]


def test_a_trace_without_the_number_of_heads_groups_nothing(whole):
    trace, request = whole
    bare = Trace([e for e in trace.events if not isinstance(e, EngineInfo)], arrays=trace.arrays)
    view = attention_heads(bare, request)
    assert "does not say which query heads share a K/V head" in view.text
    assert view.table().kv_head.isna().all()
    assert not any(text.startswith("K/V") for text in words(view))
    check_picture(view)


@pytest.mark.parametrize("layer", [None, 1])
def test_cells_are_the_largest_weights_they_pool(whole, layer):
    trace, request = whole
    view = attention_heads(trace, request, layer=layer, cells=7)
    for grid in grids(view):
        key = grid.row_keys[0]
        weights = trace.captured(request).attention.sel(layer=key["layer"], head=key["head"]).values
        for row, column in np.ndindex(grid.values.shape):
            largest = weights[4 * row : 4 * row + 4, 4 * column : 4 * column + 4].max()
            drawn = grid.values[row, column]
            assert drawn == largest or (np.isnan(drawn) and largest < FAINT)


def test_means_are_those_of_the_weights(whole):
    trace, request = whole
    table = attention_heads(trace, request).table().set_index(["layer", "head"])
    weights = trace.captured(request).attention.sel(layer=1, head=2).values.astype(np.float64)
    row = table.loc[1, 2]
    assert row.first_key == pytest.approx(weights[:, 0].mean(), abs=1e-6)
    assert row.own_key == pytest.approx(np.diag(weights).mean(), abs=1e-6)
    assert row.previous_key == pytest.approx(np.diag(weights, -1).mean(), abs=1e-6)
    entropy = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(axis=1).mean()
    assert row.entropy_nats == pytest.approx(entropy, abs=1e-5)


def test_a_layer_alone_is_drawn_larger(whole):
    trace, request = whole
    small, large = attention_heads(trace, request), attention_heads(trace, request, layer=0)
    assert grids(large)[0].values.shape[0] > grids(small)[0].values.shape[0]
    assert large.table().layer.unique().tolist() == [0]
    check_picture(large)
    with pytest.raises(InvalidParameter, match="choose one of 0-1"):
        attention_heads(trace, request, layer=2)


def test_many_layers_and_heads_are_chosen_evenly_and_said():
    rng = np.random.default_rng(1)
    layers = {}
    for layer in range(40):
        weights = np.tril(rng.random((16, 60, 60), dtype=np.float32)) ** 6
        layers[layer] = weights / weights.sum(axis=-1, keepdims=True)
    view = attention_heads(made_by_hand("attention", ("head", "query", "key"), layers, tuple(range(16))))
    drawn = {grid.row_keys[0]["layer"] for grid in grids(view)}
    assert 39 in drawn
    assert len(drawn) < 40
    assert f"evenly chosen of {len(layers)}" in " ".join(view.notes)
    assert len(view.table()) == 40 * 16
    check_picture(view)
