"""The handle of a request on a hand-stepped engine: streaming, waiting, aborting."""

from __future__ import annotations

import pytest
from mock_serving import (
    assert_all_returned,
    assert_sound,
    continuation,
    greedy,
    mock_engine,
    prompt,
    step_until,
    streamed,
)

from llmlab.engine.engine import Engine
from llmlab.engine.request import Status
from llmlab.errors import InvalidParameter


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode()


# -- without a thread ----------------------------------------------------------------------------------------


def test_iterating_steps_the_engine_and_gives_the_text_in_pieces():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(6))
    pieces = list(run)
    assert "".join(pieces) == run.text == text_of(continuation(prompt(5), 6))
    assert len(pieces) == 6
    assert_all_returned(engine)


def test_every_iteration_starts_from_the_beginning():
    run = mock_engine().submit(prompt(5), greedy(6))
    first = iter(run)
    begun = next(first)
    assert next(iter(run)) == begun
    assert "".join(run) == begun + "".join(first) == run.text


def test_hand_stepping_fills_the_handle_one_token_a_step():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(3))
    lengths = [len(run.token_ids)]
    while engine.step():
        lengths.append(len(run.token_ids))
    assert lengths == [0, 1, 2, 3]
    assert run.finished
    assert not engine.step()


def test_a_handle_shows_its_state():
    run = mock_engine().submit(prompt(5), greedy(3))
    assert (run.finished, run.stop_reason, run.usage) == (False, None, {})
    assert repr(run) == "<Run r0: 5 prompt tokens, 0 tokens so far>"
    run.wait()
    assert repr(run) == "<Run r0: 5 prompt tokens, length>"


def test_deltas_of_all_samples_are_told_apart():
    engine = mock_engine()
    run = engine.submit(prompt(6), greedy(4, n=3))
    expected = continuation(prompt(6), 4)
    assert [streamed(run, which) for which in range(3)] == [(expected, text_of(expected))] * 3
    assert "".join(run) == text_of(expected)


def test_wait_without_time_says_so_and_can_be_repeated():
    run = mock_engine().submit(prompt(5), greedy(3))
    with pytest.raises(TimeoutError, match="did not finish in time"):
        run.wait(timeout=0)
    assert run.wait(timeout=60).token_ids == continuation(prompt(5), 3)


def test_leaving_the_context_aborts_an_unfinished_run():
    engine = mock_engine()
    with engine.submit(prompt(5), greedy(50)) as run:
        engine.step()
    assert run.wait().stop_reason == "aborted"
    assert len(run.token_ids) == 1
    assert_all_returned(engine)


def test_leaving_the_context_of_a_finished_run_changes_nothing():
    engine = mock_engine()
    with engine.submit(prompt(5), greedy(2)) as run:
        run.wait()
    engine.step()
    assert run.stop_reason == "length"


def test_an_exception_inside_the_context_aborts_and_is_raised():
    engine = mock_engine()
    with pytest.raises(KeyError), engine.submit(prompt(5), greedy(50)) as run:
        raise KeyError
    run.wait()
    assert run.stop_reason == "aborted"
    assert_all_returned(engine)


def test_a_run_knows_its_own_part_of_the_trace():
    engine = mock_engine()
    runs = [engine.submit(prompt(5, i), greedy(3, n=1 + i)) for i in range(2)]
    engine.run_until_idle()
    assert set(runs[1].trace.requests.request_id) == {"r1", "r1.1"}
    assert runs[1].trace.check() == []


# -- aborting ------------------------------------------------------------------------------------------------


def abort_and_check(engine: Engine, run, num_tokens: int) -> None:
    run.abort()
    run.abort()
    run.wait()
    assert {output.stop_reason for output in run.outputs} == {"aborted"}
    assert [len(output.token_ids) for output in run.outputs] == [num_tokens] * len(run.outputs)
    assert run.usage["output_tokens"] == num_tokens * len(run.outputs)
    assert_sound(engine)


def test_abort_before_the_engine_saw_the_request():
    engine = mock_engine()
    abort_and_check(engine, engine.submit(prompt(5), greedy(9)), 0)
    assert_all_returned(engine)


def test_abort_while_waiting():
    engine = mock_engine(slots=1)
    engine.submit(prompt(5), greedy(9))
    waiting = engine.submit(prompt(5, 1), greedy(9))
    engine.step()
    assert engine.sequence(engine.scheduler.waiting[0]).run is waiting
    abort_and_check(engine, waiting, 0)
    engine.run_until_idle()
    assert_all_returned(engine)


def test_abort_after_the_first_prefill_chunk():
    engine = mock_engine(budget=4)
    run = engine.submit(prompt(15), greedy(9))
    engine.step()
    assert engine.scheduler.running[0].num_computed == 4
    abort_and_check(engine, run, 0)
    assert engine.pool.num_cached == 1  # what was computed can be hit by the next request
    assert_all_returned(engine)


def test_abort_in_mid_decode():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(9))
    step_until(engine, lambda: len(run.token_ids) == 4)
    abort_and_check(engine, run, 4)
    assert run.token_ids == continuation(prompt(5), 4)
    assert_all_returned(engine)


def test_abort_after_the_end_changes_nothing():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(3)).wait()
    run.abort()
    engine.run_until_idle()
    assert run.stop_reason == "length"
    assert engine.trace.check() == []


def test_abort_of_samples_that_did_not_join_yet():
    engine = mock_engine(budget=4)
    run = engine.submit(prompt(15), greedy(9, n=3))
    engine.step()
    assert len(engine.scheduler.running[0].children) == 2
    abort_and_check(engine, run, 0)
    assert_all_returned(engine)


def test_abort_of_joined_samples_ends_all_of_them():
    engine = mock_engine()
    run = engine.submit(prompt(6), greedy(9, n=3))
    step_until(engine, lambda: len(run.token_ids) == 2)
    abort_and_check(engine, run, 2)
    assert_all_returned(engine)


def test_abort_while_preempted():
    engine = mock_engine(num_blocks=6)
    engine.submit(prompt(5), greedy(16))
    run = engine.submit(prompt(5, 1), greedy(16))
    step_until(engine, lambda: any(r.status is Status.PREEMPTED for r in engine.scheduler.waiting))
    abort_and_check(engine, run, len(run.token_ids))
    engine.run_until_idle()
    assert_all_returned(engine)


# -- identity ------------------------------------------------------------------------------------------------


def test_ids_in_use_are_refused_even_before_the_engine_saw_the_first():
    engine = mock_engine()
    engine.submit(prompt(5), greedy(3), request_id="mine")
    with pytest.raises(InvalidParameter, match="'mine' is in use"):
        engine.submit(prompt(5), greedy(3), request_id="mine")
    engine.run_until_idle()
    assert_all_returned(engine)


def test_a_chosen_id_never_meets_a_generated_one():
    engine = mock_engine()
    chosen = engine.submit(prompt(5), greedy(3), request_id="r1")
    engine.step()
    others = [engine.submit(prompt(5, i), greedy(3)) for i in range(1, 4)]
    engine.run_until_idle()
    ids = [chosen.id, *(run.id for run in others)]
    assert len(set(ids)) == 4
    assert all(run.token_ids == continuation(run.prompt_token_ids, 3) for run in (chosen, *others))


@pytest.mark.parametrize("priority", ["high", None, float("nan")])
def test_a_priority_that_cannot_be_ordered_is_refused(priority):
    engine = mock_engine()
    engine.submit(prompt(5), greedy(3))
    with pytest.raises(InvalidParameter, match="priority"):
        engine.submit(prompt(5), greedy(3), priority=priority)
    engine.run_until_idle()
