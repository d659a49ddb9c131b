"""What running a notebook against another server tells of each cell."""

from __future__ import annotations

import os
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from llmlab.errors import LabError
from llmlab.gateway.stand_in import UPSTREAM
from llmlab.labs.against import _result, run_against, upstream_variable


def cell(*outputs, tags=()):
    made = new_code_cell("1 + 1", metadata={"tags": list(tags)})
    made.outputs = list(outputs)
    return made


def shown(text):
    return new_output("execute_result", data={"text/plain": text}, execution_count=1)


@pytest.mark.parametrize(
    ("ran", "stored", "outcome"),
    [
        (cell(shown("2")), cell(shown("2")), "same"),
        (cell(shown("3")), cell(shown("2")), "other"),
        (cell(new_output("stream", text="a")), cell(new_output("stream", text="b")), "other"),
        (cell(shown("3"), tags=["nbval-ignore-output"]), cell(shown("2")), "same"),
        (cell(), cell(), "same"),
    ],
    ids=["same", "other", "stream", "ignored", "nothing"],
)
def test_a_cell_is_compared_with_what_is_stored(ran, stored, outcome):
    assert _result(ran, stored).outcome == outcome


def test_a_cell_that_failed_says_why():
    error = new_output("error", ename="IndexError", evalue="out of bounds\nmore", traceback=[])
    found = _result(cell(error), cell(shown("2")))
    assert (found.outcome, found.reason) == ("failed", "IndexError: out of bounds")


def test_the_variable_is_put_back(monkeypatch):
    monkeypatch.setenv(UPSTREAM, "before")
    with upstream_variable("http://now"):
        assert os.environ[UPSTREAM] == "http://now"
    assert os.environ[UPSTREAM] == "before"
    monkeypatch.delenv(UPSTREAM)
    with upstream_variable("http://now"):
        pass
    assert UPSTREAM not in os.environ


def test_a_notebook_out_of_step_is_not_run(tmp_path: Path):
    source = tmp_path / "src" / "99_x.py"
    source.parent.mkdir()
    source.write_text("# %%\n1 + 1\n")
    nbformat.write(new_notebook(cells=[new_code_cell("1 + 2")]), tmp_path / "99_x.ipynb")
    with pytest.raises(LabError, match="out of step"):
        run_against("http://127.0.0.1:9", source)
