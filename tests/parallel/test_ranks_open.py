"""What cannot be divided is refused by name when it is opened, before any process is started."""

from __future__ import annotations

import pytest

import llmlab
from llmlab.errors import InvalidParameter
from llmlab.parallel import group


@pytest.fixture
def no_process(monkeypatch):
    """Starting one fails the test."""

    def started(*args, **kwargs):
        pytest.fail("a process was started")

    monkeypatch.setattr(group, "WorkerProcess", started)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel": 2}, "tensor_parallel=2 and the mock model"),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, "tensor_parallel=2 and pipeline_parallel=2"),
        ({"tensor_parallel": 2, "host_blocks": 4}, "mock"),
        ({"pipeline_parallel": 0}, "pipeline_parallel=0"),
        ({"tensor_parallel": 2, "speculative": "head"}, "speculative='head'.*use speculative='ngram'"),
        ({"tensor_parallel": 2, "speculative": "early-exit"}, "early-exit"),
        ({"micro_batches": 2}, "pipelines"),
    ],
)
def test_combinations_that_do_not_work_are_refused_by_name(no_process, options, words):
    with pytest.raises(InvalidParameter, match=words):
        llmlab.open("mock", background=False, **options)


@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel": 4}, "3 key/value heads"),
        ({"pipeline_parallel": 31}, "30 layers"),
        ({"tensor_parallel": 3, "host_blocks": 8}, "host_blocks=8"),
        ({"tensor_parallel": 3, "disaggregated": True}, "disaggregated=True"),
        ({"tensor_parallel": 3, "threads": 0}, "threads=0"),
    ],
)
def test_more_processes_than_the_model_has_parts_are_refused_before_one_is_started(no_process, options, words):
    with pytest.raises(InvalidParameter, match=words):
        llmlab.open(background=False, **options)
