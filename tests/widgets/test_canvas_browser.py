"""The drawing code in a browser, without a kernel: a widget's front end that the test drives."""

from __future__ import annotations

import re

import pytest

from llmlab.views.palette import DARK, LIGHT, contrast
from llmlab.widgets import Panel


@pytest.fixture
def panel(view, recorded):
    made = Panel(view, recorded)
    yield made
    made.close()


@pytest.fixture
def shown(page, panel):
    page.add(panel.widget)
    page.wait_drawn()
    return page


COLOURS = """(name) => {
    const at = document.querySelector(".llmlab-" + name);
    const on = name === "tip" ? at : document.querySelector(".llmlab-panel");
    return [getComputedStyle(at).color, getComputedStyle(on).backgroundColor];
}"""


def as_hex(colour: str) -> str:
    return "#" + "".join(f"{int(number):02x}" for number in re.findall(r"\d+", colour)[:3])


def rgb(colour: str) -> list[int]:
    return [int(colour[i : i + 2], 16) for i in (1, 3, 5)]


def test_marks_are_drawn_in_the_colours_of_the_theme(shown, view, recorded):
    drawn = view(recorded, width=shown.canvas().bounding_box()["width"])
    assert shown.root().get_attribute("data-marks") == str(len(drawn.scene.marks))
    assert shown.pixel(5, 57)[:3] == rgb(LIGHT["c0"])  # the first step's bar
    assert shown.pixel(900, 150)[:3] == rgb(LIGHT["panel"])
    assert shown.pixel(340 + 150, 80 + 70)[:3] == rgb(LIGHT["mark"])  # the grid's last cell is full
    assert shown.errors == []


def test_title_note_and_description_are_text(shown, recorded):
    assert shown.root().locator(".llmlab-title").inner_text() == "Steps"
    assert shown.root().locator(".llmlab-note").inner_text() == "A note."
    assert f"{len(recorded.index.steps)} steps of 3 requests" in shown.canvas().get_attribute("aria-label")
    assert shown.canvas().get_attribute("role") == "img"


def test_hover_shows_the_tip_and_leaving_hides_it(shown):
    shown.point(5, 55)
    tip = shown.root().locator(".llmlab-tip")
    assert tip.inner_text() == "step 0: 3 rows"
    shown.page.mouse.move(1, 1)
    shown.settle()
    assert not tip.is_visible()


def test_a_tip_of_a_grids_cell_names_row_and_value(shown):
    shown.point(340 + 150, 80 + 70)
    assert shown.root().locator(".llmlab-tip").inner_text() == "layer · 100 %"


def test_a_click_keeps_what_is_under_it(shown):
    shown.point(5 + 14 * 3, 55, click=True)
    shown.page.wait_for_function("[...document.querySelectorAll('section')].some((one) => one.dataset.selection)")
    assert shown.sent(kind="pick") == [{"type": "pick", "key": {"step": 3}}]
    assert shown.root().get_attribute("data-selection") == '{"step":3}'
    assert "step 3" in shown.root().locator(".llmlab-hint").inner_text()


def test_the_selection_outlines_its_mark(shown):
    before = shown.area(38, 30, 20, 30)
    draws = shown.draws()
    shown.set(selection={"step": 3, "layer": 99})
    shown.wait_drawn(draws)
    assert shown.area(38, 30, 20, 30) != before


def test_keys_walk_keep_and_clear(shown):
    shown.canvas().focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft", "Enter"):
        shown.page.keyboard.press(key)
    assert shown.sent(kind="pick") == [{"type": "pick", "key": {"step": 0}}]
    shown.page.keyboard.press("Escape")
    assert shown.sent(kind="clear") == [{"type": "clear"}]
    assert shown.root().get_attribute("data-selection") == "{}"


def test_brackets_change_the_layer(shown):
    shown.set(selection={"layer": 1})
    shown.canvas().focus()
    shown.page.keyboard.press("]")
    assert shown.sent(kind="pick") == [{"type": "pick", "key": {"layer": 2}}]


def test_the_summary_is_announced(shown):
    shown.canvas().focus()
    summary = shown.root().locator("[aria-live=polite]")
    assert "steps of 3 requests" in summary.text_content()
    shown.page.keyboard.press("ArrowRight")
    assert summary.text_content() == "step 0: 3 rows"


