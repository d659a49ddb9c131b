"""K/V tiers: preempted and evicted blocks go to the host pool and come back, and no token changes."""

from __future__ import annotations

import pytest
import torch
from mock_serving import (
    assert_all_returned,
    assert_sound,
    continuation,
    greedy,
    mock_engine,
    prompt,
    sampled_continuation,
    step_until,
)
from tiny_models import as_loaded, family, generated

import llmlab
from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.host_copies import note_costs
from llmlab.engine.host_tier import HostTier
from llmlab.engine.mock_runner import MockModel
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import Reason, ScheduledRow, StepPlan, Swap
from llmlab.engine.request import Request, Status
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.swap_policy import WINDOW, SwapPolicy
from llmlab.errors import InvalidParameter
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace.split_events import BlockTransfer
from llmlab.trace.swap_check import swap_violations
from llmlab.trace.trace import Trace

CACHES = pytest.mark.parametrize("prefix_cache", ["hash", "radix", "off"])


def crowded(**options) -> tuple[Engine, list]:
    """Three requests in a pool too small for them."""
    engine = mock_engine(num_blocks=8, block_size=4, slots=4, **options)
    return engine, [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]


def assert_right(runs) -> None:
    for run in runs:
        for output in run.outputs:
            assert output.token_ids == continuation(run.prompt_token_ids, run.params.max_tokens)


def fates(engine: Engine) -> list[str]:
    """What became of the blocks of each preempted request."""
    reasons = [d.reason for d in engine.recorder.snapshot() if getattr(d, "action", "") == "preempted"]
    return [reason.partition("; ")[2] for reason in reasons]


# -- preempted requests ----------------------------------------------------------------------------------------


@CACHES
def test_swapped_requests_go_on_where_they_were_and_compute_nothing_again(prefix_cache):
    engine, runs = crowded(host_blocks=16, prefix_cache=prefix_cache)
    engine.run_until_idle()
    assert_right(runs)
    assert sum(run.usage["preemptions"] for run in runs) > 0
    assert sum(run.usage["recomputed_tokens"] for run in runs) == 0
    assert set(fates(engine)) == {Reason.SWAPPED}
    admissions = engine.trace.schedule["admission"].dropna()
    assert Reason.SWAPPED_IN in set(admissions)
    assert_all_returned(engine)


def test_the_trace_counts_what_was_copied_and_says_why():
    engine, runs = crowded(host_blocks=16, prefix_cache="off")
    engine.run_until_idle()
    trace = engine.trace
    transfers = trace.transfers
    outs, ins = (transfers.query(f"action == '{action}'") for action in ("swap_out", "swap_in"))
    assert sorted(outs["num_tokens"]) == sorted(ins["num_tokens"])
    assert (transfers["nbytes"] == transfers["blocks"].map(len) * 4 * trace.info.kv_bytes_per_token).all()
    assert {tuple(row) for row in outs[["source", "target", "medium"]].to_numpy()} == {("device", "host", "memory")}
    assert set(outs["request_id"]) == {run.id for run in runs if run.usage["preemptions"]}
    assert outs["reason"].str.contains("swap=always").all()
    assert (trace.info.num_host_blocks, trace.info.swap) == (16, "always")
    preempted = trace.requests.query("num_preemptions > 0")
    assert (preempted["num_preempted_tokens"] == 0).all()


def test_a_swap_is_in_the_perfetto_export():
    engine, _ = crowded(host_blocks=16, prefix_cache="off")
    engine.run_until_idle()
    trace = engine.trace
    events = [e for e in trace.to_perfetto()["traceEvents"] if e.get("cat") == "transfer"]
    assert [e["ph"] for e in events] == ["b", "e"] * len(trace.transfers)
    assert {e["name"] for e in events} == {"swap out", "swap in"}
    assert sum(e["args"]["bytes"] for e in events if e["ph"] == "b") == trace.transfers["nbytes"].sum()


