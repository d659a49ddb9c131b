"""The selection all panels share."""

from __future__ import annotations

import threading

import pytest

from llmlab.errors import InvalidParameter
from llmlab.widgets import Selection


def test_picking_adds_to_what_is_selected():
    selection = Selection(step=3)
    selection.pick({"layer": 2})
    assert selection.point.key() == {"step": 3, "layer": 2}


def test_another_request_leaves_behind_what_belonged_to_the_one_before():
    selection = Selection(request="a", position=7, block=2, layer=1)
    selection.pick({"request": "b"})
    assert selection.point.key() == {"request": "b", "layer": 1}


def test_the_same_request_keeps_its_position():
    selection = Selection(request="a", position=7)
    selection.pick({"request": "a", "step": 1})
    assert selection.point.position == 7


def test_observers_hear_of_changes_only():
    heard = []
    selection = Selection()
    selection.observe(heard.append)
    selection.pick({"step": 1})
    selection.pick({"step": 1})
    selection.unobserve(heard.append)
    assert [point.step for point in heard] == [1]
    assert selection.version == 1


def test_clear_selects_nothing():
    selection = Selection(step=1, request="a")
    selection.clear()
    assert selection.point.key() == {}


@pytest.mark.parametrize(
    "key", [{"colour": 1}, {"step": "1"}, {"step": 1.5}, {"step": True}, {"request": 3}, {"request": "x" * 500}]
)
def test_what_no_mark_can_have_is_refused(key):
    selection = Selection(step=2)
    with pytest.raises(InvalidParameter):
        selection.pick(key)
    assert selection.point.step == 2


def test_many_threads_may_pick():
    selection = Selection()

    def pick(field):
        for number in range(500):
            selection.pick({field: number})

    threads = [threading.Thread(target=pick, args=(field,)) for field in ("step", "layer", "head")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert selection.point.key() == {"step": 499, "layer": 499, "head": 499}
    assert selection.version == 3 * 500


def test_an_id_that_cannot_be_sent_to_a_page_is_refused():
    with pytest.raises(InvalidParameter, match="request"):
        Selection().pick({"request": "r\ud800"})