@pytest.mark.parametrize(
    ("change", "light", "dark"),
    [
        ("document.body.dataset.jpThemeLight = VALUE", "'true'", "'false'"),
        ("document.body.className = VALUE", "'vscode-light'", "'vscode-dark'"),
    ],
)
def test_the_pages_theme_is_followed(shown, change, light, dark):
    for value, name, palette in ((dark, "dark", DARK), (light, "light", LIGHT)):
        draws = shown.draws()
        shown.page.evaluate(change.replace("VALUE", value))
        shown.wait_drawn(draws)
        assert shown.root().get_attribute("data-theme") == name
        assert shown.pixel(900, 150)[:3] == rgb(palette["panel"])


def test_without_a_notebook_the_systems_theme_is_followed(shown):
    draws = shown.draws()
    shown.page.emulate_media(color_scheme="dark")
    shown.wait_drawn(draws)
    assert shown.pixel(900, 150)[:3] == rgb(DARK["panel"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_around_the_canvas_can_be_read(shown, scheme):
    shown.page.emulate_media(color_scheme=scheme)
    shown.set(status={"state": "live", "error": "something went wrong", "lost": 3})
    shown.point(5, 55)
    for name in ("title", "hint", "note", "status", "tip"):
        ink, paper = (as_hex(colour) for colour in shown.page.evaluate(COLOURS, name))
        assert contrast(ink, paper) >= 4.5, name


def test_the_status_line_tells_of_errors_and_lost_events(shown):
    shown.set(status={"state": "paused", "error": "<b>no such step</b>", "lost": 7})
    status = shown.root().locator(".llmlab-status").inner_text()
    assert "paused" in status
    assert "<b>no such step</b>" in status
    assert "7 events were lost" in status


def test_hovering_one_panel_previews_in_the_others_of_its_group_only(page, view, recorded):
    first, second = Panel(view, recorded, key="a"), Panel(view, recorded, key="b")
    other = Panel(view, type(recorded)(recorded.events), key="c")
    for panel in (first, second, other):
        page.add(panel.widget)
    for number in range(3):
        page.wait_drawn(number=number)
    page.settle()
    before = [page.area(38, 30, 20, 30, number) for number in (1, 2)]
    page.point(5 + 14 * 3, 55, number=0)
    page.settle()
    after = [page.area(38, 30, 20, 30, number) for number in (1, 2)]
    assert after[0] != before[0]
    assert after[1] == before[1]
    for panel in (first, second, other):
        panel.close()


def test_what_is_scrolled_away_is_not_drawn_and_the_kernel_is_told(shown, view, lab):
    shown.page.evaluate("document.body.insertAdjacentHTML('afterbegin', '<div style=\"height:4000px\"></div>')")
    shown.page.wait_for_function("models[0].sent.some((m) => m.type === 'visible' && !m.visible)")
    draws = shown.draws()
    lab.ask("more", max_tokens=3)
    other = Panel(view, lab)
    shown.set(scene=other.widget.scene)
    shown.settle()
    assert shown.draws() == draws
    shown.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    shown.wait_drawn(draws)
    assert shown.sent(kind="visible")[-1]["visible"] is True
    other.close()


def test_a_broken_scene_says_so_and_the_picture_stays(shown):
    shown.set(scene=b"not a scene")
    shown.page.wait_for_function("document.querySelector('.llmlab-status').textContent.includes('could not be read')")
    assert shown.pixel(5, 57)[:3] == rgb(LIGHT["c0"])


def test_a_closed_view_tells_and_draws_no_more(shown, panel):
    shown.page.evaluate("models[0].close()")
    assert shown.sent(kind="visible")[-1]["visible"] is False
    draws = shown.draws()
    shown.set(selection={"step": 1})
    shown.settle()
    assert shown.draws() == draws


def test_sizes_are_asked_for_and_narrow_pages_scale_down(shown):
    assert shown.sent(kind="width")[0]["width"] > 900
    shown.page.set_viewport_size({"width": 500, "height": 700})
    shown.page.wait_for_function("models[0].sent.filter((m) => m.type === 'width').length > 1")
    shown.settle()
    assert shown.canvas().bounding_box()["width"] < 480
    shown.point(5 / 2.1, 55 / 2.1)
    assert shown.root().locator(".llmlab-tip").inner_text() == "step 0: 3 rows"


def test_arrows_walk_through_a_grid_of_its_own(page, recorded, grid_view):
    panel = Panel(grid_view, recorded)
    page.add(panel.widget)
    page.wait_drawn()
    page.canvas().focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "Enter"):
        page.page.keyboard.press(key)
    assert page.sent(kind="pick") == [{"type": "pick", "key": {"position": 1, "layer": 1}}]
    panel.close()
