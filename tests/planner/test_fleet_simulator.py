"""The simulated fleet: the real engine's decisions and times, nothing lost by skipping ahead, each of its parts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from paced import TIMES, paced_lab, wait_on

from llmlab import views
from llmlab.bench.fleet import serve
from llmlab.errors import InvalidParameter, PoolTooSmall
from llmlab.gateway.balancing import owner
from llmlab.planner.fleet import (
    Fleet,
    Prefixes,
    Speculating,
    agents,
    at_once,
    bursty,
    poisson,
    replay,
    simulate,
    uniform,
)
from llmlab.planner.links import link

MIXED = poisson(3.0, 120, uniform(20, 200), uniform(1, 60), prefixes=Prefixes(3, 64), seed=1)
AGENTS = agents(0.4, 15, 5, uniform(20, 120), uniform(10, 40), think_s=0.5, system=128)
BURSTS = bursty(3.0, 100, uniform(20, 200), uniform(1, 60))
SPLIT = {"prefill_replicas": 1, "link": link("10gbps"), "kv_bytes_per_token": 23_040}
FLEETS = {
    "one": (Fleet(TIMES), MIXED),
    "three": (Fleet(TIMES, replicas=3, routing="round_robin"), MIXED),
    "small pool": (Fleet(TIMES, num_blocks=40), MIXED),
    "no cache": (Fleet(TIMES, num_blocks=40, prefix_cache=False), BURSTS),
    "static": (Fleet(TIMES, policy="static", max_num_seqs=4), MIXED),
    "small budget": (Fleet(TIMES, max_num_batched_tokens=48, max_num_seqs=6), BURSTS),
    "agents": (Fleet(TIMES, replicas=2, num_blocks=200, routing="prefix_affine"), AGENTS),
    "reserving": (Fleet(TIMES, num_blocks=60, reserve=0.5), BURSTS),
    "split": (Fleet(TIMES, **SPLIT), MIXED),
    "split, small pool": (Fleet(TIMES, num_blocks=40, replicas=2, **SPLIT), BURSTS),
    "drafts": (Fleet(TIMES, num_blocks=100, speculation=Speculating(0.7, 4)), MIXED),
    "drafts by load": (Fleet(TIMES, speculation=Speculating(0.7, 4, by_load=True, draft_cost=0.1)), BURSTS),
}
every_fleet = pytest.mark.parametrize("name", FLEETS)


@pytest.fixture(scope="module")
def recorded():
    """Every fleet's run with all events, each made once."""
    found = {}

    def run(name):
        if name not in found:
            found[name] = simulate(*FLEETS[name], record=True)
        return found[name]

    return run


@every_fleet
def test_skipping_ahead_changes_nothing(name, recorded):
    fleet, workload = FLEETS[name]
    quick, slow = simulate(fleet, workload), recorded(name)
    step_by_step = simulate(fleet, workload, skip=False)
    for other in (slow, step_by_step):
        pd.testing.assert_frame_equal(quick.requests, other.requests)
        pd.testing.assert_frame_equal(quick.replicas, other.replicas)
        assert quick.itl_ms(1, 50, 90, 99, 100) == other.itl_ms(1, 50, 90, 99, 100)


@every_fleet
def test_every_trace_adds_up(name, recorded):
    for trace in recorded(name).traces:
        assert trace.info.simulated == TIMES.source
        assert trace.check() == []


@every_fleet
def test_the_figures_are_those_of_the_traces(name, recorded):
    """Traces of replicas that only compute prompts have no tokens; the rest tells everything again."""
    result = recorded(name)
    tables = [trace.requests.dropna(subset="ttft_ms") for trace in result.traces]
    told = pd.concat(tables).set_index("request_id").loc[result.requests.request_id]
    for ours, theirs in (("ttft_ms", "ttft_ms"), ("e2e_ms", "e2e_ms"), ("queue_ms", "queue_ms")):
        np.testing.assert_allclose(result.requests[ours], told[theirs], rtol=0, atol=1e-3)
    for column in ("num_prompt_tokens", "num_cached_tokens", "num_output_tokens"):
        assert result.requests[column].tolist() == told[column].tolist()
    gaps = [ms for trace in result.traces for ms in token_gaps(trace)]
    assert result.gaps[1].sum() == len(gaps)
    assert result.itl_ms(90)[0] == pytest.approx(np.percentile(gaps, 90, method="inverted_cdf"), abs=1e-3)


def token_gaps(trace):
    """Milliseconds between two tokens of a request."""
    last = {}
    for token in trace.index.tokens:
        if token.request_id in last:
            yield (token.t_ns - last[token.request_id]) / 1e6
        last[token.request_id] = token.t_ns


