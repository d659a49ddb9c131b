"""Layers, heads and positions by number, list, slice, name or function; named arrays."""

from __future__ import annotations

import numpy as np
import pytest
from looking import GREEDY, model_of, prompt, served
from tiny_models import paged_engine

from llmlab.errors import InvalidParameter
from llmlab.probes import Capture, NamedArray
from llmlab.probes.filters import choose
from llmlab.probes.plan import Length, choose_positions


def names(i: int) -> list[str]:
    return [f"model.layers.{i}", f"blocks.{i}"]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, range(12)),
        (True, range(12)),
        (0, [0]),
        (-1, [11]),
        (np.int64(3), [3]),
        ([3, 1, -1], [1, 3, 11]),
        (range(2, 5), [2, 3, 4]),
        (slice(-2, None), [10, 11]),
        (slice(None, 6, 3), [0, 3]),
        (slice(50, None), []),
        ("model.layers.1", [1]),
        ("blocks.1*", [1, 10, 11]),
        (["blocks.0", 4], [0, 4]),
        (lambda i: i % 5 == 0, [0, 5, 10]),
        ([], []),
    ],
)
def test_every_kind_of_filter(wanted, expected):
    assert choose("layers", wanted, 12, names=names) == tuple(expected)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (12, "there are 12, 0 to 11"),
        (-13, "does not exist"),
        ("layers.1", "fits no name: the first are called 'model.layers.0' or 'blocks.0'"),
        (1.5, "is no filter"),
        ([1, "x"], "fits no name"),
        (slice(None, None, -1), "positive step"),
        (slice("a", None), "slice of integers"),
        (False, "is no filter"),
    ],
)
def test_a_filter_that_fits_nothing_is_refused(wanted, message):
    with pytest.raises(InvalidParameter, match=message):
        choose("layers", wanted, 12, names=names)


def test_heads_have_no_names():
    with pytest.raises(InvalidParameter, match="only numbers"):
        choose("heads", "head.1", 4)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (-1, [4]),
        ("prompt", range(5)),
        ("output", range(5, 8)),
        (slice(-2, None), range(3, 8)),
        (slice(None, -3), range(2)),
        (7, [7]),
    ],
)
def test_negative_positions_count_from_the_end_of_the_prompt(wanted, expected):
    assert choose_positions(wanted, Length(5, 8, False)) == tuple(expected)


def test_a_position_that_is_never_computed_is_refused():
    for wanted in (8, -6, "last"):
        with pytest.raises(InvalidParameter, match="positions="):
            choose_positions(wanted, Length(5, 8, False))


@pytest.mark.parametrize(
    ("model", "capture", "kind"),
    [
        ("llama", {"attention": "blocks.1.attn.hook_pattern"}, "attention"),
        ("llama", {"scores": "blocks.1.attn.hook_attn_scores"}, "scores"),
        ("llama", {"qkv": "blocks.1.attn.hook_q"}, "query"),
        ("llama", {"hidden": "blocks.1.hook_resid_post"}, "hidden"),
        ("llama", {"hidden": "model.layers.1"}, "hidden"),
        ("llama", {"attention": "model.layers.1.self_attn"}, "attention"),
        ("llama", {"lens": True, "layers": "blocks.1"}, "lens_top"),
        ("gpt2", {"hidden": True, "layers": "transformer.h.1"}, "hidden"),
        ("gpt2", {"hidden": lambda i: i == 1}, "hidden"),
    ],
)
def test_layers_go_by_hugging_face_and_transformer_lens_names(model, capture, kind):
    captured = served(model_of(model), "whole", Capture(**capture)).captured
    assert captured.array(kind).labels["layer"] == (1,)


def test_a_name_of_another_kind_is_refused_with_the_right_ones():
    with pytest.raises(InvalidParameter, match="hook_pattern"):
        paged_engine(model_of("llama")).submit(prompt(), GREEDY, capture=Capture(attention="blocks.1.hook_resid_post"))


# -- named arrays ---------------------------------------------------------------------------------------------


@pytest.fixture
def array():
    values = np.arange(12, dtype=np.float32).reshape(2, 3, 2)
    values[0, 0, 0] = np.nan
    return NamedArray(
        "hidden", ("layer", "position", "width"), {"layer": (4, 9), "position": (0, 5, 7), "width": (0, 1)}, values
    )


def test_selecting_goes_by_label_and_by_name(array):
    assert array.sel(layer=9, position=5).values.tolist() == [8, 9]
    assert array.sel(position=[7, 0]).labels["position"] == (7, 0)
    assert array.sel(position=[7, 0]).values[1, :, 0].tolist() == [10, 6]
    assert repr(array) == "<hidden (layer=2, position=3, width=2) float32, 48 bytes>"
    assert np.asarray(array).shape == (2, 3, 2)
    for wrong, message in (({"head": 0}, "layer, position, width"), ({"layer": 0}, "it holds 4, 9")):
        with pytest.raises(InvalidParameter, match=message):
            array.sel(**wrong)


def test_the_table_has_a_row_per_number_that_was_recorded(array):
    table = array.frame()
    assert list(table) == ["layer", "position", "width", "hidden"]
    assert len(table) == 11
    assert table.iloc[-1].tolist() == [9, 7, 1, 11]


def test_summaries_are_small_and_say_how_exact_they_are(array):
    small = array.summary("uint8")
    assert (small.nbytes, small.codes.dtype) == (12, np.uint8)
    error = np.abs(small.restored() - array.values)
    assert np.nanmax(error) <= small.step / 2 + 1e-6
    assert array.summary("float16").restored()[1, 2, 1] == 11
    constant = NamedArray("x", ("width",), {"width": (0, 1)}, np.full(2, 3.0, np.float32))
    assert constant.summary().restored().tolist() == [3, 3]
    hidden = NamedArray("scores", ("key",), {"key": (0, 1, 2)}, np.array([0, 1, -np.inf], np.float32))
    assert hidden.summary().restored().tolist() == [0, 1, 0]
    with pytest.raises(InvalidParameter, match="uint8"):
        array.summary("int4")
