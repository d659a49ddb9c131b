"""The one writer of live panels: what it sends, how much, and that one bad panel stops no other."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from time import perf_counter_ns

import pytest
from ipywidgets.widgets.widget import Widget

from llmlab.trace.events import Gap, TextEmitted
from llmlab.trace.recorder import Recorder
from llmlab.widgets import Panel
from llmlab.widgets.budget import Budget
from llmlab.widgets.desk import Desk, desk_of
from llmlab.widgets.feed import LiveFeed
from llmlab.widgets.stream import Stream


class Clock:
    """Seconds that pass only when told."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def desk(monkeypatch):
    """A desk over an empty recorder whose pump has no thread and whose clock stands still."""
    made = Desk(Recorder(), LiveFeed(recorder := Recorder()))
    made.owner = recorder
    made.clock = Clock()
    made.pump.clock = made.clock
    made.pump.budget = Budget(clock=made.clock)
    monkeypatch.setattr(made.pump, "wake", lambda: None)
    yield made
    made.pump.close()


@pytest.fixture
def messages(monkeypatch):
    """Messages to the page, with their sizes."""
    sent: list[tuple[str, int]] = []
    monkeypatch.setattr(
        Widget, "_send", lambda self, msg, buffers=None: sent.append((msg["method"], size(msg, buffers)))
    )
    return sent


def size(message, buffers):
    return len(json.dumps(message, default=str)) + sum(len(b) for b in buffers or ())


def emit_text(desk, count, request="r0", text="word "):
    for number in range(count):
        desk.owner.emit(TextEmitted(perf_counter_ns(), number, request, text, number + 1))


def counting(name, grow=False, fail=False):
    """A view that counts how often it is drawn."""

    def view(trace, *, width=960):
        import pandas as pd

        from llmlab.views.scene import Rect, Scene
        from llmlab.views.view import View

        view.draws += 1
        if fail:
            raise ValueError("this view is broken")
        marks = tuple(Rect(i % 90, 1, 2, 3, tip=f"{i * 7919 % 1009} {i}") for i in range(len(trace) if grow else 1))
        return View(name, name, "alt", "text", Scene(width, 10, marks), pd.DataFrame())

    view.draws, view.__name__ = 0, name
    return view


def test_nothing_is_drawn_or_sent_while_nothing_happens(desk, messages):
    view = counting("still")
    Panel(view, desk)
    desk.pump.flush()
    messages.clear()
    for _ in range(5):
        assert desk.pump.tick() == 0
    assert view.draws == 1
    assert messages == []


def test_a_scene_that_did_not_change_is_not_sent_again(desk, messages):
    view = counting("still")
    Panel(view, desk)
    messages.clear()
    emit_text(desk, 3)
    assert desk.pump.tick() == 0
    assert view.draws == 2
    assert messages == []


def test_what_changed_goes_out_as_one_message(desk, messages):
    Panel(counting("growing", grow=True), desk)
    messages.clear()
    emit_text(desk, 3)
    desk.selection.pick({"step": 2})
    assert desk.pump.tick() == 1
    assert [method for method, _ in messages] == ["update"]


def test_an_invisible_panel_is_not_drawn_until_it_is_seen_again(desk):
    view = counting("hidden", grow=True)
    panel = Panel(view, desk)
    panel.receive({"type": "visible", "view": "a", "visible": False})
    emit_text(desk, 3)
    desk.pump.tick()
    assert view.draws == 1
    panel.receive({"type": "visible", "view": "a", "visible": True})
    assert desk.pump.tick() == 1
    assert view.draws == 2


def test_one_of_two_views_of_a_panel_is_enough_to_draw_it(desk):
    panel = Panel(counting("twice"), desk)
    panel.receive({"type": "visible", "view": "a", "visible": False})
    panel.receive({"type": "visible", "view": "b", "visible": True})
    assert panel.is_visible


def test_a_broken_view_shows_its_error_and_stops_no_other(desk):
    good = counting("good", grow=True)
    broken, fine = Panel(counting("bad", fail=True), desk), Panel(good, desk)
    emit_text(desk, 2)
    desk.pump.flush()
    assert broken.widget.status["error"] == "ValueError: this view is broken"
    assert fine.widget.status["error"] == ""
    assert good.draws == 2


def test_lost_events_are_counted_in_the_status_line(desk):
    panel = Panel(counting("lossy"), desk)
    desk.owner.emit(Gap(perf_counter_ns(), 42))
    desk.pump.flush()
    assert panel.widget.status["lost"] == 42


