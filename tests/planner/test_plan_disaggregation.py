"""When handing K/V over pays."""

from __future__ import annotations

import pytest

from llmlab.errors import InvalidParameter
from llmlab.planner.disaggregation import break_even_tokens, handover
from llmlab.planner.links import Link


def test_the_articles_handover():
    fast, slow = (handover("Llama-3-8B", 10_000, over, "a100") for over in ("400gbps", "10gbps"))
    assert fast.kv_bytes == 1_310_720_000
    assert fast.transfer_s == pytest.approx(0.0262, abs=1e-4)
    assert slow.transfer_s == pytest.approx(1.0486, abs=1e-4)
    assert fast.pays
    assert not slow.pays, "sending takes longer than the one stream would have waited"
    assert handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=4).pays


def test_break_even_streams_is_where_it_begins_to_pay():
    one = handover("Llama-3-8B", 10_000, "10gbps", "a100")
    assert 1 < one.break_even_streams < 2
    assert not handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=1).pays
    assert handover("Llama-3-8B", 10_000, "10gbps", "a100", num_streams=2).pays


def test_at_the_break_even_rate_both_take_equally_long():
    given = handover("Llama-3-8B", 10_000, "10gbps", "a100")
    over = Link("made up", given.break_even_bytes_per_s, 0.0, "this test")
    again = handover("Llama-3-8B", 10_000, over, "a100")
    assert again.transfer_s == pytest.approx(again.prefill_s)


def test_sending_layer_by_layer_hides_most_of_a_fast_transfer():
    fast, slow = (handover("Llama-3-8B", 10_000, over, "a100") for over in ("400gbps", "10gbps"))
    assert fast.overlapped_s == fast.transfer_s / 32
    assert fast.transfer_s / 32 < slow.overlapped_s < slow.transfer_s


def test_from_the_break_even_length_on_sending_is_faster():
    length = break_even_tokens("Llama-3-8B", "10gbps", "a100")
    assert handover("Llama-3-8B", length, "10gbps", "a100").break_even_streams <= 1
    assert handover("Llama-3-8B", length - 1, "10gbps", "a100").break_even_streams > 1
    assert break_even_tokens("Llama-3-8B", "nvlink4", "a100") == 1
    assert break_even_tokens("Llama-3-8B", "10gbps", "a100", longest=4096) is None


def test_a_latent_travels_lighter():
    latent, expanded = (
        handover("DeepSeek-V3", 1000, "400gbps", "h200", weights="fp8", layout=layout)
        for layout in ("latent", "expanded")
    )
    assert expanded.kv_bytes / latent.kv_bytes == pytest.approx(71.1, abs=0.1)


def test_nonsense_is_refused():
    with pytest.raises(InvalidParameter):
        handover("Llama-3-8B", 0, "10gbps", "a100")
    with pytest.raises(InvalidParameter):
        handover("Llama-3-8B", 10, "10gbps", "a100", num_streams=0)
