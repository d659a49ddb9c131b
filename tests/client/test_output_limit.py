"""Little output at first, much after the first truncation."""

from __future__ import annotations

import pytest

from llmlab.client.output_limit import OutputLimit
from llmlab.errors import InvalidParameter


def test_one_truncation_escalates_and_it_stays_so():
    limit = OutputLimit()
    assert (limit.max_tokens, limit.escalate("end_turn"), limit.max_tokens) == (8_000, False, 8_000)
    assert (limit.escalate("max_tokens"), limit.max_tokens) == (True, 64_000)
    assert (limit.escalate("max_tokens"), limit.escalate("end_turn"), limit.max_tokens) == (False, False, 64_000)


@pytest.mark.parametrize(
    ("window", "default", "escalated"), [(1, 1, 1), (2_048, 256, 1_024), (8_192, 1_024, 4_096), (10**6, 8_000, 64_000)]
)
def test_a_small_context_gets_small_limits(window, default, escalated):
    limit = OutputLimit.for_context(window)
    assert (limit.default, limit.escalated) == (default, escalated)


def test_without_room_to_grow_nothing_escalates():
    assert not OutputLimit(10, 10).escalate("max_tokens")


@pytest.mark.parametrize("pair", [(0, 5), (6, 5)])
def test_limits_out_of_order_are_refused(pair):
    with pytest.raises(InvalidParameter):
        OutputLimit(*pair)
