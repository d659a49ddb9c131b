"""Ten thousand requests through one small pool, and half as many through one with a tree and a host pool behind it."""

from __future__ import annotations

from random import Random

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt

QUEUE = 48


@pytest.mark.parametrize(("prefix_cache", "host_blocks", "num_requests"), [("hash", 0, 10_000), ("radix", 20, 5_000)])
def test_thousands_of_requests_with_random_aborts_leave_an_empty_pool(prefix_cache, host_blocks, num_requests):
    tiers = {"prefix_cache": prefix_cache, "host_blocks": host_blocks}
    engine = mock_engine(num_blocks=36, block_size=4, budget=96, slots=24, record=False, **tiers)
    dice, open_runs, tally = Random(0), [], {"length": 0, "aborted": 0, "hits": 0, "preemptions": 0}

    def submit() -> None:
        params = greedy(dice.choice((1, 2, 3, 6, 12)), n=2 if dice.random() < 0.05 else 1)
        tokens = prompt(dice.randint(1, 20), start=dice.randrange(30))
        open_runs.append(engine.submit(tokens, params, priority=dice.randrange(2)))

    def collect() -> None:
        for run in [run for run in open_runs if run.finished]:
            open_runs.remove(run)
            expected = continuation(run.prompt_token_ids, run.params.max_tokens)
            for output in run.outputs:
                full = expected if output.stop_reason == "length" else expected[: len(output.token_ids)]
                assert output.token_ids == full
            tally[run.stop_reason] += 1
            tally["hits"] += run.usage["cached_tokens"] > 0
            tally["preemptions"] += run.usage["preemptions"]

    for _ in range(num_requests):
        while len(open_runs) >= QUEUE:
            engine.step()
            collect()
        submit()
        if dice.random() < 0.04:
            dice.choice(open_runs).abort()
    engine.run_until_idle()
    collect()
    assert_all_returned(engine)
    assert open_runs == []
    assert tally["length"] + tally["aborted"] == num_requests
    # the soak is only one if it met aborts, prefix hits and preemptions
    assert min(tally["aborted"], tally["hits"], tally["preemptions"]) > num_requests / 50, tally
