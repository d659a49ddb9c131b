"""The view of a server's metrics draws what was read, as differences where they are counters."""

from __future__ import annotations

import math

import numpy as np
import pytest

from llmlab.errors import InvalidParameter
from llmlab.trace.readings import HITS, KV_USAGE, OUTPUT_TOKENS, QUERIES, RUNNING, WAITING, Reading
from llmlab.views.glyphs import text_width
from llmlab.views.scene import Line, Rect, Text
from llmlab.views.server_metrics import server_metrics

SECOND = 1_000_000_000


def reading(second: float, running=1, output=0, queries=0, hits=0, ttft=(), source="http://h/metrics") -> Reading:
    values = {RUNNING: running, WAITING: 0, KV_USAGE: 0.5, OUTPUT_TOKENS: output, QUERIES: queries, HITS: hits}
    return Reading(int(second * SECOND), source, values, ttft)


def three() -> list[Reading]:
    first = ((0.1, 2.0), (0.5, 3.0), (math.inf, 3.0))
    last = ((0.1, 3.0), (0.5, 8.0), (math.inf, 9.0))
    return [
        reading(10, 1, 100, 50, 10, first),
        reading(12, 3, 140, 90, 40, first),
        reading(13, 2, 150, 90, 40, last),
    ]


def texts(view) -> list[str]:
    return [mark.text for mark in view.scene.marks if isinstance(mark, Text)]


def test_counters_become_what_was_added_between_two_readings():
    table = server_metrics(three()).table()
    np.testing.assert_allclose(table["output_tokens_per_s"], [np.nan, 20, 10])
    np.testing.assert_allclose(table["hit_share"], [np.nan, 0.75, np.nan])
    assert list(table["time_s"]) == [0, 2, 3]


def test_the_histogram_holds_the_requests_between_the_readings():
    view = server_metrics(three())
    bars = [m for m in view.scene.marks if isinstance(m, Rect) and "first tokens after" in m.tip]
    assert [int(bar.tip.split()[0]) for bar in bars] == [1, 4, 1]
    assert "6 first tokens" in texts(view)
    assert "first tokens: 6 in" in view.text


def test_of_one_reading_the_histogram_is_that_of_the_servers_life():
    view = server_metrics(three()[:1])
    assert "3 first tokens" in texts(view)
    assert "needs two readings" in texts(view)


def test_the_text_holds_no_time_and_is_that_of_equal_counts():
    later = [Reading(r.t_ns * 3, r.source, r.values, r.ttft) for r in three()]
    assert server_metrics(three()).text == server_metrics(later).text
    assert server_metrics(three()).svg != server_metrics(later).svg
    assert "50 of them between the readings" in server_metrics(three()).text


def test_a_server_that_began_again_leaves_a_gap_and_says_so():
    view = server_metrics([*three(), reading(14, 1, 5), reading(15, 1, 8)])
    assert "began again" in " ".join(view.notes)
    assert np.isnan(view.table()["output_tokens_per_s"].iloc[3])


def test_what_the_server_does_not_tell_is_absent_and_not_0():
    view = server_metrics([Reading(1, "s", {RUNNING: 2.0}), Reading(2, "s", {RUNNING: 3.0})])
    assert "not told by the server: waiting, kv_usage" in view.text
    assert texts(view).count("not told") == 4
    assert view.table()["waiting"].isna().all()


def test_a_counter_that_appeared_later_is_not_said_to_have_been_0():
    view = server_metrics(
        [Reading(1, "s", {}), Reading(2, "s", {OUTPUT_TOKENS: 9.0}), Reading(3, "s", {OUTPUT_TOKENS: 12.0})]
    )
    assert "output tokens: 9" not in view.text
    assert "output tokens: 12 since the server began\n" in view.text + "\n"


def test_no_reading_says_how_to_make_one():
    view = server_metrics([])
    assert "scrape(url)" in view.text
    assert any("scrape(url)" in text for text in texts(view))


def test_readings_out_of_order_or_of_two_servers_are_refused():
    with pytest.raises(InvalidParameter, match="order"):
        server_metrics(three()[::-1])
    with pytest.raises(InvalidParameter, match="2 servers"):
        server_metrics([reading(1), reading(2, source="other")])


def test_many_readings_are_windowed_and_drawn_small():
    many = [reading(i, i % 7, 3 * i, 10 * i, 4 * i) for i in range(5_000)]
    view = server_metrics(many)
    assert "4,400 earlier ones left out" in " ".join(view.notes)
    assert len(view.svg) < 64_000
    assert sum(isinstance(mark, Line) for mark in view.scene.marks) > 5


@pytest.mark.parametrize("width", [480, 960])
def test_hostile_numbers_and_names_stay_inside(width):
    huge = [
        Reading(
            i + 1, "<script>\u202e", {RUNNING: 10.0**300, KV_USAGE: 7.0, OUTPUT_TOKENS: 1e18 * i}, ((math.inf, 1e18),)
        )
        for i in range(3)
    ]
    view = server_metrics(huge, width=width)
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text
    for mark in view.scene.marks:
        if isinstance(mark, Rect):
            assert mark.x >= 0
            assert mark.x + mark.w <= width
            assert mark.y >= 0
        if isinstance(mark, Line):
            assert all(0 <= x <= width and 0 <= y <= view.scene.height for x, y in mark.points)
        if isinstance(mark, Text) and mark.anchor == "start":
            assert mark.x + text_width(mark.text, mark.size) <= width + 1


def test_the_figure_has_a_row_for_what_is_told():
    assert len(server_metrics(three()).figure().data) == 5
