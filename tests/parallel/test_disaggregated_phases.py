"""The measurement of what a long prompt does to streams: its windows and counts, in one process."""

from __future__ import annotations

import pytest

from llmlab.bench.phases import measure_phases, phase_object, phase_table


@pytest.fixture(scope="module")
def figures():
    return measure_phases("mock", ("whole", "chunked"), prompt_tokens=600, num_streams=2, chunk=32)


def test_the_long_prompt_is_computed_whole_or_in_chunks(figures):
    most = [
        max(row.num_tokens for step in each.trace.index.steps for row in step.rows if row.request_id == each.long)
        for each in figures
    ]
    assert most == [600, 30]


def test_streams_get_tokens_between_chunks(figures):
    # a step that computes a chunk gives every stream a token too
    assert figures[1].tokens_meanwhile >= 2 * (600 // 30 - 1)
    for each in figures:
        assert each.gaps_ms == sorted(each.gaps_ms)
        assert min(each.quiet_itl_ms, each.ttft_ms) > 0
        assert each.trace.check() == []


def test_table_and_object_have_a_row_for_each_mode(figures):
    assert phase_table(figures).row_count == 2
    assert list(phase_object(figures)) == ["whole", "chunked"]
