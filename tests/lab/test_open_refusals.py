"""What cannot be opened is refused by name, before a model is loaded."""

from __future__ import annotations

import pytest

import llmlab
from llmlab import opening
from llmlab.errors import InvalidParameter


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"disaggregated": "sockets"}, "disaggregated='sockets' must be True, False, 'shared memory' or 'socket'"),
        ({"disaggregated": None}, "disaggregated=None must be"),
        ({"disaggregated": 1}, "disaggregated=1 must be"),
        ({"prefix_cache": "tree"}, "'hash', 'radix' or 'off'"),
        ({"host_blocks": 4, "tensor_parallel": 2}, "do not go together"),
        ({"micro_batches": 2}, "pipeline_parallel=2"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 1.5, "model": "mock"}, "threads=1.5"),
    ],
)
def test_no_model_is_loaded_for_what_cannot_be(options, said, monkeypatch):
    monkeypatch.setattr(opening, "_real", lambda *_: pytest.fail("a model was loaded first"))
    with pytest.raises(InvalidParameter, match=said):
        llmlab.open(**options)