def test_a_flood_stays_within_messages_and_bytes_and_every_panel_has_its_turn(desk, messages):
    panels = [Panel(counting(f"panel{i}", grow=True), desk, key=f"{i}") for i in range(6)]
    messages.clear()
    turns = Counter()
    for panel in panels:
        send = panel.send
        panel.send = lambda panel=panel, send=send: (turns.update([panel.name]), send())
    seconds = 10
    for _ in range(seconds * 10):
        emit_text(desk, 50)  # 500 tokens a second
        desk.clock.now += 0.1
        desk.pump.tick()
    updates = [n for method, n in messages if method == "update"]
    assert 10 < len(updates) <= (seconds + 1) * 20
    assert sum(updates) <= (seconds + 3) * 200_000
    assert max(turns.values()) - min(turns.values()) <= 2, turns
    assert len(turns) == 6


def test_a_panel_without_room_to_send_is_not_drawn(desk):
    view = counting("large", grow=True)
    Panel(view, desk)
    desk.pump.budget.spend(10_000_000)
    for _ in range(5):
        emit_text(desk, 10)
        desk.pump.tick()
    assert view.draws == 1


def test_what_the_reader_did_is_shown_on_all_panels_at_once(desk):
    clock = iter(range(10_000))
    desk.pump.clock = lambda: next(clock) * 0.021  # drawing one panel takes a whole round
    views = [counting(f"panel{i}", grow=True) for i in range(4)]
    panels = [Panel(view, desk, key=view.__name__) for view in views]
    emit_text(desk, 3)
    desk.pump.tick()
    assert [view.draws for view in views] == [2, 1, 1, 1]
    panels[0].receive({"type": "pick", "key": {"step": 1}})
    desk.pump.tick()
    assert [view.draws for view in views] == [3, 2, 2, 2]


def test_after_a_flood_every_panel_shows_the_end(desk):
    panels = [Panel(counting(f"panel{i}", grow=True), desk, key=f"{i}") for i in range(4)]
    for _ in range(20):
        emit_text(desk, 100)
        desk.pump.tick()
    for _ in range(200):
        desk.clock.now += 0.1
        desk.pump.tick()
    for panel in panels:
        scene = json.loads(zlib.decompress(panel.widget.scene))
        assert len(scene["marks"]) == 2_000


def test_text_goes_out_as_additions_and_is_kept_whole(desk, messages):
    stream = Stream(desk)
    stream.expect("r0", "r0: hello")
    desk.pump.flush()
    messages.clear()
    for _ in range(20):
        emit_text(desk, 10)
        desk.pump.flush()
    assert stream.texts == {"r0": "word " * 200}
    assert stream.widget.parts[0]["text"] == "word " * 200
    assert len(messages) == 20
    assert max(size for _, size in messages) < 400


def test_text_of_other_requests_is_not_shown(desk):
    stream = Stream(desk)
    stream.expect("r1")
    emit_text(desk, 3, request="r0")
    desk.pump.flush()
    assert stream.texts == {"r1": ""}


def test_text_without_end_is_cut_and_says_so(desk):
    stream = Stream(desk)
    stream.expect("r0")
    emit_text(desk, 30, text="x" * 1_000)
    desk.pump.flush()
    assert len(stream.texts["r0"]) == 20_001
    assert stream.texts["r0"].endswith("…")


def test_the_thread_ends_when_nobody_looks(lab, view):
    panel = Panel(view, lab)
    pump = desk_of(lab).pump
    assert pump.is_running
    thread = pump._thread
    panel.receive({"type": "visible", "view": "a", "visible": False})
    thread.join(10)
    assert not pump.is_running
    panel.receive({"type": "visible", "view": "a", "visible": True})
    assert pump.is_running
    again = pump._thread
    panel.close()
    again.join(10)
    assert not pump.is_running


def test_updates_arrive_while_a_cell_blocks(lab, view):
    panel = Panel(view, lab)
    before = panel.widget.scene
    lab.ask("hello", max_tokens=5)
    import time

    end = time.monotonic() + 20
    while panel.widget.scene == before and time.monotonic() < end:
        time.sleep(0.01)
    assert panel.widget.scene != before
    panel.close()


def test_a_sink_that_cannot_be_painted_is_dropped_and_the_others_go_on(desk):
    gone, fine = Panel(counting("gone", grow=True), desk), Panel(counting("fine", grow=True), desk)

    def send():
        raise RuntimeError("comm is closed")

    gone.send = send
    emit_text(desk, 2)
    assert desk.pump.flush() == 1
    assert list(desk.pump.errors) == ["Panel: RuntimeError: comm is closed"]
    assert len(desk.pump) == 1
    assert fine.view is not None