@CACHES
def test_a_host_pool_without_room_means_recomputing_and_the_reason_says_so(prefix_cache):
    engine, runs = crowded(host_blocks=1, prefix_cache=prefix_cache)
    engine.run_until_idle()
    assert_right(runs)
    assert Reason.HOST_FULL in fates(engine)
    assert_all_returned(engine)


def test_never_swapping_recomputes_and_copies_nothing():
    engine, runs = crowded(host_blocks=16, swap="never")
    engine.run_until_idle()
    assert_right(runs)
    assert set(fates(engine)) == {Reason.SWAP_NEVER}
    assert len(engine.trace.transfers) == 0
    assert sum(run.usage["recomputed_tokens"] for run in runs) > 0
    assert_all_returned(engine)


def test_without_a_host_pool_nothing_is_said_about_it():
    engine, _ = crowded()
    engine.run_until_idle()
    assert set(fates(engine)) == {""}
    assert (engine.trace.info.num_host_blocks, engine.trace.info.swap) == (0, "off")


@CACHES
@pytest.mark.parametrize("n", [1, 2])
def test_aborted_while_swapped_out_leaves_nothing_behind(prefix_cache, n):
    engine = mock_engine(num_blocks=9, block_size=4, slots=4, host_blocks=24, prefix_cache=prefix_cache)
    stays = engine.submit(prompt(9, 1), greedy(24))
    leaves = engine.submit(prompt(9, 2), greedy(16, n=n))
    step_until(engine, lambda: any(r.host_table for r in engine.scheduler.waiting))
    leaves.abort()
    leaves.wait()
    assert_sound(engine)
    assert not any(r.host_table for r in engine.scheduler.waiting)
    assert stays.wait().token_ids == continuation(prompt(9, 1), 24)
    assert_all_returned(engine)


@CACHES
def test_samples_of_one_prompt_are_swapped_each_by_itself(prefix_cache):
    engine = mock_engine(num_blocks=9, block_size=4, slots=4, host_blocks=40, prefix_cache=prefix_cache)
    params = SamplingParams(max_tokens=12, n=3, temperature=1.1, seed=5)
    run = engine.submit(prompt(10), params)
    other = engine.submit(prompt(6, 3), greedy(20))
    engine.run_until_idle()
    assert [o.token_ids for o in run.outputs] == [sampled_continuation(prompt(10), params, i) for i in range(3)]
    assert_right([other])
    assert len(engine.trace.transfers) > 0
    assert_all_returned(engine)


def test_prompt_logprobs_go_on_after_a_swap_in_the_middle_of_the_prompt():
    engine = mock_engine(num_blocks=8, block_size=4, budget=4, slots=3, host_blocks=16)
    first = engine.submit(prompt(9, 1), greedy(20))
    step_until(engine, lambda: len(first.token_ids) > 0)
    scored = engine.submit(prompt(14, 2), greedy(4, prompt_logprobs=0))
    engine.run_until_idle()
    assert_right([first, scored])
    assert scored.usage["preemptions"] > 0
    assert scored.usage["recomputed_tokens"] == 0
    assert len(scored.prompt_logprobs) == 13
    assert_all_returned(engine)


# -- evicted prefixes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix_cache", ["hash", "radix"])
def test_an_evicted_prefix_is_found_in_the_host_pool(prefix_cache):
    engine = mock_engine(num_blocks=8, block_size=4, host_blocks=32, prefix_cache=prefix_cache)
    engine.submit(prompt(21, 1), greedy(2)).wait()
    engine.submit(prompt(29, 2), greedy(2)).wait()  # takes the whole pool
    again = engine.submit(prompt(21, 1), greedy(4)).wait()
    assert_right([again])
    assert again.usage["cached_tokens"] == 20
    trace = engine.trace
    ins = trace.transfers.query("action == 'swap_in'")
    assert (ins["request_id"] == again.id).all()
    assert ins["reason"].str.startswith("a prefix found in the host pool").all()
    assert (trace.transfers.query("action == 'swap_out'")["request_id"] == "").all()
    assert Reason.HOST_HIT in set(trace.schedule["admission"].dropna())
    assert_all_returned(engine)


