"""Lab 18: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

from llmlab.checks import check
from llmlab.checks.lab18 import prefix_hits, streams_needed, transfer_us
from llmlab.planner.disaggregation import handover


def test_the_right_answers_pass():
    assert check.lab18.q1(transfer_us)
    assert check.lab18.q2(prefix_hits)
    assert check.lab18.q3(streams_needed)
    assert check.lab18.q1(lambda nbytes, gbits: nbytes * 8 // (gbits * 1000))


def test_the_right_answers_agree_with_the_planner():
    found = handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=1)
    assert transfer_us(found.kv_bytes, 10) == pytest.approx(found.transfer_s * 1e6, rel=0.01)
    needed = streams_needed(round(found.transfer_s * 1e3), round(found.prefill_s * 1e3))
    assert not handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=needed - 1).pays
    assert handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=needed).pays


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab18.q1(lambda nbytes, gbits: ...))
    assert "replace the ..." in repr(check.lab18.q2(lambda base, growth, turns, replicas: ...))
    assert "replace the ..." in repr(check.lab18.q3(lambda transfer_ms, prefill_ms: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda nbytes, gbits: nbytes / (gbits * 1000), "a byte has 8"),
        (lambda nbytes, gbits: nbytes * 8 / (gbits * 1e9), "those are seconds"),
        (lambda nbytes, gbits: nbytes * 8 / (gbits * 1e6), "milliseconds"),
        (lambda nbytes, gbits: nbytes * gbits, "divide by its rate"),
    ],
)
def test_transfer_times_wrongly_computed(wrong, said):
    assert said in repr(check.lab18.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda b, g, n, r: sum(b + t * g for t in range(n - 1)), "always finds the right one"),
        (lambda b, g, n, r: sum(b + t * g for t in range(n)), "all prompt tokens"),
        (lambda b, g, n, r: sum(b + t * g for t in range(n)) // r, "not a fixed share"),
        (lambda b, g, n, r: sum(b + t * g for t in range(r, n)), "shorter than this one"),
    ],
)
def test_hits_wrongly_counted(wrong, said):
    assert said in repr(check.lab18.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda transfer, prefill: -(-transfer // prefill), "nothing is won yet"),
        (lambda transfer, prefill: transfer // prefill, "one more does"),
        (lambda transfer, prefill: prefill // transfer + 1 if transfer else 1, "the other way round"),
        (lambda transfer, prefill: transfer / prefill, "is whole"),
    ],
)
def test_break_even_wrongly_counted(wrong, said):
    assert said in repr(check.lab18.q3(wrong))
