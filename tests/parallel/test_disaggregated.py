"""Prompts computed in another process: equal tokens, counted bytes, and what is left when something goes wrong."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import weakref

import psutil
import pytest
from handing_over import answers, finished, is_alive, wait_until

import llmlab
from llmlab.errors import EngineStopped, InvalidParameter, PoolTooSmall, PrefillLost
from llmlab.parallel.prefill_process import PrefillProcess, PrefillSettings

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at POSIX processes")

LONG = "The quick brown fox jumps over the lazy dog. " * 5
PROMPTS = (LONG, "hi", LONG + "again", "A", "x" * 33, "y" * 16, "y" * 17)
RULES = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "seed": 3},
    "samples": {"temperature": 1.0, "seed": 3, "n": 2, "logprobs": 2},
    "penalties": {"temperature": 0.7, "seed": 1, "frequency_penalty": 1.0, "stop": ["q"]},
}


@pytest.fixture(scope="module")
def alone():
    """One process for everything."""
    with llmlab.open("mock", background=False) as lab:
        yield lab


@pytest.fixture(scope="module", params=["shared memory", "socket"])
def lab(request):
    """A background engine that decodes, and a process that prefills."""
    with llmlab.open("mock", disaggregated=request.param, num_blocks=128, max_num_batched_tokens=64) as lab:
        yield lab


@pytest.fixture(scope="module")
def by_hand():
    """Stepped by hand, with room for few requests."""
    with llmlab.open("mock", background=False, disaggregated=True, num_blocks=18, max_num_seqs=3) as lab:
        yield lab


@pytest.mark.parametrize("rule", RULES)
def test_tokens_equal_one_process(lab, alone, rule):
    assert answers(lab, PROMPTS, max_tokens=12, **RULES[rule]) == answers(alone, PROMPTS, max_tokens=12, **RULES[rule])


def test_bytes_are_those_of_the_blocks_of_all_but_the_last_position(lab):
    runs = finished(lab, PROMPTS, max_tokens=2)
    info, moved = lab.trace.info, lab.trace.transfers.set_index(["request_id", "action"])
    for run in runs:
        ready = len(run.prompt_token_ids) - 1
        if ready == 0:
            assert run.id not in moved.index.get_level_values(0)
            continue
        sent, received = (moved.loc[(run.id, action)].to_dict() for action in ("send", "receive"))
        blocks = -(-ready // info.block_size)
        block_bytes = info.block_size * info.kv_bytes_per_token
        assert (sent["num_tokens"], len(sent["blocks"]), sent["nbytes"]) == (ready, blocks, blocks * block_bytes)
        # equal blocks that were here already are shared, not written again
        assert received["nbytes"] == len(received["blocks"]) * block_bytes <= sent["nbytes"]
        assert sent["start_s"] <= received["start_s"]


def test_this_process_computes_one_position_of_a_prompt(lab):
    run = lab.ask("a prompt nobody sent before " + LONG, raw=True, max_tokens=3)
    rows = lab.trace.schedule.query("request_id == @run.id and action == 'ran'")
    assert rows.num_tokens.tolist() == [1, 1, 1]
    work = run.trace.ranks.query("role == 'prefill' and name == 'forward'")
    assert work.num_tokens.sum() == len(run.prompt_token_ids) - 1
    assert set(work["rank"]) == {1}
    assert work.num_tokens.max() <= 64, "it is chunked by that engine's own budget"


def test_the_trace_adds_up_and_its_spans_tile_the_wait(lab):
    finished(lab, PROMPTS, max_tokens=4, n=2)
    trace = lab.trace
    assert trace.check() == []
    spans = trace.spans
    for request_id, own in spans[spans.request_id.notna()].groupby("request_id"):
        leaves = own[~own.span_id.isin(spans.parent_id)]
        assert leaves.duration_ms.sum() == pytest.approx(own[own.name == "request"].duration_ms.sum())
        handed = trace.transfers.request_id.eq(request_id).any()
        assert ("K/V transfer" in set(own.name)) == ("prefill process" in set(own.name)) == handed
    assert (trace.requests.queue_ms <= trace.requests.ttft_ms).all()
    assert llmlab.Trace(list(trace.events)).transfers.equals(trace.transfers)


def test_usage_counts_the_other_process_prefix_hits(lab):
    first, second = (lab.ask("shared beginning " + LONG, raw=True, max_tokens=2) for _ in range(2))
    length = len(first.prompt_token_ids)
    assert first.usage["cached_tokens"] == 0
    assert second.usage["cached_tokens"] == second.num_cached == (length - 2) // 16 * 16
    salted = lab.ask("shared beginning " + LONG, raw=True, max_tokens=2, cache_salt="other")
    assert salted.usage["cached_tokens"] == 0


def test_prewarming_fills_the_other_process_cache(lab):
    assert lab.ask("warm " + LONG, raw=True, max_tokens=0).token_ids == []
    assert lab.ask("warm " + LONG + "!", raw=True, max_tokens=1).usage["cached_tokens"] > 200


def test_drafts_from_n_grams_work(alone):
    repeating = "abcabcabcabc" * 6
    with llmlab.open("mock", background=False, disaggregated=True, speculative="ngram") as lab:
        assert answers(lab, [repeating, LONG], max_tokens=20) == answers(alone, [repeating, LONG], max_tokens=20)
        assert lab.trace.check() == []


def test_what_cannot_be_handed_over_is_refused_by_name(lab):
    for options in ({"prompt_logprobs": 1}, {"capture": llmlab.Capture(lens=True)}):
        with pytest.raises(InvalidParameter, match=next(iter(options))):
            lab.submit("hello", **options)
    with pytest.raises(InvalidParameter, match="'socket'"):
        llmlab.open("mock", disaggregated="pigeon")
    with pytest.raises(InvalidParameter, match="host_blocks"):
        llmlab.open("mock", disaggregated=True, host_blocks=4)
    with pytest.raises(PoolTooSmall):
        lab.submit("x" * 3000, raw=True, max_tokens=3)


def test_preempted_here_recomputed_here(by_hand, alone):
    prompts = ["a" * 60, "b" * 61, "c" * 62, "d" * 40]
    runs = [by_hand.submit(prompt, raw=True, max_tokens=60) for prompt in prompts]
    by_hand.engine.run_until_idle()
    assert [run.token_ids for run in runs] == [tokens for (tokens,) in answers(alone, prompts, max_tokens=60)]
    assert sum(run.usage["preemptions"] for run in runs) > 0
    assert sum(run.usage["recomputed_tokens"] for run in runs) > 0
    assert by_hand.trace.check() == []
    by_hand.engine.check_integrity()


def test_waiting_for_room_is_journalled_with_its_reason(by_hand):
    runs = [by_hand.submit(letter * 70, raw=True, max_tokens=4) for letter in "abcdef"]
    for run in runs:
        run.wait(timeout=60)
    reasons = set(by_hand.trace.schedule.query("action == 'waited'").reason)
    assert "its prompt is computed by the prefill process" in reasons
    assert reasons & {"every slot of the batch is taken", "not enough free blocks"}


def test_abort_while_the_prompt_is_away(by_hand):
    run = by_hand.submit(LONG, raw=True, max_tokens=5)
    run.abort()
    by_hand.engine.run_until_idle()
    assert run.stop_reason == "aborted"
    assert run.token_ids == []
    by_hand.engine.check_integrity()
    assert by_hand.ask("still there", raw=True, max_tokens=2).stop_reason == "length"
    assert by_hand.trace.check() == []


def test_a_lost_process_fails_its_requests_by_name_and_the_next_request_starts_another(by_hand):
    lost, memory = by_hand.engine.prefill.pid, weakref.ref(by_hand.engine.prefill)
    os.kill(lost, signal.SIGSTOP)  # so that the prompt is surely still there
    wait_until(lambda: psutil.Process(lost).status() == psutil.STATUS_STOPPED)
    run = by_hand.submit(LONG, raw=True, max_tokens=5)
    by_hand.engine.step()
    os.kill(lost, signal.SIGKILL)
    with pytest.raises(PrefillLost, match="ask again"):
        run.wait(timeout=60)
    assert by_hand.ask(LONG, raw=True, max_tokens=5).stop_reason == "length"
    assert by_hand.engine.prefill.pid != lost
    assert not is_alive(lost)
    del run
    gc.collect()
    assert memory() is None, "the lost process's shared memory is kept"
    by_hand.engine.check_integrity()


def test_close_leaves_no_process_no_memory_and_no_port():
    names = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    lab = llmlab.open("mock", disaggregated=True)
    me, pid = psutil.Process(), lab.engine.prefill.pid
    ports = [c for c in me.net_connections() if c.status == psutil.CONN_LISTEN]
    run = lab.submit(LONG, raw=True, max_tokens=3000)
    wait_until(lambda: run.token_ids)
    memory = lab.engine.prefill.memory
    lab.close()
    with pytest.raises(EngineStopped):
        run.wait()
    assert not is_alive(pid)
    assert [c for c in me.net_connections() if c.status == psutil.CONN_LISTEN] == ports
    assert memory.is_closed
    if names:
        assert not [name for name in set(os.listdir("/dev/shm")) - names if "llmlab" in name]


def test_a_lab_that_is_dropped_takes_its_process_along():
    lab = llmlab.open("mock", background=False, disaggregated="socket")
    pid = lab.engine.prefill.pid
    del lab
    gc.collect()
    wait_until(lambda: not is_alive(pid))


def test_a_killed_parent_takes_its_processes_along():
    program = textwrap.dedent("""
        import time
        import llmlab
        from llmlab.parallel.replicas import Replicas
        lab, replicas = llmlab.open("mock", disaggregated=True), Replicas(1, "mock")
        print(lab.engine.prefill.pid, *replicas.pids, flush=True)
        time.sleep(60)
    """)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_alive, pids)))


def test_what_cannot_be_opened_there_is_said():
    before = {child.pid for child in psutil.Process().children()}
    with pytest.raises(PrefillLost, match="block_size=0"):
        PrefillProcess(PrefillSettings("mock", {"block_size": 0}), print)
    assert {child.pid for child in psutil.Process().children()} <= before
