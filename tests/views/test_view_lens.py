"""The lens table: its last row is the model's own answer, and nothing is shown that was not recorded."""

from __future__ import annotations

import numpy as np
import pytest
from captured_runs import check_picture, looked, made_by_hand

from llmlab.errors import InvalidParameter
from llmlab.probes import Capture
from llmlab.trace.trace import Trace
from llmlab.views import lens
from llmlab.views.choose import token_label
from llmlab.views.lens_scene import STRENGTH
from llmlab.views.scene import Grid, Rect, Text

TARGET = 65


@pytest.fixture(scope="module")
def whole():
    return looked(capture=Capture(lens=True, targets=[TARGET]))


def test_the_last_row_is_what_greedy_decoding_chose(whole):
    trace, request = whole
    table = lens(trace, request, positions=slice(22, None)).table()
    last = table[table.layer == 1]
    chosen = [token.token_id for token in trace.index.tokens if token.request_id == request]
    assert len(chosen) == 6
    assert last.token_id.tolist() == chosen
    assert last.agrees_with_last.all()
    assert np.allclose(last.kl_nats, 0)


def test_numbers_are_those_of_the_capture(whole):
    trace, request = whole
    table = lens(trace, request).table()
    recorded = trace.captured(request).lens.frame()
    both = table.merge(recorded, on=["layer", "position"])
    assert len(both) == len(table) == 2 * 12
    np.testing.assert_array_equal(both.token_id, both.lens_top)
    np.testing.assert_allclose(both.probability, np.exp(both.lens_top_logprob), rtol=1e-6)
    np.testing.assert_allclose(both.entropy_nats, both.lens_entropy, rtol=1e-6)
    np.testing.assert_allclose(both.kl_nats, both.lens_kl, rtol=1e-6)


def test_shades_are_half_of_the_probabilities_and_words_the_tokens(whole):
    trace, request = whole
    view = lens(trace, request)
    grid = next(mark for mark in view.scene.marks if isinstance(mark, Grid) and mark.row_keys)
    table = view.table()
    np.testing.assert_allclose(grid.values.ravel(), STRENGTH * table.probability)
    texts = [m for m in view.scene.marks if isinstance(m, Text) and m.tip and "layer" in m.key]
    words = {(m.key["layer"], m.key["position"]): m.text for m in texts}
    for row in table.itertuples():
        assert words[row.layer, row.position][:3] == token_label(trace, row.token_id)[:3]


def test_first_agreement_is_outlined_and_written(whole):
    trace, request = whole
    view = lens(trace, request)
    table = view.table()
    first = table[table.first_agreement].set_index("position").layer
    outlines = [m for m in view.scene.marks if isinstance(m, Rect) and m.stroke == "ink"]
    assert len(outlines) == len(first) + 1  # one more is in the legend
    for position, layer in first.items():
        rows = table[table.position == position].set_index("layer")
        assert rows.agrees_with_last[layer]
        assert not rows.agrees_with_last[: layer - 1].any()
        assert f"after {position} " in view.text


@pytest.mark.parametrize("statistic", ["entropy", "kl", "rank"])
def test_other_statistics_colour_and_fill_the_cells(whole, statistic):
    trace, request = whole
    view = lens(trace, request, statistic=statistic)
    assert view.svg != lens(trace, request).svg
    assert view.svg != lens(looked(situation="prefix hit")[0], statistic=statistic).svg
    check_picture(view)


def test_rank_is_the_targets_or_that_of_the_last_layers_choice(whole):
    trace, request = whole
    ranks = trace.captured(request).lens.rank.sel(target=TARGET)
    for row in lens(trace, request, statistic="rank").table().itertuples():
        assert row.rank == str(ranks.sel(layer=row.layer, position=row.position).values)
    untargeted = lens(*looked(capture=Capture(lens=True, top=3)), statistic="rank").table()
    assert set(untargeted[untargeted.layer == 1]["rank"]) == {"0"}
    assert set(untargeted["rank"]) <= {"0", "1", "2", ">2"}
    with pytest.raises(InvalidParameter, match="was not recorded"):
        lens(trace, request, statistic="rank", target=3)


def test_positions_from_the_cache_have_no_column():
    trace, request = looked(situation="prefix hit", capture=Capture(lens=True))
    view = lens(trace, request)
    assert view.table().position.min() >= 12
    assert "Positions 0-11 have no column: served from cache, not computed." in view.notes
    with pytest.raises(InvalidParameter, match="choose from 12-27"):
        lens(trace, request, positions=[3])


def test_without_the_last_layer_no_agreement_is_claimed():
    trace, request = looked(capture=Capture(lens=[0]))
    view = lens(trace, request)
    assert "the model's last layer was not recorded" in view.text
    assert "agrees_with_last" not in view.table()
    assert not [m for m in view.scene.marks if isinstance(m, Rect) and m.width > 1]
    check_picture(view)


def test_a_statistic_that_is_none_is_refused(whole):
    with pytest.raises(InvalidParameter, match="choose one of token, entropy, kl, rank"):
        lens(whole[0], whole[1], statistic="logits")


def test_a_figure_has_every_cell_and_the_kept_tokens(whole):
    trace, request = whole
    figure = lens(trace, request).figure()
    assert np.array(figure.data[0].z).shape == (2, 12)
    assert figure.data[0].customdata[0][0].count(",") >= 4


def test_many_layers_and_positions_are_thinned_and_said():
    rng = np.random.default_rng(2)
    shape = (70, 3_000)
    kinds = {
        "lens_top": rng.integers(0, 90, (*shape, 5)).astype(np.int32),
        "lens_top_logprob": -rng.random((*shape, 5), dtype=np.float32),
        "lens_entropy": rng.random(shape, dtype=np.float32),
        "lens_kl": rng.random(shape, dtype=np.float32),
    }
    events, arrays = [], {}
    for kind, values in kinds.items():
        dims = ("position", "rank") if values.ndim == 3 else ("position",)
        part = made_by_hand(kind, dims, dict(enumerate(values)))
        events += part.events[0 if not events else 2 :]
        arrays |= part.arrays
    view = lens(Trace(events, arrays=arrays))
    drawn = next(mark for mark in view.scene.marks if isinstance(mark, Grid) and mark.row_keys)
    assert drawn.row_keys[-1]["layer"] == 69
    assert len(drawn.row_keys) <= 32
    assert drawn.column_keys[-1]["position"] == 2_999
    assert "2988 more" in str(view)
    assert "One layer in 3" in str(view)
    check_picture(view)


def test_a_lens_whose_arrays_are_not_all_there_is_refused(capture_trace):
    events = [e for e in capture_trace.events if getattr(e, "kind", "") != "lens_kl"]
    trace = Trace(events, arrays=capture_trace.arrays, pieces=capture_trace.pieces)
    assert trace.captured().lens is None
    with pytest.raises(InvalidParameter, match="not recorded whole"):
        lens(trace)
