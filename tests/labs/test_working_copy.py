"""A learner's copies: filled, updated, and never overwritten where somebody worked."""

from __future__ import annotations

import json
import os
import sys

import pytest
from nbformat.v4 import new_code_cell, new_notebook, writes

from llmlab.errors import InvalidParameter, LabError
from llmlab.labs.shipped import Notebook, find, shipped
from llmlab.labs.working_copy import CHANGED, NEW, RECORD, SAME, UPDATED, WorkingCopy


def edition(source, name="03_blocks.ipynb"):
    """A shipped notebook of one cell."""
    return Notebook(name, writes(new_notebook(cells=[new_code_cell(source, id="only")])).encode())


@pytest.fixture
def copy(tmp_path):
    """A working folder that holds the first edition."""
    made = WorkingCopy(tmp_path / "labs")
    assert made.update((edition("1"),)) == {"03_blocks.ipynb": NEW}
    return made


def edit(path, change):
    content = json.loads(path.read_text())
    change(content["cells"][0])
    path.write_text(json.dumps(content))


def test_a_run_is_no_change_and_an_untouched_copy_is_updated(copy):
    path = copy.path(edition("1"))
    edit(path, lambda cell: cell.update(outputs=[{"output_type": "stream", "name": "stdout", "text": "ran"}]))
    assert copy.update((edition("1"),)) == {"03_blocks.ipynb": SAME}
    assert "ran" in path.read_text()
    assert copy.update((edition("2"),)) == {"03_blocks.ipynb": UPDATED}
    assert path.read_bytes() == edition("2").content


def test_a_changed_copy_stays(copy):
    path = copy.path(edition("1"))
    edit(path, lambda cell: cell.update(source="mine"))
    mine = path.read_bytes()
    for _ in range(2):
        assert copy.update((edition("2"),)) == {"03_blocks.ipynb": CHANGED}
        assert path.read_bytes() == mine


def test_a_change_that_equals_the_new_edition_is_up_to_date(copy):
    edit(copy.path(edition("1")), lambda cell: cell.update(source="2"))
    assert copy.update((edition("2"),)) == {"03_blocks.ipynb": SAME}


def test_reset_keeps_every_own_version(copy):
    path = copy.path(edition("1"))
    for text in ("mine", "mine again"):
        edit(path, lambda cell, text=text: cell.update(source=text))
        kept = copy.reset(edition("1"))
        assert text in kept.read_text()
        assert path.read_bytes() == edition("1").content
    assert sorted(item.name for item in copy.folder.glob("*.ipynb")) == [
        "03_blocks.backup-1.ipynb",
        "03_blocks.backup-2.ipynb",
        "03_blocks.ipynb",
    ]


def test_reset_of_a_copy_that_is_not_there_makes_it(tmp_path):
    copy = WorkingCopy(tmp_path)
    assert copy.reset(edition("1")) is None
    assert copy.path(edition("1")).read_bytes() == edition("1").content


@pytest.mark.parametrize("record", ["", "{", "[1]", '{"03_blocks.ipynb": 3}'])
def test_without_a_record_nothing_is_replaced(copy, record):
    (copy.folder / RECORD).write_text(record)
    assert copy.update((edition("2"),)) == {"03_blocks.ipynb": CHANGED}


def test_a_file_that_is_no_notebook_stays(copy):
    copy.path(edition("1")).write_bytes(b"\xff not a notebook")
    assert copy.update((edition("2"),)) == {"03_blocks.ipynb": CHANGED}


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_link_is_not_written_through(copy, tmp_path):
    path, elsewhere = copy.path(edition("1")), tmp_path / "elsewhere.ipynb"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    assert copy.update((edition("2"),)) == {"03_blocks.ipynb": CHANGED}
    assert elsewhere.read_bytes() == edition("1").content


def test_other_files_are_left_alone_and_no_partial_file_remains(copy):
    (copy.folder / "notes.ipynb").write_text("mine")
    copy.update((edition("2"),))
    assert sorted(os.listdir(copy.folder)) == [RECORD, "03_blocks.ipynb", "notes.ipynb"]


def test_a_folder_that_cannot_be_is_a_named_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LabError, match="choose another --dir"):
        WorkingCopy(tmp_path / "file" / "labs").update((edition("1"),))


def test_the_shipped_notebooks_have_numbers_and_titles():
    notebooks = shipped()
    numbers = [item.number for item in notebooks]
    assert numbers[0] == "00"
    assert numbers == sorted(set(numbers))
    assert all(item.title != item.name for item in notebooks)


@pytest.mark.parametrize("key", ["0", "00", "00_one_request", "00_one_request.ipynb"])
def test_a_lab_is_found_by_number_or_name(key):
    assert find(key, (edition("1"), edition("1", "00_one_request.ipynb"))).name == "00_one_request.ipynb"


@pytest.mark.parametrize("key", ["77", "", "../00", "²"])
def test_an_unknown_lab_is_told_which_there_are(key):
    with pytest.raises(InvalidParameter, match=r"there is no lab .* 03_blocks\.ipynb, 00_one_request\.ipynb"):
        find(key, (edition("1"), edition("1", "00_one_request.ipynb")))
