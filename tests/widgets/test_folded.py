"""Groups of panels that open when there is something in them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from llmlab.trace.events import Captured, WireEvent
from llmlab.widgets import dashboard
from llmlab.widgets.folded import NEWS, Folded, on_the_main_thread

INSIDE, WIRE = 0, 1


@pytest.fixture
def board(lab):
    made = dashboard(lab)
    yield made
    made.close()


@pytest.fixture
def folded(board):
    return next(part for part in board._parts if isinstance(part, Folded))


def crossed(lab, kind="request"):
    lab.engine.recorder.emit(WireEvent(1, "a", "client", kind, "sent", 0, "POST /v1/messages", None))


def captured(lab):
    event = Captured(1, 0, "r0", "a0", "hidden", 0, ("position",), (1,), "float32", 4, (0,))
    lab.engine.recorder.emit(event)


def test_a_group_opens_with_the_first_event_of_its_kind(lab, board, folded):
    assert folded.accordion.selected_index is None
    lab.ask("nothing crosses a wire", max_tokens=2)
    board.desk.pump.flush()
    assert folded.accordion.selected_index is None
    crossed(lab)
    board.desk.pump.flush()
    assert folded.accordion.selected_index == WIRE


def test_what_the_reader_has_open_stays_and_the_heading_tells(lab, board, folded):
    folded.accordion.selected_index = WIRE
    captured(lab)
    board.desk.pump.flush()
    assert folded.accordion.selected_index == WIRE
    assert folded.accordion.titles == (f"Inside the model{NEWS}", "On the wire")


def test_a_group_that_was_closed_again_stays_closed(lab, board, folded):
    crossed(lab)
    board.desk.pump.flush()
    folded.accordion.selected_index = None
    crossed(lab)
    board.desk.pump.flush()
    assert folded.accordion.selected_index is None


def test_in_a_kernel_the_accordion_is_written_on_the_loop_that_the_page_is_served_by(monkeypatch):
    given = []
    kernel = SimpleNamespace(io_loop=SimpleNamespace(add_callback=given.append))
    monkeypatch.setattr("llmlab.widgets.folded.get_ipython", lambda: SimpleNamespace(kernel=kernel))
    done = []
    on_the_main_thread(lambda: done.append(1))
    assert done == []
    given[0]()
    assert done == [1]


def test_it_keeps_no_pump_running_and_goes_with_the_dashboard(lab, folded, board):
    assert not folded.is_visible
    before = len(board.desk.pump)
    board.close()
    assert len(board.desk.pump) == 0 < before
