"""Live panels in a real JupyterLab: a request typed and watched, cells run again, pages reloaded, both themes."""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
OPEN = """\
import comm
import llmlab
from llmlab.widgets import dashboard
lab = llmlab.open("mock", num_blocks=64)"""
SHOW = 'dashboard(lab, ["token_strip", "block_map"])'
COUNT = "print('open comms:', len(comm.get_comm_manager().comms))"

# the corner of the canvas, and the greatest contrast between two of its pixels (WCAG 2.2)
PIXELS = """canvas => {
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    const linear = value => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    let [low, high] = [1, 0];
    for (let i = 0; i < data.length; i += 4) {
        const light = 0.2126 * linear(data[i]) + 0.7152 * linear(data[i + 1]) + 0.0722 * linear(data[i + 2]);
        [low, high] = [Math.min(low, light), Math.max(high, light)];
    }
    return { corner: data[0], contrast: (high + 0.05) / (low + 0.05) };
}"""


@pytest.fixture
def dashboard_page(open_notebook, notebook_of):
    """A notebook whose dashboard is shown and drawn once."""
    notebook = open_notebook(notebook_of("panels.ipynb", OPEN, SHOW, COUNT))
    notebook.run_cell(0).run_cell(1)
    drawn(notebook, 0)
    return notebook


def block_map(notebook):
    """The block map's panel, scrolled to where it can be seen: what nobody sees is not drawn."""
    panel = notebook.panel.locator("section[data-name=block_map]").last
    panel.scroll_into_view_if_needed()
    return panel


def drawn(notebook, more_than):
    """How often the block map was drawn, once that is more than ``more_than`` times."""
    block_map(notebook)
    script = """more => {
        const all = [...document.querySelectorAll('section[data-name=block_map]')];
        all.at(-1)?.scrollIntoView({block: 'nearest'});  // a panel above it may have grown and pushed it out of sight
        return Math.max(0, ...all.map(one => Number(one.dataset.draws))) > more;
    }"""
    notebook.page.wait_for_function(script, arg=more_than)
    return int(block_map(notebook).get_attribute("data-draws"))


def ask(notebook, prompt):
    """Type a prompt and press Send."""
    field = notebook.panel.locator(".llmlab-prompt textarea").last
    field.fill(prompt)
    field.blur()
    notebook.panel.locator("button.llmlab-send").last.click()


def test_a_typed_prompt_streams_and_the_block_map_follows(dashboard_page):
    notebook = dashboard_page
    before = drawn(notebook, 0)
    ask(notebook, "Which blocks does this take?")
    notebook.page.wait_for_function(
        "() => [...document.querySelectorAll('.llmlab-text')].some(one => Number(one.dataset.characters) > 20)"
    )
    assert drawn(notebook, before) > before
    assert int(block_map(notebook).get_attribute("data-marks")) > 0
    assert notebook.panel.locator(".llmlab-panel .llmlab-alarm").all_inner_texts() == []


def test_the_debugger_takes_single_steps(open_notebook, notebook_of):
    submit = "run = lab.submit('step by step', max_tokens=12)"
    cells = (OPEN, "from llmlab.widgets import debugger", 'debugger(lab, ["block_map"])', submit)
    notebook = open_notebook(notebook_of("steps.ipynb", *cells, "print(len(lab.trace.steps), run.finished)"))
    for cell in range(4):
        notebook.run_cell(cell)
    for clicks in (1, 2):
        before = drawn(notebook, 0)
        notebook.panel.locator("button.llmlab-step").last.click()
        drawn(notebook, before)
        notebook.run_cell(4)
        shown = notebook.code_cells.nth(4).locator(".jp-OutputArea-output").last.text_content().strip()
        assert shown == f"{clicks} False"


def test_running_a_cell_again_leaves_no_comm_behind(dashboard_page):
    notebook = dashboard_page
    counts = []
    for times in (1, 20):
        for _ in range(times):
            notebook.run_cell(1)
        notebook.run_cell(2)
        counts.append(notebook.code_cells.nth(2).locator(".jp-OutputArea-output").last.text_content().strip())
    assert re.fullmatch(r"open comms: [1-9]\d+", counts[0])
    assert counts[0] == counts[1]
    assert notebook.panel.locator("section[data-name=block_map]").count() == 1


def test_a_reloaded_page_shows_what_was_there(dashboard_page, open_notebook):
    notebook = dashboard_page
    before = drawn(notebook, 0)
    ask(notebook, "Still here?")
    drawn(notebook, before)
    words = notebook.panel.locator(".llmlab-parts").last.text_content
    notebook.page.wait_for_function("() => document.querySelector('.llmlab-parts')?.textContent.includes('length')")
    text = words()
    notebook.command("docmanager:save")
    notebook.open(reset=False)
    drawn(notebook, 0)
    assert words() == text


def test_the_canvas_follows_the_theme_and_stays_readable(dashboard_page):
    notebook = dashboard_page
    in_theme = "dark => (document.querySelector('section[data-name=block_map] canvas')\n"
    in_theme += "    .getContext('2d').getImageData(0, 0, 1, 1).data[0] < 128) === dark"
    for theme, corners in (("JupyterLab Dark", range(90)), ("JupyterLab Light", range(200, 256))):
        notebook.set_theme(theme)
        notebook.page.wait_for_function(in_theme, arg=theme == "JupyterLab Dark")  # drawn when the theme has arrived
        seen = block_map(notebook).locator("canvas").evaluate(PIXELS)
        assert seen["contrast"] >= 4.5
        assert seen["corner"] in corners
