"""Where routers sent tokens: the sums are those of the capture, and of as many tokens as were computed."""

from __future__ import annotations

import numpy as np
import pytest
from captured_runs import check_picture, hostile, looked, made_by_hand, without_arrays

from llmlab.errors import LabError
from llmlab.probes import Capture
from llmlab.views.expert_load import expected_experts, expert_load
from llmlab.views.scene import Text

ROUTER = Capture(router=True)


@pytest.fixture(scope="module")
def whole():
    return looked("mixtral", capture=ROUTER)


def test_tokens_per_expert_are_those_of_the_capture(whole):
    trace, request = whole
    table = expert_load(trace, request).table()
    chosen = trace.captured(request).router_experts.values
    layers, positions, top_k = chosen.shape
    for layer in range(layers):
        counted = np.bincount(chosen[layer].ravel().astype(int), minlength=4)
        assert table[table.layer == layer].tokens.tolist() == counted.tolist()
    assert table.tokens.sum() == layers * positions * top_k
    np.testing.assert_allclose(table.groupby("layer").share.sum(), top_k)


def test_the_drawn_experts_are_the_last_tokens_own(whole):
    trace, request = whole
    chosen = trace.captured(request).router_experts
    last = max(chosen.labels["position"])
    marks = [m for m in expert_load(trace, request).scene.marks if isinstance(m, Text)]
    drawn = [int(m.text) for m in marks if dict(m.key) == {"request": request, "layer": 1, "position": last}]
    assert drawn == chosen.sel(layer=1, position=last).values.tolist()


def test_positions_from_the_cache_are_not_counted():
    trace, request = looked("mixtral", "prefix hit", ROUTER)
    view = expert_load(trace, request)
    cached = trace.requests.set_index("request_id").num_cached_tokens[request]
    assert cached > 0
    assert f"Positions 0-{cached - 1} are not counted: served from cache, not computed." in view.notes
    assert view.table().tokens.sum() == 2 * 2 * len(trace.captured(request).router_experts.labels["position"])


def test_many_layers_and_experts_stay_readable():
    rng = np.random.default_rng(0)
    layers = {i: rng.integers(0, 256, (2_000, 8)) for i in range(58)}
    view = expert_load(made_by_hand("router_experts", ("position", "choice"), layers))
    assert view.table().tokens.sum() == 58 * 2_000 * 8
    check_picture(view)


def test_hostile_tokens_are_shown_and_not_obeyed(whole):
    trace, request = whole
    check_picture(expert_load(hostile(trace), request))


def test_without_numbers_it_says_how_to_keep_them(whole):
    trace, request = whole
    assert "captures=True" in expert_load(without_arrays(trace), request).text


@pytest.mark.parametrize(
    "values", [np.full((3, 2), 2**31 - 1, np.int32), np.full((3, 2), -1), np.full((3, 2), np.nan), np.zeros(3, int)]
)
def test_numbers_that_are_no_experts_are_refused_before_memory_is_taken_for_them(values):
    dims = ("position", "choice")[: values.ndim]
    with pytest.raises(LabError, match="not what a router chose"):
        expert_load(made_by_hand("router_experts", dims, {0: values}))


def test_a_width_that_cannot_be_drawn_is_refused(whole):
    with pytest.raises(LabError, match="width=10"):
        expert_load(whole[0], width=10)


def test_expected_experts_are_the_mean_of_even_draws():
    rng = np.random.default_rng(1)
    drawn = [len({e for _ in range(5) for e in rng.choice(8, 2, replace=False)}) for _ in range(4_000)]
    assert abs(np.mean(drawn) - expected_experts(8, 2, 5)) < 0.1
    assert expected_experts(8, 2, 1) == 2
