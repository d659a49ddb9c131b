"""Walking tiles ends at the row that a whole softmax gives."""

from __future__ import annotations

import numpy as np
import pytest
from looking import model_of, served

from llmlab.errors import InvalidParameter
from llmlab.probes import Capture, online_softmax_walk

RNG = np.random.default_rng(0)
SCORES, VALUES = RNG.normal(0, 30, 37), RNG.normal(size=(37, 5))


def softmax_output(scores, values, sink=None):
    everything = scores if sink is None else np.append(scores, sink)
    weights = np.exp(everything - everything.max())
    return (weights / weights.sum())[: len(values)] @ values


@pytest.mark.parametrize("tile", [1, 2, 5, 16, 36, 37, 100])
@pytest.mark.parametrize("sink", [None, 25.0])
def test_every_tile_size_ends_at_the_same_row(tile, sink):
    steps = list(online_softmax_walk(SCORES, VALUES, tile, sink))
    assert [step.start for step in steps] == list(range(0, 37, tile))
    for step in steps:
        seen = slice(step.end)
        np.testing.assert_allclose(step.output, softmax_output(SCORES[seen], VALUES[seen], sink), atol=1e-12)
    assert steps[-1].maximum == max(SCORES.max(), sink or -np.inf)
    total = np.exp(SCORES - steps[-1].maximum).sum() + (0 if sink is None else np.exp(sink - steps[-1].maximum))
    assert steps[-1].total == pytest.approx(total)


def test_tiles_that_are_hidden_add_nothing():
    scores = np.concatenate((np.full(8, -np.inf), SCORES[:5], np.full(8, -np.inf)))
    steps = list(online_softmax_walk(scores, VALUES[:21], 4))
    assert steps[0].total == 0
    assert not steps[0].output.any()
    np.testing.assert_allclose(steps[-1].output, softmax_output(SCORES[:5], VALUES[8:13]), atol=1e-12)


@pytest.mark.parametrize("query", [0, 9, 25])
def test_a_captured_head_walks_to_its_weighted_values(query):
    captured = served(model_of("llama"), "chunked", Capture(attention=True, scores=True, qkv=True)).captured
    for head in range(4):
        values = captured.value.sel(layer=1, kv_head=head // 2).values
        scores = captured.scores.sel(layer=1, head=head, query=query).values
        weights = captured.attention.sel(layer=1, head=head, query=query).values
        *_, last = online_softmax_walk(scores, values, 7)
        np.testing.assert_allclose(last.output, weights @ values, atol=1e-5)


@pytest.mark.parametrize(("scores", "values", "tile"), [(SCORES[:3], VALUES, 2), (SCORES, VALUES, 0), (1.0, VALUES, 1)])
def test_what_cannot_be_walked_is_refused(scores, values, tile):
    with pytest.raises(InvalidParameter, match="must be"):
        online_softmax_walk(scores, values, tile)
