"""A view as a panel: what it draws from, what it follows, and how it comes and goes."""

from __future__ import annotations

import json
import zlib
from xml.etree.ElementTree import canonicalize

import pytest
from ipywidgets.widgets.widget import _instances

import llmlab
from llmlab.errors import InvalidParameter
from llmlab.widgets import Panel, registry
from llmlab.widgets import panel as panel_module
from llmlab.widgets import shown as shown_module


def title_and_marks(panel):
    scene = json.loads(zlib.decompress(panel.widget.scene))
    return scene["title"], len(scene["marks"])


def test_live_and_recorded_are_drawn_by_the_same_code(lab, view):
    lab.ask("hello", max_tokens=6)
    live, replay = Panel(view, lab), Panel(view, lab.trace)
    assert live.widget.scene == replay.widget.scene
    assert title_and_marks(live)[1] == len(view(lab.trace).scene.marks)


@pytest.mark.parametrize("source", [lambda lab: lab, lambda lab: lab.engine, lambda lab: lab.engine.recorder])
def test_lab_engine_and_recorder_share_one_pump(lab, view, source):
    assert Panel(view, source(lab)).desk is Panel(view, lab).desk


def test_a_source_that_is_none_is_refused(view):
    with pytest.raises(InvalidParameter, match="give a lab"):
        Panel(view, "lab")


def test_a_view_that_is_none_is_refused(lab):
    with pytest.raises(InvalidParameter, match="no view"):
        Panel("no_such_view", lab)


def test_an_argument_the_view_does_not_take_is_refused(lab, view):
    with pytest.raises(InvalidParameter, match="takes no colour="):
        Panel(view, lab, colour="red")


def test_a_view_can_be_named(recorded):
    assert Panel("block_map", recorded).name == "block_map"


def test_the_selection_becomes_the_views_arguments(recorded, view):
    panel = Panel(view, recorded)
    panel.receive({"type": "pick", "key": {"request": "r1", "draft": 3}})
    panel.desk.pump.flush()
    assert panel.view.text.endswith("chosen: r1")
    assert panel.widget.selection == {"request": "r1"}
    panel.receive({"type": "clear"})
    panel.desk.pump.flush()
    assert panel.view.text.endswith("chosen: None")


def test_an_argument_given_is_not_overruled_by_the_selection(recorded, view):
    panel = Panel(view, recorded, request_id="r0")
    panel.selection.pick({"request": "r1"})
    panel.desk.pump.flush()
    assert panel.view.text.endswith("chosen: r0")


def test_what_the_view_cannot_show_is_said_and_the_rest_is_drawn(recorded):
    panel = Panel("block_map", recorded)
    panel.selection.pick({"step": 10_000})
    panel.desk.pump.flush()
    assert "the selection is not shown here" in panel.widget.status["error"]
    assert "10000" in panel.widget.status["error"]
    panel.selection.pick({"step": 1})
    panel.desk.pump.flush()
    assert panel.widget.status["error"] == ""
    panel.selection.clear()


def test_nonsense_from_the_page_changes_nothing(recorded, view):
    panel = Panel(view, recorded)
    for message in (
        None,
        3,
        {},
        {"type": "pick"},
        {"type": "pick", "key": {"step": "x"}},
        {"type": "width", "width": "9"},
    ):
        panel.receive(message)
    panel.desk.pump.flush()
    assert panel.widget.selection == {}
    assert panel.widget.status["error"] == ""


def test_the_width_of_the_page_is_drawn_for_within_bounds(recorded, view):
    panel = Panel(view, recorded)
    for asked, drawn in ((700, 700), (10, 480), (9_000, 1400)):
        panel.receive({"type": "width", "width": asked})
        panel.desk.pump.flush()
        assert panel.view.scene.width == drawn


def test_a_hidden_past_step_is_drawn_as_it_stood(lab, view):
    lab.ask("hello", max_tokens=6)
    panel = Panel(view, lab)
    panel.desk.feed.seek(2)
    panel.desk.pump.flush()
    assert panel.view.text.startswith("3 steps")
    assert panel.widget.status["state"] == "step 2"
    with pytest.raises(InvalidParameter, match="choose 0 to"):
        panel.desk.feed.seek(99)


def test_running_a_cell_again_leaks_no_widget(lab, view):
    Panel(view, lab).widget.layout.width = "1px"
    before = len(_instances)
    for _ in range(20):
        Panel(view, lab)
    assert len(_instances) == before
    assert len(lab.engine.recorder._llmlab_desk.pump) == 1


def test_an_earlier_run_of_a_cell_is_replaced_and_other_cells_stay(lab, view, monkeypatch):
    place = ["cell 1", "run 1"]
    monkeypatch.setattr(panel_module, "running_cell", lambda: tuple(place))
    first, second = Panel(view, lab), Panel(view, lab)
    place[:] = ["cell 2", "run 2"]
    other = Panel(view, lab)
    place[:] = ["cell 1", "run 3"]
    again = Panel(view, lab)
    assert [panel.is_closed for panel in (first, second, other, again)] == [True, True, False, False]
    for panel in (other, again):
        panel.close()


def test_closing_frees_every_widget_and_may_be_done_twice(lab, view):
    before = len(_instances)
    panel = Panel(view, lab)
    panel.close()
    panel.close()
    assert len(_instances) == before
    assert registry.registry_for(lab.engine.recorder).keys == {}


def test_the_text_of_a_panel_has_no_ids(lab, view):
    assert repr(Panel(view, lab)) == "Panel('steps_view')"


def test_freezing_puts_the_picture_into_the_same_output(lab, view, monkeypatch):
    shown, updated = [], []
    monkeypatch.setattr(shown_module, "display", lambda bundle, raw, display_id: shown.append((bundle, display_id)))
    monkeypatch.setattr(
        shown_module, "update_display", lambda picture, display_id: updated.append((picture, display_id))
    )
    lab.ask("hello", max_tokens=3)
    panel = Panel(view, lab)
    panel._ipython_display_()
    panel.freeze()
    assert shown[0][0]["text/plain"] == "Panel('steps_view')"
    assert shown[0][1] == updated[0][1]
    assert canonicalize(updated[0][0].data) == canonicalize(view(lab.trace).svg)
    assert panel.is_closed


async def test_watching_paints_from_within_the_cell(lab, view, monkeypatch):
    monkeypatch.setattr("llmlab.widgets.pump.Pump.wake", lambda self: None)
    panel = Panel(view, lab)
    lab.ask("hello", max_tokens=3)
    before = panel.widget.scene
    await panel.watch(0.01)
    assert panel.widget.scene != before
    assert not panel.desk.pump.is_running


def test_a_client_of_the_lab_shares_its_desk_and_its_engine(lab, view):
    with lab.client() as client:
        panel = Panel(view, client)
        assert panel.desk.engine is None
        assert Panel(view, lab, key="second").desk is panel.desk
        assert panel.desk.engine is lab.engine


def test_a_client_without_a_recorder_gets_one(view):
    with llmlab.connect("http://127.0.0.1:9") as client:
        panel = Panel(view, client)
        assert client.recorder is panel.desk.owner
        panel.close()


def test_the_window_knows_the_bytes_of_its_tokens(lab, view):
    run = lab.ask("hello", max_tokens=3)
    panel = Panel(view, lab)
    assert panel.desk.feed.trace().piece(run.token_ids[0]) == lab.trace.piece(run.token_ids[0]) is not None
