"""The tables of ranks, collectives and transfers, and what a part of a trace keeps of them."""

from __future__ import annotations

from dataclasses import replace

from synthetic import make_info, story

from llmlab.trace.split_events import BlockTransfer, Collective, RankWork
from llmlab.trace.trace import Trace

WORK = RankWork(3_000_000, 5_000_000, 0, 1, "tensor", "forward", -1, 0, 29, 4)
REDUCE = Collective(4_000_000, 4_500_000, 0, 1, "tensor", "all_reduce", 3, "mlp", 4608, 3)
SEND = BlockTransfer(6_000_000, 8_000_000, 0, "r0", "send", "prefill", "decode", "socket", (3, 4), 30, 1024, "as asked")


def test_the_tables_give_every_field_and_times_on_the_traces_clock():
    trace = Trace([make_info(1_000_000, 4, 4, 4), WORK, REDUCE, SEND])
    (rank,) = trace.ranks.to_dict("records")
    assert (rank["start_s"], rank["duration_ms"], rank["rank"], rank["last_layer"]) == (0.002, 2.0, 1, 29)
    (call,) = trace.collectives.to_dict("records")
    assert (call["kind"], call["layer"], call["place"], call["nbytes"]) == ("all_reduce", 3, "mlp", 4608)
    (copy,) = trace.transfers.to_dict("records")
    assert (copy["blocks"], copy["num_tokens"], copy["nbytes"], copy["medium"]) == ((3, 4), 30, 1024, "socket")


def test_a_trace_without_them_has_empty_tables_with_the_same_columns():
    trace = Trace(story())
    for name in ("ranks", "collectives", "transfers"):
        assert list(getattr(trace, name).columns) == list(Trace.columns(name))
        assert getattr(trace, name).empty


def test_a_request_keeps_its_own_transfers_and_the_work_done_during_its_life():
    events = list(story())
    first = events[0].t_ns
    late = RankWork(10**15, 10**15 + 1, 9, 0, "tensor", "forward")
    part = Trace([*events, RankWork(first, first + 10**12, 0, 0, "tensor", "forward"), late, SEND]).for_request("r0")
    assert len(part.transfers) == 1
    assert list(part.ranks.step) == [0]


def test_a_group_that_a_file_claims_to_be_endless_is_checked_in_no_time():
    claimed = replace(REDUCE, rank=0, group_size=2**62)
    (problem,) = Trace([claimed]).check()
    assert "ranks 1 and 0 differ in a collective: 0 and 1 in all" in problem