def test_other_salts_and_scored_requests_find_nothing_in_the_host_pool():
    engine = mock_engine(num_blocks=8, block_size=4, host_blocks=32)
    engine.submit(prompt(21, 1), greedy(2, cache_salt="a")).wait()
    engine.submit(prompt(29, 2), greedy(2)).wait()
    other = engine.submit(prompt(21, 1), greedy(4)).wait()
    scored = engine.submit(prompt(21, 1), greedy(4, cache_salt="a", prompt_logprobs=0)).wait()
    assert [run.usage["cached_tokens"] for run in (other, scored)] == [0, 0]
    assert_right([other, scored])
    assert_all_returned(engine)


def test_hundreds_of_requests_through_two_small_pools():
    engine = mock_engine(num_blocks=9, block_size=4, slots=6, budget=24, host_blocks=5, prefix_cache="radix")
    runs = [engine.submit(prompt(3 + i % 9, start=i % 5), greedy(12, n=1 + (i % 7 == 0))) for i in range(150)]
    while engine.step():
        engine.check_integrity()
    assert_right(runs)
    assert {Reason.SWAPPED, Reason.HOST_FULL} <= set(fates(engine))
    assert_all_returned(engine)


# -- what is cheaper -------------------------------------------------------------------------------------------


def measured(copy_ns_per_byte: int, compute_ns_per_token: int) -> SwapPolicy:
    policy = SwapPolicy("auto")
    policy.note_copy(1000, 1000 * copy_ns_per_byte)
    policy.note_step(100, 100, 100 * compute_ns_per_token)
    return policy


def test_auto_compares_what_was_measured_and_names_both_costs():
    weighed = measured(2, 5_000).weigh(100, 10_000)
    assert weighed.copies
    assert weighed.words == "copying 10,000 bytes takes about 0.02 ms, computing 100 tokens again 0.50 ms"
    assert not measured(2, 100).weigh(100, 10_000).copies


def test_nothing_is_copied_before_both_costs_are_known():
    policy = SwapPolicy("auto")
    policy.note_copy(100, 1)
    assert policy.weigh(10, 10).words == "not measured yet"
    policy.note_step(3, 10, 50)  # mostly decode: it says little about a prompt
    assert not policy.weigh(10, 10).copies
    policy.note_step(5, 10, 50)
    assert policy.weigh(10, 10).copies


def test_old_measurements_are_forgotten():
    policy = measured(1_000_000, 1)
    for _ in range(WINDOW):
        policy.note_copy(10, 10)
    assert policy.bytes_copied.cost_ns(7) == 7


@pytest.mark.parametrize(("copy_ns", "fate"), [(1, Reason.SWAPPED), (10**12, Reason.RECOMPUTE_CHEAPER)])
def test_the_engine_does_what_is_cheaper(copy_ns, fate):
    engine, runs = crowded(host_blocks=16, swap="auto", prefix_cache="off")
    policy = engine.pool.host.policy
    policy.bytes_copied.note(1, copy_ns)
    policy.tokens_computed.note(1, 1_000_000_000)
    policy.note_step = policy.note_copy = lambda *_: None
    engine.run_until_idle()
    assert_right(runs)
    assert set(fates(engine)) == {fate}
    assert_all_returned(engine)


def test_the_time_of_the_copies_is_no_time_of_the_tokens():
    policy = SwapPolicy("auto")
    request = Request("a", [1] * 10, SamplingParams(), seed=0, max_tokens=1)
    plan = StepPlan(0, [ScheduledRow(request, 0, 10, 0, True, True, 1)])
    plan.swaps = [Swap("b", True, [(0, 0)], 4, "", t_ns=100, end_ns=700, nbytes=60)]
    note_costs(policy, plan, 1600)
    assert (policy.bytes_copied.cost_ns(1), policy.tokens_computed.cost_ns(1)) == (10, 100)


