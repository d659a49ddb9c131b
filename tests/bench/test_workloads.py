from __future__ import annotations

import pytest

from llmlab.bench.job import Served
from llmlab.bench.workloads import FULL, QUICK, WORKLOADS, Draw, by_name

LARGE, BYTES = 49_152, 258


def jobs(name, number=1, vocab_size=LARGE, sizes=FULL):
    return by_name()[name].jobs(Draw(name, number, vocab_size, sizes))


@pytest.mark.parametrize("name", by_name())
def test_prompts_repeat_within_a_round_and_differ_between_rounds(name):
    assert jobs(name) == jobs(name)
    assert jobs(name, 1)[0].prompts != jobs(name, 2)[0].prompts


@pytest.mark.parametrize("vocab_size", [LARGE, BYTES])
@pytest.mark.parametrize("sizes", [FULL, QUICK])
@pytest.mark.parametrize("name", by_name())
def test_ids_are_in_the_vocabulary(name, sizes, vocab_size):
    ids = {i for job in jobs(name, 1, vocab_size, sizes) for prompt in job.prompts for i in prompt}
    assert 0 < min(ids) <= max(ids) < vocab_size


def test_sizes_are_those_in_the_titles():
    (one,), (prefill,), (mixed,) = jobs("W1"), jobs("W2"), jobs("W3")
    assert ([len(p) for p in one.prompts], one.new_tokens) == ([64], 64)
    assert ([len(p) for p in prefill.prompts], prefill.new_tokens) == ([1024], 1)
    assert (len(mixed.prompts), mixed.new_tokens) == (16, 64)
    assert all(32 <= len(prompt) <= 256 for prompt in mixed.prompts)


def test_shared_prefix_is_served_without_a_cache_then_cold_then_warm():
    off, cold, warm = jobs("W4")
    assert off.prompts == cold.prompts == warm.prompts
    assert len({tuple(prompt[:512]) for prompt in cold.prompts}) == 1
    assert len({tuple(prompt[512:]) for prompt in cold.prompts}) == 8
    assert {len(prompt) for prompt in cold.prompts} == {544}
    assert (off.prefix_cache, cold.prefix_cache, warm.prefix_cache) == (False, True, True)
    assert cold.salt == warm.salt != jobs("W4", 2)[1].salt


def test_second_request_shares_512_tokens_and_its_own_differ():
    first, second = jobs("prefix_ttft")
    assert first.prompts[0][:512] == second.prompts[0][:512]
    assert first.prompts[0][512:] != second.prompts[0][512:]
    assert first.salt == second.salt


def read(name, *served):
    return by_name()[name].read(jobs(name), [Served(token_ids=[], **answer) for answer in served])


def test_one_request_gives_rate_first_token_and_time_per_token():
    figures = read("W1", {"seconds": 6.4, "first_token_s": 0.1})
    assert figures["tokens_per_s"] == pytest.approx(10)
    assert figures["ttft_ms"] == pytest.approx(100)
    assert figures["decode_ms_per_token"] == pytest.approx(100)


def test_rates_count_what_was_processed():
    assert read("W2", {"seconds": 2.0}) == {"prompt_tokens_per_s": 512}
    assert read("W3", {"seconds": 8.0}) == {"output_tokens_per_s": 128}


def test_cached_requests_are_told_apart():
    seconds = [{"seconds": s} for s in (9.0, 4.0, 2.0)]
    assert read("W4", *seconds) == {"no_cache_s": 9.0, "cold_s": 4.0, "warm_s": 2.0}
    firsts = [{"seconds": 1.0, "first_token_s": s} for s in (0.5, 0.125)]
    assert read("prefix_ttft", *firsts) == {"first_ttft_ms": 500, "cached_ttft_ms": 125}


def test_every_workload_reads_the_metrics_it_declares():
    answer = Served(1.0, [], first_token_s=0.5, outside_forward=0.1)
    for workload in WORKLOADS:
        made = jobs(workload.name)
        figures = workload.read(made, [answer] * len(made))
        assert figures.keys() == {metric.name for metric in workload.metrics}


def test_tracing_compares_equal_work_in_an_order_that_cancels_drift():
    workload = by_name()["tracing"]
    jobs = workload.jobs(Draw("tracing", 1, 49152, QUICK))
    assert [job.record for job in jobs] == [True, False, False, True]
    assert len({job.salt for job in jobs}) == 4, "no job may find another's prefixes"
    assert len({str(job.prompts) for job in jobs}) == 1
    served = [Served(seconds, []) for seconds in (4.0, 3.0, 5.0, 6.0)]
    assert workload.read(jobs, served) == {"recorded_s": 5.0, "unrecorded_s": 4.0}
