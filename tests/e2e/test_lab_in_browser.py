"""The first notebook in a real JupyterLab: opens, runs from top to bottom, shows its pictures, asks nothing outside."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]
LABS = Path(__file__).parents[2] / "labs"
FIRST = "00_one_request.ipynb"
VIEWS = re.findall(r"views\.\w+\(", (LABS / FIRST).read_text())
PICTURES = ".jp-RenderedSVG img"  # JupyterLab puts a trusted SVG into one


def test_the_stored_pictures_show_before_anything_runs(open_notebook):
    notebook = open_notebook(FIRST)
    pictures = notebook.panel.locator(PICTURES)
    pictures.first.wait_for(state="attached")
    assert pictures.count() == len(VIEWS)
    pictures.first.scroll_into_view_if_needed()
    assert pictures.first.evaluate("one => one.decode().then(() => one.naturalWidth)") > 900


def test_all_cells_run(open_notebook):
    notebook = open_notebook(FIRST).run_all()
    stored = json.loads((LABS / FIRST).read_text())
    cells = [cell["metadata"].get("tags", ()) for cell in stored["cells"] if cell["cell_type"] == "code"]
    wanted = ["" if "solution" in tags else f"[{number}]:" for number, tags in enumerate(cells, 1)]
    assert notebook.code_cells.locator(".jp-InputPrompt").all_text_contents() == wanted  # solutions are folded up
    assert notebook.panel.locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "The capital of France is Paris." in notebook.text
    assert notebook.panel.locator(PICTURES).count() == len(VIEWS)


def test_a_prediction_is_clicked_and_compared(open_notebook, notebook_of):
    name = notebook_of(
        "predict.ipynb",
        'from llmlab.checks import predict\nguess = predict("How many steps?", [8, 45])\nguess',
        "guess.reveal(8)",
    )
    notebook = open_notebook(name).run_cell(0)
    notebook.panel.get_by_text("Predict: How many steps?").wait_for()
    notebook.panel.locator("input[type=radio]").nth(1).check()
    notebook.run_cell(1)
    notebook.panel.get_by_text("You said 45").wait_for()
