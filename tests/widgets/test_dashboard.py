"""All panels on one page, the form that sends requests, and the step debugger."""

from __future__ import annotations

import pytest
from ipywidgets.widgets.widget import _instances

import llmlab
from llmlab.errors import InvalidParameter
from llmlab.widgets import dashboard, debugger, request_panel
from llmlab.widgets.board import FOLDED, MAIN
from llmlab.widgets.desk import desk_of
from llmlab.widgets.presets import PRESETS


@pytest.fixture
def running():
    """A lab whose engine has its thread."""
    with llmlab.open("mock", max_num_seqs=4) as opened:
        yield opened


@pytest.fixture
def form(lab):
    made = request_panel(lab)
    yield made
    made.close()


def send(form):
    form.send()
    form.worker.wait(120)


# -- dashboard ------------------------------------------------------------------------------------------------------


def test_a_recorded_trace_gets_all_panels_and_a_slider(recorded):
    board = dashboard(recorded)
    names = [*MAIN, *(name for _, views, *_ in FOLDED for name in views)]
    assert [panel.name for panel in board.panels] == names
    assert board.form is None
    assert all(panel.view is not None and panel.widget.status["error"] == "" for panel in board.panels)
    last = recorded.index.steps[-1].step
    assert board.scrub.widget.state == {"first": 0, "last": last, "now": None, "live": False}
    board.close()


def test_going_back_changes_every_panel_and_forward_again_restores_them(recorded):
    board = dashboard(recorded, ["block_map", "batch_lanes", "step_timeline"])
    before = [panel.widget.scene for panel in board.panels]
    board.scrub.receive({"type": "seek", "step": 2})
    board.desk.pump.flush()
    past = [panel.widget.scene for panel in board.panels]
    assert all(now != then for now, then in zip(past, before, strict=True))
    assert board["block_map"].view.title.endswith("step 2")
    board.scrub.receive({"type": "seek", "step": None})
    board.desk.pump.flush()
    assert [panel.widget.scene for panel in board.panels] == before
    board.close()


def test_a_click_on_one_panel_reaches_the_others(recorded):
    board = dashboard(recorded, ["token_strip", "waterfall"])
    board["token_strip"].receive({"type": "pick", "key": {"request": "r0"}})
    board.desk.pump.flush()
    assert "r0" in board["waterfall"].view.title
    board["waterfall"].receive({"type": "pick", "key": {"request": "r1"}})
    board.desk.pump.flush()
    assert "r1" in board["token_strip"].view.title
    board.close()


def test_a_step_that_is_not_there_is_ignored(recorded):
    board = dashboard(recorded, ["block_map"])
    board.scrub.receive({"type": "seek", "step": 10_000})
    assert board.desk.feed.until is None
    board.close()


def test_showing_a_dashboard_again_leaks_no_widget(lab):
    dashboard(lab)
    before = len(_instances)
    for _ in range(3):
        board = dashboard(lab)
    assert len(_instances) == before
    board.close()
    assert len(_instances) == 0 or not any(w.comm for w in _instances.values() if "llmlab" in type(w).__module__)


def test_closing_a_dashboard_frees_everything(recorded):
    before = len(_instances)
    dashboard(recorded).close()
    assert len(_instances) == before


def test_the_still_of_a_dashboard_holds_every_panel(recorded):
    board = dashboard(recorded, ["block_map", "token_strip"])
    picture = board.picture().data
    for panel in board.panels:
        assert panel.view.title in picture
    assert picture.count("<svg") == 3
    assert "<style" not in picture
    board.close()


def test_the_text_of_a_dashboard_has_no_ids(recorded):
    board = dashboard(recorded, ["block_map", "token_strip"])
    assert repr(board) == "Dashboard(block_map, token_strip)"
    board.close()


# -- the form -------------------------------------------------------------------------------------------------------


def test_the_text_of_a_request_is_shown_as_the_engine_emits_it(lab, form):
    form.prompt.value, form.max_tokens.value = "hello", 5
    send(form)
    lab.engine.step()
    form.desk.pump.flush()
    some = form.stream.texts["r0"]
    lab.engine.run_until_idle()
    form.desk.pump.flush()
    emitted = "".join(event.text for event in lab.trace.index.texts)
    assert form.stream.texts == {"r0": emitted}
    assert emitted.startswith(some)
    assert len(some) < len(emitted)
    assert form.selection.point.request == "r0"


def test_what_the_form_says_is_what_is_sent(lab, form):
    form.prompt.value, form.max_tokens.value, form.temperature.value = "hello", 7, 0.5
    form.top_p.value, form.top_k.value, form.seed.value, form.stop.value = 0.9, 5, "42", "END"
    send(form)
    params = lab.trace.index.submitted["r0"].params
    assert {name: params[name] for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")} == {
        "max_tokens": 7,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "seed": 42,
    }
    assert list(params["stop"]) == ["END"]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("seed", "many", "whole number"),
        ("temperature", -1.0, "temperature"),
        ("prompt", "", "empty"),
        ("top_p", 7.0, "top_p"),
    ],
)
def test_a_mistake_is_shown_and_nothing_is_sent(lab, form, field, value, said):
    getattr(form, field).value = value
    send(form)
    assert form.notice.state["error"]
    assert said in form.notice.state["text"]
    assert lab.trace.index.submitted == {}


