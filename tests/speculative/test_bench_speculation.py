"""The benchmark of speculation, on the model without weights."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from llmlab.bench.speculative import PLAIN, measure_speculation, speculation_object, speculation_table
from llmlab.bench.speculative_prompts import KINDS
from llmlab.cli import app
from llmlab.errors import InvalidParameter


def test_every_kind_is_served_by_every_proposer_that_there_is():
    result = measure_speculation(1, model="mock", quick=True)
    assert {f.proposer for f in result.figures} == {PLAIN, "ngram"}
    assert {f.kind for f in result.figures} == {kind.name for kind in KINDS}
    assert set(result.missing) == {"early-exit", "head"}
    assert all(len(f.seconds) == 1 for f in result.figures)
    assert all(result.speed_up(f) == 1.0 for f in result.figures if f.proposer == PLAIN)
    figures = json.loads(json.dumps(speculation_object(result)))["figures"]
    assert len(figures) == len(result.figures)
    assert speculation_table(result).row_count == len(KINDS)


def test_prompts_of_a_batch_are_all_different():
    for kind in KINDS:
        for count in (1, 4, 16):
            assert len(set(kind.take(count))) == count


@pytest.mark.parametrize("batch", ["0", "17", "x", ""])
def test_a_batch_that_cannot_be_measured_is_refused(batch):
    done = CliRunner().invoke(app, ["bench", "--speculative", "--batch", batch])
    assert done.exit_code != 0
    assert isinstance(done.exception, InvalidParameter | SystemExit)
