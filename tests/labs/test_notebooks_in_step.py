"""Each stored notebook is what its source makes, run from top to bottom, within its budgets."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import gettempdir

import pytest
from lab_folder import LAB_NAMES, LAB_SOURCES, LABS, stored

from llmlab.labs.audit import UNCOMPARED, audit
from llmlab.labs.sources import convert

every_lab = pytest.mark.parametrize("source", LAB_SOURCES, ids=LAB_NAMES)


@every_lab
def test_the_notebook_is_made_from_its_source(source):
    built, kept = convert(source), stored(source)
    assert kept.metadata == built.metadata
    for made, have in zip(built.cells, kept.cells, strict=True):
        assert (have.id, have.cell_type, have.source) == (made.id, made.cell_type, made.source)
        assert have.metadata == made.metadata


@every_lab
def test_the_notebook_keeps_to_its_budgets(source):
    assert audit(stored(source)) == []


@every_lab
def test_no_cell_failed_without_being_meant_to(source):
    for cell in stored(source).cells:
        failed = any(output.output_type == "error" for output in cell.get("outputs", ()))
        assert failed is ("raises-exception" in cell.metadata.get("tags", ())), cell.source


@every_lab
def test_a_lab_has_the_parts_every_lab_has(source):
    parts = ("## Predict", "## Run", "## Observe", "## Explain", "## Exercises", "## Break it", "## Recap", "## Next")
    text = "\n".join(cell.source for cell in stored(source).cells if cell.cell_type == "markdown")
    places = [f"\n{text}\n".find(f"\n{part}\n") for part in parts]
    assert -1 not in places, dict(zip(parts, places, strict=True))
    assert places == sorted(places)
    for word in ("**Goal.**", "**Time.**", "**Needs.**", "minutes"):
        assert word in text


@every_lab
def test_an_explanation_is_short(source):
    cells = stored(source).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    explanation = text.partition("## Explain")[2].partition("\n## ")[0]
    assert len(explanation.split()) <= 150


@every_lab
def test_every_exercise_is_followed_by_a_collapsed_solution(source):
    cells = [cell for cell in stored(source).cells if cell.cell_type == "code"]
    tagged = [cell.metadata.get("tags", ()) for cell in cells]
    exercises = [place for place, tags in enumerate(tagged) if "exercise" in tags]
    assert 2 <= len(exercises) <= 4
    for place in exercises:
        assert "solution" in tagged[place + 1]
        assert cells[place + 1].metadata.jupyter.source_hidden
        assert "..." in cells[place].source
        assert cells[place].outputs[-1].data["text/plain"].startswith("Not yet: ")
        assert cells[place + 1].outputs[-1].data["text/plain"].startswith("Correct: ")


@every_lab
def test_nothing_stored_tells_where_it_was_built(source):
    text = json.dumps(stored(source))
    for trace_of_a_machine in (str(LABS.parent), str(Path.home()), gettempdir(), "/home/"):
        assert trace_of_a_machine not in text


def test_every_stored_notebook_has_a_source():
    assert sorted(path.stem for path in LABS.glob("*.ipynb")) == sorted(LAB_NAMES)


def test_the_labs_together_compare_many_outputs():
    cells = [cell for source in LAB_SOURCES for cell in stored(source).cells if cell.cell_type == "code"]
    compared = [cell for cell in cells if cell.outputs and UNCOMPARED not in cell.metadata.get("tags", ())]
    assert len(compared) >= 160
