"""Static batching: a batch is served to its end before the next one begins."""

from __future__ import annotations

from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt

LENGTHS = (2, 9, 4, 6, 3, 8)


def serve(policy: str, **shape):
    engine = mock_engine(policy=policy, **({"slots": 2} | shape))
    runs = [engine.submit(prompt(5, i), greedy(length)) for i, length in enumerate(LENGTHS)]
    num_steps = engine.run_until_idle()
    for run, length in zip(runs, LENGTHS, strict=True):
        assert run.token_ids == continuation(run.prompt_token_ids, length)
    assert_all_returned(engine)
    return engine, num_steps


def batches(engine) -> list[set[str]]:
    return [{row.request_id for row in step.rows} for step in engine.trace._index.steps]


def test_nobody_joins_a_batch_that_has_begun():
    engine, _ = serve("static")
    before: set[str] = set()
    for batch in batches(engine):
        assert batch <= before or not batch & before
        before = batch


def test_a_batch_lasts_as_long_as_its_longest_request():
    _, num_steps = serve("static")
    assert num_steps == 9 + 6 + 8


def test_continuous_batching_needs_fewer_steps_for_the_same_tokens():
    static, continuous = serve("static"), serve("continuous")
    assert continuous[1] < static[1]
    joins = sum(
        bool(b - a) and bool(a & b) for a, b in zip(*[batches(continuous[0])[i:] for i in (0, 1)], strict=False)
    )
    assert joins > 0


def test_a_request_that_comes_during_a_batch_waits_for_its_end():
    engine = mock_engine(policy="static")
    first = engine.submit(prompt(5), greedy(6))
    engine.step()
    second = engine.submit(prompt(5, 1), greedy(2))
    while not first.finished:
        assert second.token_ids == []
        engine.step()
    second.wait()
    assert_all_returned(engine)


def test_an_aborted_batch_makes_room_for_the_next():
    engine = mock_engine(policy="static", slots=1)
    first = engine.submit(prompt(5), greedy(50))
    second = engine.submit(prompt(5, 1), greedy(2))
    engine.step()
    first.abort()
    assert second.wait().token_ids == continuation(prompt(5, 1), 2)
    assert_all_returned(engine)


def test_a_preempted_member_comes_back_with_the_next_batch():
    engine = mock_engine(policy="static", slots=2, num_blocks=6)
    runs = [engine.submit(prompt(5, i), greedy(14)) for i in range(3)]
    engine.run_until_idle()
    assert runs[1].usage["preemptions"] == 1
    together = [batch for batch in batches(engine) if len(batch) == 2]
    assert together[0] == {runs[0].id, runs[1].id}
    assert together[-1] == {runs[1].id, runs[2].id}
    assert all(run.token_ids == continuation(run.prompt_token_ids, 14) for run in runs)
    assert_all_returned(engine)


def test_a_long_prompt_is_chunked_in_a_static_batch_too():
    engine = mock_engine(policy="static", budget=4)
    run = engine.submit(prompt(15), greedy(3)).wait()
    assert run.token_ids == continuation(prompt(15), 3)
    assert [row.num_tokens for step in engine.trace._index.steps for row in step.rows] == [4, 4, 4, 3, 1, 1]
