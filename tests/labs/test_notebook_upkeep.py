"""Converting, normalising and auditing notebooks."""

from __future__ import annotations

import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from llmlab.errors import InvalidParameter
from llmlab.labs import audit as auditing
from llmlab.labs.audit import MIN_COMPARED, audit
from llmlab.labs.excerpt import excerpt
from llmlab.labs.normalise import WIDGET_VIEW, normalise
from llmlab.labs.sources import convert, sources

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" aria-label="One bar."><title>One bar.</title></svg>'


def good():
    """A notebook nothing is wrong with."""
    cells = [new_markdown_cell("# See it\n\n## Run")]
    for number in range(1, MIN_COMPARED + 1):
        output = new_output("execute_result", data={"text/plain": "1"}, execution_count=number)
        cells.append(new_code_cell("1", execution_count=number, outputs=[output]))
    cells[-1].outputs[0].data["image/svg+xml"] = PICTURE
    return new_notebook(cells=cells)


def test_a_good_notebook_has_no_problems():
    assert audit(good()) == []


def _second_title(book):
    book.cells.append(new_markdown_cell("# Another"))


def _skipped_level(book):
    book.cells.append(new_markdown_cell("#### Deep"))


def _late_title(book):
    book.cells[0].source = "## Run\n\n# See it"


def _no_title(book):
    book.cells[0].source = "See it"


def _wrong_count(book):
    book.cells[1].execution_count = 7


def _no_alternative_text(book):
    book.cells.append(new_markdown_cell("![ ](picture.png)"))


def _undescribed_picture(book):
    book.cells[-1].outputs[0].data["image/svg+xml"] = PICTURE.replace("aria-label", "name")


def _broken_picture(book):
    book.cells[-1].outputs[0].data["image/svg+xml"] = "<svg>"


def _ignored_output(book):
    book.cells[1].metadata.tags = ["nbval-ignore-output"]


def _widget_state(book):
    book.metadata.widgets = {}


def _widget_view(book):
    book.cells[1].outputs[0].data[WIDGET_VIEW] = {"model_id": "1"}


def _large_output(book):
    book.cells[1].outputs[0].data["text/plain"] = "x" * auditing.OUTPUT_BYTES


def _large_notebook(book):
    book.cells[0].source += "\n" + "x" * auditing.NOTEBOOK_BYTES


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_second_title, "one heading of the first level"),
        (_late_title, "at its beginning"),
        (_no_title, "one heading of the first level"),
        (_skipped_level, "a heading of level 4 follows one of level 2"),
        (_wrong_count, "execution counts"),
        (_no_alternative_text, "no alternative text"),
        (_undescribed_picture, "no aria-label"),
        (_broken_picture, "is no XML"),
        (_ignored_output, f"{MIN_COMPARED - 1} cells have outputs that tests compare"),
        (_widget_state, "widget state"),
        (_widget_view, "a view of a widget"),
        (_large_output, "an output of cell"),
        (_large_notebook, "the notebook has"),
    ],
)
def test_what_is_wrong_is_said(spoil, said):
    book = good()
    spoil(book)
    assert any(said in problem for problem in audit(book)), audit(book)


def test_code_in_a_fence_is_no_heading():
    book = good()
    book.cells.append(new_markdown_cell("```python\n# a comment\n```"))
    assert audit(book) == []


def test_only_what_a_second_run_repeats_is_kept():
    streams = [new_output("stream", name="stdout", text=text) for text in ("a", "b")]
    view = new_output("display_data", data={"text/plain": "a panel", WIDGET_VIEW: {"model_id": "77"}})
    error = new_output("error", ename="PoolTooSmall", evalue="no", traceback=["\x1b[31mFile /somewhere\x1b[0m", "no"])
    cell = new_code_cell("x", execution_count=9, outputs=[*streams, view, error])
    cell.metadata.execution = {"iopub.status.busy": "2026-01-01T00:00:00Z"}
    book = normalise(new_notebook(cells=[cell], metadata={"widgets": {"state": {}}}))
    assert "widgets" not in book.metadata
    assert "execution" not in book.cells[0].metadata
    assert book.cells[0].execution_count == 1
    stream, shown, failed = book.cells[0].outputs
    assert stream.text == "ab"
    assert shown.data == {"text/plain": "a panel"}
    assert failed.traceback == ["PoolTooSmall: no"]


def test_a_source_becomes_cells_with_tags_and_steady_ids(tmp_path):
    source = tmp_path / "07_look.py"
    source.write_text('# %% [markdown]\n# # Look\n\n# %% tags=["solution"]\ndef f():\n    return 1\n\n\nf()\n')
    first, second = convert(source), convert(source)
    assert first == second
    assert [cell.id for cell in first.cells] == ["07-look-01", "07-look-02"]
    assert first.cells[0].source == "# Look"
    assert first.cells[1].metadata == {
        "tags": ["solution"],
        "jupyter": {"source_hidden": True, "outputs_hidden": True},
    }
    assert first.metadata.kernelspec.name == "python3"


def test_a_lab_without_a_source_is_refused():
    with pytest.raises(InvalidParameter, match="no lab 99: there are 00_"):
        sources("99")


def test_an_excerpt_says_where_it_is():
    shown = excerpt(audit, containing="return", lines=1)
    assert shown.file == "llmlab/labs/audit.py"
    assert shown.code.startswith("return [")
    with pytest.raises(InvalidParameter, match="no line of audit contains 'elsewhere'"):
        excerpt(audit, containing="elsewhere")