@pytest.mark.parametrize("options", [{}, {"num_blocks": 40}, {"budget": 48, "max_num_seqs": 4}], ids=str)
def test_the_simulator_decides_and_times_as_the_engine_does(monkeypatch, options):
    """The engine itself, on a clock that only its steps move, against the replay of what it recorded."""
    lab, clock = paced_lab(monkeypatch, **options)
    serve(lab, poisson(3.0, 60, uniform(20, 200), uniform(2, 40), seed=3), wait_on(lab, clock))
    trace = lab.trace
    result = simulate(Fleet.like(trace.info, TIMES), replay(trace), record=True)
    columns = ["step", "request_id", "action", "reason", "num_tokens", "start", "num_cached", "by"]
    pd.testing.assert_frame_equal(trace.schedule[columns], result.trace.schedule[columns])
    blocks = ["step", "block_id", "action", "request_id", "index", "ref_count", "hash"]
    pd.testing.assert_frame_equal(trace.blocks[blocks], result.trace.blocks[blocks])
    np.testing.assert_allclose(trace.requests.ttft_ms, result.requests.ttft_ms, rtol=0, atol=1e-6)
    np.testing.assert_allclose(trace.requests.e2e_ms, result.requests.e2e_ms, rtol=0, atol=1e-6)


def test_the_same_arguments_give_the_same_result():
    fleet, workload = FLEETS["drafts by load"]
    assert asdict(simulate(fleet, workload).summary) == asdict(simulate(fleet, workload).summary)


def test_it_needs_no_torch():
    code = "import sys, llmlab.planner.fleet, llmlab.planner.calibrate; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


# -- routing --------------------------------------------------------------------------------------------------


def test_round_robin_deals_evenly():
    counts = simulate(*FLEETS["three"]).requests.replica.value_counts()
    assert counts.tolist() == [40, 40, 40]


def test_a_session_stays_with_its_owner_while_loads_are_even():
    fleet = Fleet(TIMES, replicas=4, routing="prefix_affine")
    result = simulate(fleet, agents(0.02, 12, 4, uniform(20, 60), uniform(5, 20), think_s=0.1))
    homes = result.requests.replica.astype(str)
    names = [f"replica {i}" for i in range(4)]
    owners = [names[owner(b"session %d" % number, names)] for number in range(12)]
    assert set(homes) == set(owners)
    assert homes.value_counts().to_dict() == pd.Series(owners).value_counts().mul(4).to_dict()


def test_routing_by_prefix_hits_more_than_dealing_evenly():
    rates = [
        simulate(Fleet(TIMES, replicas=3, routing=routing), AGENTS).summary.hit_rate
        for routing in ("round_robin", "prefix_affine")
    ]
    assert rates[1] > rates[0] + 0.1


def test_least_loaded_balances_what_is_present():
    result = simulate(Fleet(TIMES, replicas=4, routing="least_loaded"), at_once(40, 50, 20))
    assert result.requests.replica.value_counts().tolist() == [10] * 4


# -- prefill and decode apart ---------------------------------------------------------------------------------


def test_a_split_computes_prompts_on_one_side_and_sends_all_but_their_last_token(recorded):
    result = recorded("split")
    decode, prefill = result.traces
    prompt_rows = decode.schedule.query("action == 'ran' and is_prefill and reason == 'prefill'")
    assert (prompt_rows.num_tokens == 1).all()
    assert len(prompt_rows) == len(result.requests)
    prompts = result.requests.num_prompt_tokens
    assert prefill.steps.num_tokens.sum() == (prompts - 1).sum() - prefill.requests.num_cached_tokens.sum()
    assert result.transfer_bytes == (prompts - 1).sum() * 23_040
    assert decode.transfers.nbytes.sum() == result.transfer_bytes


def test_a_slower_link_delays_the_first_token_by_its_transfer():
    lone = at_once(1, 100, 5)
    times = [
        simulate(Fleet(TIMES, **(SPLIT | {"link": link(name)})), lone).requests.ttft_ms[0]
        for name in ("400gbps", "10gbps")
    ]
    nbytes = 99 * 23_040
    assert times[1] - times[0] == pytest.approx(1e3 * (link("10gbps").time_s(nbytes) - link("400gbps").time_s(nbytes)))


def test_a_split_spares_decoding_the_prompts():
    busy = poisson(6.0, 150, uniform(200, 400), uniform(20, 40), seed=5)
    together = simulate(Fleet(TIMES, replicas=2, num_blocks=1_024), busy)
    apart = simulate(Fleet(TIMES, replicas=1, num_blocks=1_024, **SPLIT), busy)
    assert apart.itl_ms(99)[0] < together.itl_ms(99)[0]


# -- admission ------------------------------------------------------------------------------------------------


def test_a_reservation_of_everything_never_preempts_and_runs_fewer():
    crowd = at_once(24, 40, 30, max_tokens=300)
    none, half, whole = (
        simulate(Fleet(TIMES, num_blocks=60, max_num_seqs=16, reserve=share), crowd, record=True)
        for share in (0.0, 0.5, 1.0)
    )
    most = [result.trace.steps.num_rows.max() for result in (none, half, whole)]
    assert most == sorted(most, reverse=True)
    assert most[0] > most[2] == 60 // -(-(40 + 300) // 16)
    assert whole.summary.preemptions == 0 < none.summary.preemptions


def test_reserving_nothing_is_the_engine_s_own_rule():
    fleet, workload = FLEETS["small pool"]
    assert simulate(fleet, workload).summary == simulate(fleet.with_(reserve=0.0), workload).summary


