"""The notebooks run: their sources as plain scripts without weights, and themselves with their outputs compared."""

from __future__ import annotations

import runpy

import nbformat
import pytest
from lab_folder import LAB_NAMES, LAB_SOURCES, TRAIN_SECONDS, nbval
from nbformat.v4 import new_code_cell, new_notebook, new_output

import llmlab
from llmlab.labs.sources import built_path

every_lab = pytest.mark.parametrize("source", LAB_SOURCES, ids=LAB_NAMES)


NEEDS_WEIGHTS = "from llmlab.opening import open"  # how a lab opens a model that the mock cannot stand in for
scripts = [
    pytest.param(path, id=name, marks=pytest.mark.model if NEEDS_WEIGHTS in path.read_text(encoding="utf-8") else ())
    for path, name in zip(LAB_SOURCES, LAB_NAMES, strict=True)
]


@pytest.mark.parametrize("source", scripts)
def test_a_source_runs_as_a_script(source, monkeypatch, capsys):
    opened, real = [], llmlab.open

    def open_mock(model="mock", **options):
        opened.append(real("mock", **options))
        return opened[-1]

    monkeypatch.setattr(llmlab, "open", open_mock, raising=False)
    monkeypatch.setenv("LLMLAB_TRAIN_SECONDS", TRAIN_SECONDS)
    try:
        runpy.run_path(str(source))
    finally:
        for lab in opened:
            lab.close()
    assert opened


@pytest.mark.model
@every_lab
@pytest.mark.timeout(900)
def test_a_stored_notebook_repeats_its_outputs(source, model_path):
    done = nbval(built_path(source))
    print(done.stdout.splitlines()[-1])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def notebook(*outputs):
    """A notebook of one cell that shows a text and a picture, as if it had shown ``outputs`` before."""
    source = (
        "class Shown:\n"
        "    def _repr_mimebundle_(self, **_):\n"
        "        return {'text/plain': 'three blocks', 'image/svg+xml': '<svg >12.3 ms</svg>'}\n"
        "Shown()"
    )
    cell = new_code_cell(source, execution_count=1)
    cell.outputs = [new_output("execute_result", data=data, execution_count=1) for data in outputs]
    return new_notebook(cells=[cell])


@pytest.mark.parametrize(
    ("shown", "failed"),
    [
        ({"text/plain": "three blocks", "image/svg+xml": "<svg >45.6 ms</svg>"}, False),
        ({"text/plain": "four blocks", "image/svg+xml": "<svg >12.3 ms</svg>"}, True),
        ({"text/plain": "three blocks"}, True),
    ],
    ids=["another time in the picture", "another text", "no picture"],
)
def test_text_is_compared_and_a_picture_must_be_there(tmp_path, shown, failed):
    path = tmp_path / "one.ipynb"
    nbformat.write(notebook(shown), path)
    done = nbval(path)
    assert ("1 failed" if failed else "1 passed") in done.stdout.splitlines()[-1], done.stdout
