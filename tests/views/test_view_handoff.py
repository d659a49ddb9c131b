"""The handoff of prompts as a file may claim it; what a real one shows is tested with the processes that make it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pictures import unsafe
from recordings import INVISIBLE, MARKUP

from llmlab.errors import InvalidParameter
from llmlab.trace.split_events import BlockTransfer
from llmlab.trace.trace import Trace
from llmlab.views import handoff

EVIL = MARKUP + INVISIBLE


def test_names_from_an_unkind_file_are_shown_and_not_obeyed(other_trace):
    index = other_trace.index
    first = index.request_ids[0]
    named = [
        replace(event, request_id=EVIL) if getattr(event, "request_id", None) == first else event
        for event in other_trace.events
    ]
    start = index.steps[0].t_ns
    sent = BlockTransfer(start - 9, start - 1, 0, EVIL, "send", "prefill", "decode", EVIL, (0,), 5, 64, EVIL)
    view = handoff(Trace([*named, sent]))
    assert not {"\u202e", "\x00", "\x1b"} & {*view.text, *view.title, *view.alt, *view.svg}
    assert unsafe(view.svg) == []


def test_a_width_that_cannot_be_drawn_is_refused(other_trace):
    with pytest.raises(InvalidParameter, match="width=-5"):
        handoff(other_trace, width=-5)
