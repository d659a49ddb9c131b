"""Servers in processes of their own behind one gateway: hits by routing, and what is left when one is killed."""

from __future__ import annotations

import os
import signal
import sys

import httpx2
import pytest
from handing_over import is_alive, wait_until

from llmlab.bench.routing import measure_routing, routing_object, routing_table
from llmlab.errors import InvalidParameter, ReplicaFailed
from llmlab.parallel.replicas import Replicas, _arguments

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at POSIX processes")

BODY = {"model": "any", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def replicas():
    with Replicas(2, "mock", num_blocks=1024, threads=1) as replicas:
        yield replicas


def test_prefix_affine_beats_round_robin_by_hits(replicas):
    figures = measure_routing(replicas, ("round_robin", "prefix_affine"), sessions=3, num_turns=3, at_once=False)
    robin, affine = figures
    assert robin.prompt_tokens == pytest.approx(affine.prompt_tokens, rel=0.05)
    assert affine.moves == 0 < robin.moves
    assert affine.cached_tokens > 1.5 * robin.cached_tokens
    assert affine.hit_rate < 1, "the first turns find nothing"
    assert {turn.backend for turn in robin.turns} == {url.removeprefix("http://") for url in replicas.urls}
    assert routing_table(figures).row_count == len(routing_object(figures)) == 2


def test_sessions_at_once_finish_under_least_loaded(replicas):
    (figures,) = measure_routing(replicas, ["least_loaded"], sessions=3, num_turns=2)
    assert len(figures.turns) == 6
    assert 0 < figures.ttft_ms(50) <= figures.ttft_ms(90)


def test_a_killed_replica_leaves_the_others_serving_and_closing_ends_all(replicas):
    assert httpx2.post(f"{replicas.url}/v1/messages", json=BODY).status_code == 200
    os.kill(replicas.pids[0], signal.SIGKILL)
    wait_until(lambda: replicas._servers[0]._process.poll() is not None)
    alive = replicas.urls[1].removeprefix("http://")
    answers = [httpx2.post(f"{replicas.url}/v1/messages", json=BODY) for _ in range(3)]
    assert [answer.headers["llmlab-backend"] for answer in answers] == [alive] * 3
    assert replicas.trace.exchanges.shape[0] >= 4
    replicas.close()
    assert not any(map(is_alive, replicas.pids))


def test_wrong_options_are_refused_by_name():
    for wrong in ({"n": 0}, {"n": 1, "routing": "random"}, {"n": 1, "num_blokcs": 4}, {"n": 1, "keys": "keys.txt"}):
        with pytest.raises(InvalidParameter):
            Replicas(model="mock", **wrong)


def test_options_become_those_of_the_command():
    given = {"prefix_cache": False, "log": True, "disaggregated": False, "threads": None, "num_blocks": 4}
    assert _arguments(given) == ["--no-prefix-cache", "--log", "--num-blocks", "4"]


def test_a_replica_that_cannot_start_says_why_and_leaves_nothing():
    with pytest.raises(ReplicaFailed, match="block-size"):
        Replicas(1, "mock", block_size=0)