# -- speculation ----------------------------------------------------------------------------------------------


def test_drafts_that_are_always_kept_divide_the_steps():
    lone = at_once(1, 32, 61)
    plain = simulate(Fleet(TIMES), lone).replicas.steps[0]
    drafted = simulate(Fleet(TIMES, speculation=Speculating(1.0, 4)), lone).replicas.steps[0]
    assert (plain, drafted) == (61, 1 + 60 // 5)


def test_drafts_that_are_never_kept_cost_and_give_nothing():
    lone = at_once(1, 32, 30)
    plain, drafted = (
        simulate(Fleet(TIMES, speculation=speculation), lone) for speculation in (None, Speculating(0.0, 4))
    )
    assert plain.replicas.steps[0] == drafted.replicas.steps[0]
    assert drafted.requests.e2e_ms[0] > plain.requests.e2e_ms[0]


def test_drafts_by_load_shrink_in_a_crowd():
    fleet = Fleet(TIMES, max_num_seqs=16, num_blocks=1_024, speculation=Speculating(0.6, 4, by_load=True))
    alone, crowd = (simulate(fleet, at_once(number, 32, 60), record=True).trace for number in (1, 16))
    drafted = [
        np.mean([row.num_draft for step in trace.index.steps for row in step.rows if not row.is_prefill])
        for trace in (alone, crowd)
    ]
    assert drafted[0] > 2 > drafted[1]
    assert len(crowd.draft_policies)


# -- results --------------------------------------------------------------------------------------------------


def test_goodput_counts_those_that_met_both_objectives():
    result = simulate(*FLEETS["one"])
    table = result.requests
    limits = {"ttft_ms": float(table.ttft_ms.median()), "itl_ms": float(table.itl_ms.median())}
    met = (table.ttft_ms <= limits["ttft_ms"]) & ((table.itl_ms <= limits["itl_ms"]) | table.itl_ms.isna())
    assert 0 < met.sum() < len(table)
    assert result.goodput(**limits) == pytest.approx(met.sum() / result.seconds)


def test_requests_present_are_the_integral_over_the_trace(recorded):
    """Little's law holds of what was counted in another way: by walking through arrivals and ends."""
    result = recorded("one")
    table = result.requests
    changes = sorted([(t, 1) for t in table.arrived_s] + [(t, -1) for t in table.ended_s])
    present = area = 0.0
    for (t, change), (after, _) in pairwise(changes):
        present += change
        area += present * (after - t)
    assert result.summary.in_system == pytest.approx(area / result.seconds)


def test_without_events_there_is_no_trace():
    result = simulate(Fleet(TIMES), at_once(1, 10, 2))
    with pytest.raises(InvalidParameter, match="record=True"):
        _ = result.trace
    assert "SIMULATED" in repr(result)
    assert result.table().columns.tolist() == ["SIMULATED"]


def test_a_large_run_records_its_beginning_and_says_where_it_stops():
    fleet, workload = FLEETS["three"]
    result = simulate(fleet, workload, record=30)
    assert sum(len(trace.index.submitted) for trace in result.traces) == 30
    assert len(result.requests) == 120
    pd.testing.assert_frame_equal(result.requests, simulate(fleet, workload).requests)
    for trace in result.traces:
        assert [gap.dropped for gap in trace.index.gaps] == [0]
        assert trace.check() == []
        assert views.batch_lanes(trace).simulated


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"routing": "random"}, "round_robin, least_loaded, prefix_affine"),
        ({"replicas": 0}, "replicas=0"),
        ({"prefill_replicas": 1}, "need a link"),
        ({"prefill_replicas": 1, "link": link("10gbps"), "kv_bytes_per_token": 1, "reserve": 0.5}, "be combined"),
        ({"max_num_seqs": 0}, "max_num_seqs=0"),
        ({"prefill_replicas": -1}, "prefill_replicas=-1"),
        ({"num_blocks": 0}, "num_blocks=0"),
        ({"link": "string"}, "'string' is no known link"),
    ],
)
def test_what_cannot_be_is_refused(options, said):
    with pytest.raises(InvalidParameter, match=said):
        Fleet(TIMES, **options)


def test_a_link_can_be_given_by_its_name():
    assert Fleet(TIMES, link="10gbps").link == link("10gbps")


def test_a_share_beyond_everything_is_refused():
    with pytest.raises(InvalidParameter, match="reserve=2"):
        simulate(Fleet(TIMES, reserve=2), at_once(1, 10, 2))


@pytest.mark.parametrize(("options", "said"), [({"acceptance": 1.5}, "acceptance=1.5"), ({"k": 0}, "k=0")])
def test_impossible_drafts_are_refused(options, said):
    with pytest.raises(InvalidParameter, match=said):
        Speculating(**({"acceptance": 0.5} | options))


def test_a_request_that_no_replica_could_finish_is_refused():
    with pytest.raises(PoolTooSmall, match="num_blocks >= 7"):
        simulate(Fleet(TIMES, num_blocks=4), at_once(1, 100, 10))
