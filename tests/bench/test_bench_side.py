"""The benches beside the workloads, at their shortest: they measure, judge and write what they say."""

from __future__ import annotations

import json

import pytest

from llmlab.bench.probes import measure_probes, probe_object, probe_table
from llmlab.bench.wire import measure_wire, wire_object, wire_table


def test_the_wire_is_measured_at_both_endpoints():
    figures = measure_wire(1)
    assert set(figures) == {"anthropic", "openai"}
    assert all(len(f.single) == len(f.single_direct) == 40 for f in figures.values())
    assert all(len(f.long) == len(f.long_direct) == 16 for f in figures.values())
    written = json.loads(json.dumps(wire_object(figures)))
    assert written["openai"]["added_per_step_ms"] == pytest.approx(8 * written["openai"]["added_per_token_ms"])
    assert wire_table(figures).row_count == 7


@pytest.mark.model
def test_looking_inside_is_measured_beside_plain_steps():
    figures = measure_probes(1, model="smollm2-135m")
    assert len(figures.plain) == 1
    assert all(len(values) == 1 and values[0] > 0 for values in figures.captured.values())
    written = json.loads(json.dumps(probe_object(figures)))
    assert written["added"].keys() == figures.captured.keys()
    assert probe_table(figures).row_count == 1 + len(figures.captured)