def test_opening_measures_a_copy_first():
    with llmlab.open("mock", host_blocks=4, background=False) as lab:
        assert lab.engine.pool.host.policy.bytes_copied.cost_ns(1000) > 0
        assert "per MiB copied" in str(lab.engine.pool.host.policy)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host_blocks": -1}, "host_blocks=-1"),
        ({"host_blocks": 2.0}, "host_blocks=2.0"),
        ({"swap": "on"}, "swap='on'"),
        ({"host_blocks": 4, "disaggregated": True}, "choose one of the two"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(InvalidParameter, match=words):
        llmlab.open("mock", **options)


# -- failures and checks ---------------------------------------------------------------------------------------


class Stumbling(MockModel):
    """Fails once, before it copies anything, when a request is to be swapped out."""

    has_failed = False

    def forward(self, batch):
        if not self.has_failed and any(swap.is_out and swap.request_id for swap in batch.swaps):
            self.has_failed = True
            raise RuntimeError("stumbled")
        return super().forward(batch)


@CACHES
def test_a_step_that_failed_before_its_copies_leaves_no_empty_block_to_be_read(prefix_cache):
    runner = Stumbling(8, 4)
    engine = mock_engine(runner=runner, slots=4, host_blocks=16, prefix_cache=prefix_cache)
    runs = [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]
    engine.run_until_idle()
    assert runner.has_failed
    ended = [run for run in runs if run.error is None]
    assert 0 < len(ended) < 3
    assert_right(ended)
    again = [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]
    engine.run_until_idle()
    assert_right(again)
    engine.check_integrity()


class Fainting(MockModel):
    """Fails once, when a request has been swapped out."""

    has_failed = False

    def forward(self, batch):
        logits = super().forward(batch)
        if not self.has_failed and any(swap.is_out and swap.request_id for swap in batch.swaps):
            self.has_failed = True
            raise RuntimeError("fainted")
        return logits


def test_copies_of_a_step_that_failed_after_them_are_in_the_trace():
    """What was swapped out in it comes in again later, so it has to have gone out."""
    runner = Fainting(8, 4)
    engine = mock_engine(runner=runner, slots=4, host_blocks=16, prefix_cache="off")
    runs = [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]
    engine.run_until_idle()
    assert runner.has_failed
    assert_right([run for run in runs if run.error is None])
    assert (engine.trace.transfers["action"] == "swap_in").any()
    assert engine.trace.check() == []


def test_integrity_covers_the_host_pool():
    engine, _ = crowded(host_blocks=16)
    step_until(engine, lambda: any(r.host_table for r in engine.scheduler.waiting))
    engine.check_integrity()
    waiting = next(r for r in engine.scheduler.waiting if r.host_table)
    waiting.host_table.pop()
    with pytest.raises(AssertionError, match="host block"):
        engine.check_integrity()


def test_a_host_block_freed_twice_is_caught():
    tier = HostTier(2, 4, 32, SwapPolicy("always"))
    request = Request("a", [1] * 6, SamplingParams(), seed=0, max_tokens=1, num_computed=5)
    assert tier.swap_out(request, [3, 1], findable=True) is Reason.SWAPPED
    stale = list(request.host_table)
    tier.release(request)
    request.host_table = stale
    with pytest.raises(AssertionError, match="freed twice"):
        tier.release(request)


def violations(**changes) -> list[str]:
    engine, _ = crowded(host_blocks=16, prefix_cache="off")
    engine.run_until_idle()
    events = list(engine.recorder.snapshot())
    which = next(i for i, e in enumerate(events) if isinstance(e, BlockTransfer) and e.action == "swap_in")
    values = {name: getattr(events[which], name) for name in BlockTransfer.__dataclass_fields__}
    events[which] = BlockTransfer(**values | changes)
    return list(swap_violations(Trace(events).index))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"nbytes": 7}, "7 bytes"),
        ({"num_tokens": 0}, "0 tokens"),
        ({"host_blocks": (15,)}, "host blocks"),
        ({"blocks": (1,), "host_blocks": (15,), "nbytes": 32, "num_tokens": 4}, "nothing had been copied"),
        ({"blocks": (1,), "host_blocks": (99,), "nbytes": 32, "num_tokens": 4}, "host block 99"),
    ],
)
def test_the_check_sees_swaps_that_do_not_add_up(changes, words):
    found = violations(**changes)
    assert found == [] if words is None else any(words in text for text in found)


