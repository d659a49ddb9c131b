"""The notebooks run, with their outputs compared."""

from __future__ import annotations

import nbformat
import pytest
from lab_folder import LAB_NAMES, LAB_SOURCES, nbval
from nbformat.v4 import new_code_cell, new_notebook, new_output

from llmlab.labs.sources import built_path

every_lab = pytest.mark.parametrize("source", LAB_SOURCES, ids=LAB_NAMES)


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
