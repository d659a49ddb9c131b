"""The notebooks' sources run as plain scripts, without weights where the mock can stand in."""

from __future__ import annotations

import runpy

import pytest
from lab_folder import LAB_NAMES, LAB_SOURCES, TRAIN_SECONDS

import llmlab

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
