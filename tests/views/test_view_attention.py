"""The attention matrix: its cells are the captured weights, and what has no cell is said."""

from __future__ import annotations

from time import perf_counter

import numpy as np
import pytest
from captured_runs import check_picture, hostile, looked, made_by_hand, replayed, without_arrays

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace.events import RequestSubmitted
from llmlab.trace.trace import Trace
from llmlab.views import attention, attention_heads, lens
from llmlab.views.hidden import hidden
from llmlab.views.scene import Grid, Rect, Text


@pytest.fixture(scope="module")
def whole():
    return looked()


@pytest.fixture(scope="module")
def after_prefix():
    return looked(situation="prefix hit")


def grid(view) -> Grid:
    return next(mark for mark in view.scene.marks if isinstance(mark, Grid))


def test_cells_of_a_head_are_the_captured_weights(whole):
    trace, request = whole
    view = attention(trace, request, layer=0, head=2)
    captured = trace.captured(request).attention.sel(layer=0, head=2).values
    for row in view.table().itertuples():
        assert row.weight == captured[row.query, row.key]
    assert len(view.table()) == 28 * 29 // 2
    np.testing.assert_allclose(view.table().groupby("query").weight.sum(), 1, atol=1e-5)
    shown = grid(view).values
    np.testing.assert_array_equal(shown[np.tril_indices(28)], captured[np.tril_indices(28)])
    assert np.isnan(shown[np.triu_indices(28, 1)]).all()


def test_without_a_head_a_cell_is_the_largest_weight_and_names_its_head(whole):
    trace, request = whole
    view = attention(trace, request, layer=1)
    captured = trace.captured(request).attention.sel(layer=1).values
    table = view.table()
    np.testing.assert_array_equal(table.weight, captured.max(axis=0)[table["query"], table.key])
    np.testing.assert_array_equal(table["head"], captured.argmax(axis=0)[table["query"], table.key])
    assert "largest weight over all recorded heads" in str(view)


def test_pooling_keeps_the_largest_weight_and_says_so(whole):
    trace, request = whole
    whole_view, view = (attention(trace, request, head=0, cells=n) for n in (48, 8))
    assert grid(view).values.shape == (7, 7)
    assert "among 4 queries x 4 keys" in str(view)
    fine, coarse = whole_view.table(), view.table()
    for row in coarse.itertuples():
        inside = fine["query"].between(row.query, row.query_last) & fine.key.between(row.key, row.key_last)
        assert row.weight == fine[inside].weight.max()
    assert fine.weight.max() == coarse.weight.max()


def test_listed_keys_and_the_rest_are_the_whole_row(whole):
    trace, request = whole
    view = attention(trace, request, layer=0, head=1, selected=20)
    row = trace.captured(request).attention.sel(layer=0, head=1, query=20).values
    said = [mark.text for mark in view.scene.marks if isinstance(mark, Text)]
    best = np.sort(row)[::-1][:10]
    assert [text for text in said if text in {f"{w:.3f}" for w in best}][:10] == [f"{w:.3f}" for w in best]
    assert f"11 other keys: {1 - best.sum():.3f}" in said
    assert "every row of every head sums to 1" in view.text


def test_cached_keys_are_hatched_and_their_queries_absent(after_prefix):
    trace, request = after_prefix
    view = attention(trace, request, layer=0, head=0)
    table = view.table()
    assert sorted(table["query"].unique()) == list(range(12, 28))
    assert sorted(table[table.key_from_cache].key.unique()) == list(range(12))
    strip = [m for m in view.scene.marks if isinstance(m, Rect) and m.hatch and "key" in m.tip]
    assert len(strip) == 12
    assert "keys 0-11 were served from cache; their queries were not computed" in view.text
    assert "queries 0-11: served from cache, not computed" in view.svg
    check_picture(view)


def test_a_sink_takes_a_share_that_no_key_has():
    trace, request = looked("gpt_oss")
    view = attention(trace, request, layer=0)
    sums = trace.captured(request).attention.sel(layer=0).values.sum(axis=-1)
    short = int((np.abs(sums - 1) > 1e-3).sum())
    assert short > 0
    assert f"{short} of {sums.size} rows" in view.text


def test_two_seeded_runs_say_the_same_and_other_traces_something_else(whole, after_prefix):
    again = looked()
    for view in (attention, attention_heads, lens, hidden):
        one, other = view(whole[0], whole[1]), view(*again)
        assert (one.text, one.alt) == (other.text, other.alt)
        assert one.svg != view(*after_prefix).svg


