"""A view as JSON for the canvas."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode

import numpy as np
import pandas as pd
import pytest

from llmlab.views.palette import DARK, LIGHT, contrast
from llmlab.views.scene import Grid, Line, Rect, Scene, Text
from llmlab.views.view import View
from llmlab.widgets.scene_json import MAX_BYTES, encode, palette_json, to_json


def view_of(*marks, title="T", notes=()):
    return View("v", title, "alt", "text", Scene(500, 100, marks), pd.DataFrame(), notes)


def test_every_kind_of_mark_is_written_with_its_key():
    scene = to_json(
        view_of(
            Rect(1, 2, 3, 4, "c0", "line", 2, hatch=True, dash=True, opacity=0.5, tip="r", key={"step": np.int64(7)}),
            Text(1, 2, "hi", 11, "muted", anchor="end", mono=True, bold=True, key={"step": 7}),
            Line(((0, 0), (1.25, 2)), dash=True),
            Grid(0, 0, 2, 2, np.array([[0, 1], [0.5, np.nan]]), row_keys=({"layer": 0}, {"layer": 1})),
        )
    )
    assert scene["keys"] == [{"step": 7}, {"layer": 0}, {"layer": 1}]
    rect, text, line, grid = scene["marks"]
    assert rect == ["r", 1, 2, 3, 4, "c0", "line", 2, 3, 0.5, "r", 1]
    assert text == ["t", 1, 2, "hi", 11, "muted", "", 2, 3, "", 1]
    assert line == ["l", [0, 0, 1.2, 2], "line", 1, 2]
    assert list(b64decode(grid[7])) == [0, 254, 127, 255]
    assert grid[5:7] == [2, 2]
    assert grid[9] == [2, 3]


def test_defaults_are_left_out():
    assert to_json(view_of(Rect(0, 0, 1, 1, "c0")))["marks"] == [["r", 0, 0, 1, 1, "c0"]]


@pytest.mark.parametrize("nasty", ["a\u202eb", "line\nbreak", "\x00", "\ud800", "\u200b"])
def test_text_cannot_break_its_line_or_its_direction(nasty):
    mark = Text(0, 10, nasty, tip=nasty)
    packed = encode(view_of(mark, Rect(0, 0, 1, 1, tip=nasty), title=nasty, notes=(nasty,)))
    text = zlib.decompress(packed).decode("utf-8")
    assert nasty not in text
    assert text.isprintable()


def test_the_same_view_gives_the_same_bytes():
    assert encode(view_of(Rect(0, 0, 1, 1))) == encode(view_of(Rect(0, 0, 1, 1)))
    assert encode(view_of(Rect(0, 0, 1, 1))) != encode(view_of(Rect(0, 0, 1, 2)))


def test_a_scene_that_is_too_large_loses_its_tips_and_keeps_its_marks():
    marks = [Rect(i, 0, 1, 1, tip=f"{i} " * 200) for i in range(5_000)]
    scene = json.loads(zlib.decompress(encode(view_of(*marks))))
    assert len(scene["marks"]) == 5_000
    assert len(json.dumps(scene)) < 2 * MAX_BYTES


def test_marks_that_do_not_fit_are_counted_in_a_note():
    marks = [Text(0, 0, f"{i}" + "x" * 190, key={"step": i}) for i in range(5_000)]
    text = zlib.decompress(encode(view_of(*marks))).decode()
    scene = json.loads(text)
    assert len(text) <= MAX_BYTES
    assert 0 < len(scene["marks"]) < 5_000
    assert f"{5_000 - len(scene['marks'])} marks are not drawn" in scene["notes"][-1]
    assert max(mark[-1] for mark in scene["marks"]) <= len(scene["keys"])


def test_no_cell_is_not_a_number():
    encode(view_of(Grid(0, 0, 1, 1, np.full((2, 2), np.nan))))


def test_text_on_every_colour_can_be_read():
    for name, colours in (("light", LIGHT), ("dark", DARK)):
        on = palette_json()[name]["on"]
        assert on.keys() == colours.keys()
        assert all(contrast(on[role], colour) >= 4.5 for role, colour in colours.items())


def test_half_a_surrogate_pair_in_an_id_survives():
    key = {"request": "r\ud800\\"}
    assert json.loads(zlib.decompress(encode(view_of(Rect(0, 0, 1, 1, key=key)))))["keys"] == [key]
