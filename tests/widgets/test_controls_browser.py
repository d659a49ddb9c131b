"""Slider, streamed text and the line of notices in a browser, without a kernel."""

from __future__ import annotations

import pytest

from llmlab.trace.events import TextEmitted, WireEvent
from llmlab.widgets.desk import desk_of
from llmlab.widgets.notice import Notice
from llmlab.widgets.scrub import Scrub
from llmlab.widgets.stream import Stream


@pytest.fixture
def slider(page, recorded):
    scrub = Scrub(desk_of(recorded))
    page.add(scrub.widget)
    yield page
    scrub.close()


def test_dragging_asks_for_a_step_and_the_end_button_for_the_end(slider, recorded):
    last = recorded.index.steps[-1].step
    label = slider.root().locator(".llmlab-scrub-label")
    assert label.inner_text() == f"step {last} of 0 to {last}"
    slider.root().locator("input").fill("3")
    slider.root().locator("button.llmlab-end").click()
    assert slider.sent(kind="seek") == [{"type": "seek", "step": 3}, {"type": "seek", "step": None}]


def test_the_slider_works_from_the_keyboard(slider, recorded):
    slider.root().locator("input").focus()
    slider.page.keyboard.press("ArrowLeft")
    assert slider.sent(kind="seek") == [{"type": "seek", "step": recorded.index.steps[-1].step - 1}]


def test_play_begins_again_at_the_end_and_goes_on_by_itself(slider):
    slider.root().locator("button.llmlab-play").click()
    slider.page.wait_for_function("models[0].sent.filter((m) => m.type === 'seek').length >= 3")
    slider.root().locator("button.llmlab-play").click()
    steps = [message["step"] for message in slider.sent(kind="seek")]
    assert steps == list(range(len(steps)))
    assert slider.root().locator("button.llmlab-play").inner_text() == "▶ play"


def test_a_slider_without_steps_is_off(page):
    from llmlab.trace import Trace

    scrub = Scrub(desk_of(Trace([])))
    page.add(scrub.widget)
    assert page.root().locator("input").is_disabled()
    assert page.root().locator(".llmlab-scrub-label").inner_text() == "no step yet"
    scrub.close()


@pytest.fixture
def stream(page, lab):
    made = Stream(desk_of(lab))
    made.expect("r0", "r0: <b>bold</b>")
    made.note([TextEmitted(0, 0, "r0", "<img src=x>", 1)])
    made.send()
    page.add(made.widget)
    yield made
    made.close()


def test_streamed_text_is_never_markup_and_additions_are_appended(page, stream):
    text = page.root().locator(".llmlab-part-text")
    assert text.inner_text() == "<img src=x>"
    assert page.root().locator(".llmlab-part-name").inner_text() == "r0: <b>bold</b>"
    page.page.evaluate("models[0].tell({type: 'add', parts: [{id: 'r0', name: 'r0 · length', text: ' and more'}]})")
    assert text.inner_text() == "<img src=x> and more"
    assert page.root().locator(".llmlab-part-name").inner_text() == "r0 · length"
    assert page.root().get_attribute("data-characters") == str(len("<img src=x> and more"))
    assert page.errors == []


def test_a_page_that_reloads_gets_the_whole_text(page, stream):
    page.add(stream.widget)
    assert page.root(1).locator(".llmlab-part-text").inner_text() == "<img src=x>"


def test_an_error_is_marked_by_more_than_its_colour(page, lab):
    notice = Notice(desk_of(lab))
    page.add(notice.widget)
    page.set(state={"text": "the pool has 8", "error": True})
    assert page.root().inner_text() == "⚠ the pool has 8"
    assert page.root().get_attribute("role") == "status"
    notice.close()


def test_half_a_surrogate_pair_does_not_end_the_stream(lab):
    stream = Stream(desk_of(lab))
    stream.expect("c", shows_deltas=True)
    stream.note([WireEvent(0, "c", "client", "delta", "received", 3, "text", half) for half in ("a\ud83d", "\ude00b")])
    stream.texts["c"].encode()
    assert stream.texts["c"] == "a\ufffd\ufffdb"
    stream.close()