def test_chosen_queries_are_the_rows(whole):
    trace, request = whole
    view = attention(trace, request, head=3, queries=[3, 9, 17], selected=9)
    assert view.table()["query"].unique().tolist() == [3, 9, 17]
    assert grid(view).values.shape == (3, 18)
    assert [key["position"] for key in grid(view).row_keys] == [3, 9, 17]
    assert attention(trace, request, queries=slice(20, None)).table()["query"].unique().tolist() == list(range(20, 28))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 7}, "choose one of 0-1"),
        ({"layer": "0"}, "choose one of 0-1"),
        ({"head": 4}, "choose one of 0-3"),
        ({"queries": [2, 90]}, "choose from 0-27"),
        ({"selected": 40}, "choose one of 0-27"),
        ({"cells": 0}, "from 2 to"),
        ({"width": 10}, "from 480 to"),
        ({"shade": "log"}, "'weight' or 'root'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_what_could(whole, options, message):
    with pytest.raises(InvalidParameter, match=message):
        attention(whole[0], whole[1], **options)


def test_negative_layers_count_from_the_end(whole):
    trace, request = whole
    assert attention(trace, request, layer=-2).svg == attention(trace, request, layer=0).svg


FIELDS = [(attention, "attention"), (attention_heads, "attention"), (lens, "lens"), (hidden, "hidden")]


@pytest.mark.parametrize(("view", "field"), FIELDS)
def test_what_was_not_recorded_is_said(lab_trace, whole, view, field):
    for trace in (lab_trace, Trace([])):
        shown = view(trace)
        assert f"capture=Capture({field}=True)" in shown.text
        assert f"capture=Capture({field}=True)" in shown.svg
        check_picture(shown)
    assert "captures=True" in view(without_arrays(whole[0]), whole[1]).text
    with pytest.raises(UnknownRequest):
        view(lab_trace, "nobody")


def test_a_request_without_captures_points_at_those_that_have(after_prefix):
    trace, request = after_prefix
    both = Trace([*trace.events, RequestSubmitted(0, "other", None, 0, None, (1, 2), {})], arrays=trace.arrays)
    assert f"It was for: {request}." in attention(both, "other").text
    assert attention(both).title == attention(trace, request).title


@pytest.mark.parametrize("width", [480, 700, 960, 1400])
@pytest.mark.parametrize("view", [attention, attention_heads, lens, hidden])
def test_pictures_hold_hostile_text_and_every_width(after_prefix, view, width):
    trace, request = after_prefix
    check_picture(view(hostile(trace), request, width=width))


@pytest.mark.parametrize("view", [attention, lens, hidden])
def test_hostile_text_is_no_markup_in_a_figure(whole, view):
    figure = view(hostile(whole[0]), whole[1]).figure()
    assert "<script" not in figure.to_json().replace("\\u003c", "<")
    assert "\u202e" not in figure.to_json()


def test_repeated_tokens_keep_their_own_columns(whole):
    trace, request = whole
    same = Trace(trace.events, arrays=trace.arrays, pieces=dict.fromkeys(range(256), b" the"))
    drawn = attention(same, request, head=0).figure()
    assert len(drawn.data[0].z) == 28
    assert len(set(drawn.layout.xaxis.tickvals)) == len(drawn.layout.xaxis.tickvals) == 28


def test_a_long_sequence_is_pooled_small_and_fast():
    rng = np.random.default_rng(0)
    weights = np.tril(rng.random((2, 1_500, 1_500), dtype=np.float32)) ** 8
    weights /= weights.sum(axis=-1, keepdims=True)
    trace = made_by_hand("attention", ("head", "query", "key"), {0: weights, 5: weights[::-1].copy()}, (0, 1))
    start = perf_counter()
    views = [attention(trace, head=1, layer=0), attention_heads(trace)]
    assert perf_counter() - start < 5
    assert views[0].table().weight.max() == weights[1].max()
    for view in views:
        check_picture(view)


def test_a_saved_trace_gives_the_same_without_torch(whole, tmp_path):
    trace, request = whole
    path = trace.save(tmp_path / "looked.gz", captures=True)
    here = [view(trace, request) for view in (attention, attention_heads, lens, hidden)]
    assert replayed(path) == "".join(f"{view}\n{len(view.svg)}\n" for view in here)
