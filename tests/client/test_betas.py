"""Beta switches stay on for a session."""

from __future__ import annotations

import pytest

from llmlab.client.betas import BetaLatch
from llmlab.errors import InvalidParameter


def test_a_switch_once_sent_is_sent_for_ever_in_its_old_place():
    latch = BetaLatch()
    assert latch.header() is None
    assert latch.header(["b-1", "a-1"]) == "b-1,a-1"
    assert latch.header(["c-1"]) == "b-1,a-1,c-1"
    assert latch.header() == "b-1,a-1,c-1"


def test_what_was_kept_against_the_callers_wish_is_recorded_with_its_reason():
    latch = BetaLatch()
    for wanted in (["a-1"], ["a-1"], []):
        latch.header(wanted)
    assert [(held.name, held.request, held.since) for held in latch.held] == [("a-1", 2, 0)]
    assert "cache key" in latch.held[0].reason


@pytest.mark.parametrize("name", ["a,b", "a\r\nx-evil: 1", "", "Ünicode", "a b"])
def test_a_name_that_could_break_the_header_is_refused_and_not_remembered(name):
    latch = BetaLatch()
    with pytest.raises(InvalidParameter):
        latch.header(["fine-1", name])
    assert latch.header() is None
