"""The axis of time: to scale but for its breaks, round ticks, durations as people write them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.views.scene import Rect, Text
from llmlab.views.timeaxis import BREAK_WIDTH, TimeAxis, duration, quiet_stretches

BOOT = 10**17  # clocks that count from the start of a machine are large


@pytest.mark.parametrize(
    ("ns", "written"),
    [
        (0, "0.00 µs"),
        (1_234, "1.23 µs"),
        (12_345, "12.3 µs"),
        (999_999, "1.00 ms"),
        (1.5e8, "150 ms"),
        (9e10, "90.0 s"),
    ],
)
def test_durations_have_three_digits_and_a_unit(ns, written):
    assert duration(ns) == written


@given(st.lists(st.integers(0, 10**10), min_size=2, max_size=20))
def test_later_is_never_left_of_earlier_and_nothing_leaves_the_axis(times):
    axis = TimeAxis(BOOT, BOOT + 10**9, 100, 700, ((BOOT + 10**8, BOOT + 5 * 10**8),))
    pixels = [axis.at(BOOT + t) for t in sorted(times)]
    assert pixels == sorted(pixels)
    assert 100 <= min(pixels) <= max(pixels) <= 800
    assert list(axis.of([BOOT + t for t in sorted(times)])) == pytest.approx(pixels)


def test_a_break_is_narrow_and_the_rest_is_to_scale():
    axis = TimeAxis(BOOT, BOOT + 1_000, 0, 100 + BREAK_WIDTH, ((BOOT + 400, BOOT + 900),))
    assert [axis.at(BOOT + t) for t in (0, 200, 400, 900, 1_000)] == [0, 40, 80, 80 + BREAK_WIDTH, 100 + BREAK_WIDTH]
    boxes = [mark for mark in axis.marks(10, 50) if isinstance(mark, Rect)]
    assert [box.tip for box in boxes] == ["nothing to do for 0.50 µs"]


@given(st.integers(1, 10**13), st.integers(200, 2_000))
def test_ticks_are_labelled_and_apart(span, width):
    labels = [mark for mark in TimeAxis(BOOT, BOOT + span, 0, width).marks(20, 100) if isinstance(mark, Text)]
    assert 1 <= len(labels) <= width / 20
    assert len({label.text for label in labels}) == len(labels)
    assert all(one.x < other.x for one, other in pairwise(labels))


def test_only_long_holes_between_what_is_busy_are_quiet():
    busy = [(0, 100), (50, 120), (125, 200), (5_000, 5_100)]
    assert quiet_stretches(busy) == ((200, 5_000),)
    assert quiet_stretches([]) == ()