def test_stop_ends_what_was_sent(lab, form):
    form.max_tokens.value = 500
    send(form)
    lab.engine.step()
    form.abort()
    lab.engine.run_until_idle()
    assert lab.trace.index.finished["r0"].stop_reason == "aborted"


@pytest.mark.parametrize("name", [preset.name for preset in PRESETS])
def test_every_preset_can_be_sent_as_it_is(running, name):
    form = request_panel(running)
    form.preset.value = name
    send(form)
    assert not form.notice.state["error"], form.notice.state
    running.engine.pause()
    running.engine.run_until_idle()
    chosen = next(preset for preset in PRESETS if preset.name == name)
    assert len(running.trace.index.finished) == len(chosen.prompts)
    if name == "many at once":
        assert "slots" in set(running.trace.schedule["reason"]) or any(
            d.action == "waited" for d in running.trace.index.decisions
        )
    if name == "a long prompt among short ones":
        lengths = [len(event.prompt_token_ids) for event in running.trace.index.submitted.values()]
        assert lengths[0] > 10 * max(lengths[1:])
    form.close()


def test_a_form_needs_a_lab(recorded):
    with pytest.raises(InvalidParameter, match="give a lab"):
        request_panel(recorded)


def test_over_the_wire_the_exchange_is_recorded_and_its_text_shown(running):
    form = request_panel(running)
    form.wire.value, form.max_tokens.value, form.seed.value = True, 5, "1"
    send(form)
    assert "no seed" in form.notice.state["text"], form.notice.state
    shown = wait_for(lambda: flushed(form) and running.trace.index.finished and form.stream.texts)
    emitted = "".join(event.text for event in running.trace.index.texts)
    assert list(shown.values()) == [emitted]
    assert len(running.trace.exchanges) == 1
    form.close()


def flushed(form):
    form.desk.pump.flush()
    return True


def wait_for(condition, seconds=60):
    import time

    end = time.monotonic() + seconds
    while not (result := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return result


# -- the debugger ---------------------------------------------------------------------------------------------------


def test_a_paused_engine_takes_the_steps_it_is_told_and_no_more(running):
    bugs = debugger(running, ["batch_lanes"])
    running.submit("hello", max_tokens=20)
    bugs.step()
    bugs.worker.wait(60)
    bugs.step(3)
    bugs.worker.wait(60)
    assert len(running.trace.index.steps) == 4
    assert bugs.selection.point.step == 3
    assert "paused · 1 running" in bugs.notice.state["text"]
    bugs.close()
    assert not running.engine.is_paused


def test_resumed_the_engine_finishes_by_itself(running):
    bugs = debugger(running, ["batch_lanes"])
    run = running.submit("hello", max_tokens=8)
    bugs.step()
    bugs.resume()
    bugs.worker.wait(60)
    assert run.wait(60).finished
    bugs.close()


def test_with_nothing_to_do_the_debugger_says_so(running):
    bugs = debugger(running, ["batch_lanes"])
    bugs.step(5)
    bugs.worker.wait(60)
    assert "0 steps taken; nothing is left to do" in bugs.notice.state["text"]
    bugs.close()


def test_recorded_steps_can_be_gone_back_to(running):
    bugs = debugger(running, ["block_map"])
    running.submit("hello there", max_tokens=40)
    bugs.step(30)
    bugs.worker.wait(60)
    bugs.desk.pump.flush()
    now = bugs.panels[0].view.title
    bugs.scrub.seek(2)
    bugs.desk.pump.flush()
    assert now.endswith("step 29")
    assert bugs.panels[0].view.title.endswith("step 2")
    bugs.close()


def test_a_trace_cannot_be_stepped(recorded):
    with pytest.raises(InvalidParameter, match="no engine to step"):
        debugger(recorded)


def test_an_engine_that_was_paused_before_stays_so(running):
    running.engine.pause()
    debugger(running, ["batch_lanes"]).close()
    assert running.engine.is_paused


def test_prompts_that_fit_are_sent_beside_one_that_does_not():
    with llmlab.open("mock", background=False, num_blocks=8) as lab:
        form = request_panel(lab)
        form.preset.value = "a long prompt among short ones"
        send(form)
        assert list(lab.trace.index.submitted) == ["r1", "r2", "r3", "r4"]
        assert "the pool has 8" in form.notice.state["text"]
        form.close()


def test_a_still_leaves_out_what_has_nothing_to_show(recorded):
    board = dashboard(recorded, ["block_map", "attention"])
    picture = board.picture().data
    assert board["block_map"].view.title in picture
    assert picture.count("<svg") == 2
    board.close()


def test_what_is_sent_together_arrives_before_the_same_step(running):
    form = request_panel(running)
    form.preset.value = "many at once"
    send(form)
    running.engine.pause()
    running.engine.run_until_idle()
    submitted = [event.t_ns for event in running.trace.index.submitted.values()]
    assert max(submitted) < running.trace.index.steps[0].t_ns
    assert not form.lab.engine.scheduler.waiting
    form.close()


def test_a_step_beyond_64_bits_is_not_recorded(recorded):
    with pytest.raises(InvalidParameter, match="is not recorded"):
        desk_of(recorded).feed.seek(10**30)