# -- a model with real keys and values -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gemma3_text"])
@CACHES
def test_keys_and_values_come_back_as_they_were(name, prefix_cache):
    model = family(name)
    runner = build_runner(as_loaded(model), block_size=4, num_blocks=14)
    engine = Engine(
        runner,
        ByteTokenizer(),
        config=SchedulerConfig(64, 4),
        prefix_cache=prefix_cache,
        host_blocks=30,
        swap="always",
    )
    prompts = [[(7 * i + 3 * j) % 97 for j in range(9 + i)] for i in range(4)]
    runs = [engine.submit(tokens, greedy(14)) for tokens in prompts]
    engine.run_until_idle()
    assert [run.token_ids for run in runs] == [generated(model, tokens, 14) for tokens in prompts]
    assert sum(run.usage["preemptions"] for run in runs) > 0
    assert sum(run.usage["recomputed_tokens"] for run in runs) == 0
    assert_all_returned(engine)


def test_a_block_that_went_out_and_in_is_bit_for_bit_the_same():
    runner = build_runner(as_loaded(family("llama")), block_size=4, num_blocks=6)
    pool = runner.pool
    for store in pool._stores:
        store.normal_()
    before = [store[:, :, 2].clone() for store in pool._stores]
    runner.open_host(3)
    swaps = [Swap("a", True, [(2, 1)], 4, ""), Swap("a", False, [(5, 1)], 4, "")]
    runner.swap(swaps)
    assert all(torch.equal(store[:, :, 5], old) for store, old in zip(pool._stores, before, strict=True))
    assert [swap.nbytes for swap in swaps] == [4 * pool.bytes_per_token] * 2
    assert all(0 < swap.t_ns <= swap.end_ns for swap in swaps)


@pytest.mark.parametrize("host_blocks", [0, 3])
def test_a_pass_whose_time_decides_about_swaps_is_awaited_on_cuda(host_blocks, monkeypatch):
    runner = build_runner(as_loaded(family("llama")), block_size=4, num_blocks=6)
    if host_blocks:
        runner.open_host(host_blocks)
    request = Request("a", [1, 2, 3], SamplingParams(), seed=0, max_tokens=1, block_table=[0])
    batches = runner.build(StepPlan(0, [ScheduledRow(request, 0, 3, 0, True, True, 1)]))
    awaited = []
    monkeypatch.setattr(torch.cuda, "synchronize", awaited.append)
    runner._input_device = torch.device("cuda")
    assert runner.forward(batches).shape[0] == 1
    assert len(awaited) == bool(host_blocks)


def test_waiting_requests_hold_host_blocks_only_while_swapped_out():
    engine, _ = crowded(host_blocks=16)
    seen = False
    while engine.step():
        for request in engine.scheduler.waiting:
            seen = seen or bool(request.host_table)
            assert not request.host_table or request.status is Status.PREEMPTED
    assert seen
    assert engine.pool.host.num_blocks == 16


def test_swaps_are_saved_and_loaded(tmp_path):
    engine, _ = crowded(host_blocks=16)
    engine.run_until_idle()
    trace = engine.trace
    trace.save(tmp_path / "swaps.jsonl.gz")
    loaded = Trace.load(tmp_path / "swaps.jsonl.gz")
    assert loaded.index.transfers == trace.index.transfers
    assert loaded.info == trace.info
    assert loaded.check() == []
