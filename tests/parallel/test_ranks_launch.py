"""Processes that ``accelerate`` starts share a model as well."""

from __future__ import annotations

import pytest

from llmlab.errors import InvalidParameter, UnknownModel
from llmlab.parallel.launch import launch


@pytest.mark.model
def test_processes_of_accelerate_give_the_tokens_of_the_whole_model():
    report = launch(2, max_tokens=3)
    assert report.equal
    assert [len(tokens) for tokens in report.tokens] == [3, 3]
    assert report.all_reduces == 2 * 30 * report.num_steps
    assert report.all_reduce_bytes == 2 * 30 * report.num_tokens * 576 * 4
    assert report.num_parameters[0] > report.num_parameters[1]  # two key/value heads of three, and one


def test_what_cannot_be_launched_is_refused(tmp_path):
    with pytest.raises(InvalidParameter, match="num_processes=1"):
        launch(1)
    with pytest.raises(InvalidParameter, match="prompts='a text'"):
        launch(2, prompts="a text")
    with pytest.raises(UnknownModel, match="no-such-model"):
        launch(2, model=str(tmp_path / "no-such-model"))
