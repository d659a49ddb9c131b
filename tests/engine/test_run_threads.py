"""The handle of a request while a background thread steps: many threads, event loops, stopping."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt, streamed

import llmlab
from llmlab.errors import EngineStopped

LONG = 4000
"""Output tokens of a run that is ended before it could end by itself: seconds of steps."""


@pytest.fixture
def background():
    """An engine whose thread is stepping."""
    engine = mock_engine(num_blocks=4 * 1024, slots=6)
    engine.start()
    yield engine
    engine.close()
    assert_all_returned(engine)


def text_of(tokens: list[int]) -> str:
    return bytes(tokens).decode()


# -- with the background thread ------------------------------------------------------------------------------


def test_iterating_twice_while_the_thread_steps(background):
    run = background.submit(prompt(5), greedy(20))
    expected = text_of(continuation(prompt(5), 20))
    assert ["".join(run), "".join(run), run.wait().text] == [expected] * 3


def test_many_threads_submit_and_stream_at_once(background):
    def serve(i: int) -> bool:
        tokens = prompt(1 + i % 9, start=i % 5)
        run = background.submit(tokens, greedy(6, n=1 + i % 2))
        return streamed(run)[0] == continuation(tokens, 6)

    with ThreadPoolExecutor(16) as threads:
        assert all(threads.map(serve, range(200)))


def test_aborts_from_other_threads(background):
    runs = [background.submit(prompt(5, i), greedy(LONG)) for i in range(3)]
    aborters = [threading.Thread(target=run.abort) for run in runs * 3]
    for thread in aborters:
        thread.start()
    for thread in aborters:
        thread.join()
    for run in runs:
        tokens = run.wait(timeout=60).token_ids
        assert run.stop_reason == "aborted"
        assert tokens == continuation(run.prompt_token_ids, len(tokens))


def test_two_consumers_of_one_run_see_the_same_stream(background):
    run = background.submit(prompt(5), greedy(30))
    with ThreadPoolExecutor(4) as threads:
        streams = list(threads.map(lambda _: streamed(run), range(4)))
    assert streams == [(run.token_ids, run.text)] * 4


def test_start_twice_gives_one_thread(background):
    thread = background._thread
    background.start()
    assert background._thread is thread


def test_stop_keeps_open_requests_and_start_goes_on(background):
    run = background.submit(prompt(5), greedy(600))
    next(iter(run))
    background.stop()
    assert not background.is_running
    assert not run.finished
    background.start()
    assert run.wait(timeout=60).token_ids == continuation(prompt(5), 600)


def test_close_ends_open_runs_with_the_reason_and_frees_their_blocks():
    engine = mock_engine(num_blocks=3 * 1024, slots=2)
    runs = [engine.submit(prompt(5, i), greedy(LONG)) for i in range(3)]
    engine.start()
    next(iter(runs[0]))
    engine.close()
    for run in runs:
        with pytest.raises(EngineStopped, match="closed before this run finished"):
            run.wait(timeout=60)
        with pytest.raises(EngineStopped):
            list(run)
    assert_all_returned(engine)


def test_a_waiting_thread_is_woken_by_close():
    engine = mock_engine(num_blocks=1024)
    engine.start()
    run = engine.submit(prompt(5), greedy(LONG))
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(run.wait, 60)
        next(iter(run))
        engine.close()
        assert isinstance(waiting.exception(timeout=30), EngineStopped)


def test_a_lab_is_closed_by_its_context():
    with llmlab.open("mock") as lab:
        run = lab.submit("hello", max_tokens=LONG)
        next(iter(run))
        assert lab.engine.is_running
    assert not lab.engine.is_running
    with pytest.raises(EngineStopped):
        run.wait()
    assert_all_returned(lab.engine)


def test_a_lab_without_a_thread_answers_when_asked():
    with llmlab.open("mock", background=False, block_size=4) as lab:
        assert not lab.engine.is_running
        run = lab.ask("hello", max_tokens=4)
        assert run.token_ids == continuation(run.prompt_token_ids, 4)
        assert not lab.engine.is_running


# -- asyncio -------------------------------------------------------------------------------------------------


async def test_async_iteration_gives_the_same_text_twice(background):
    run = background.submit(prompt(5), greedy(12))
    first = [piece async for piece in run]
    assert [piece async for piece in run] == first
    assert "".join(first) == text_of(continuation(prompt(5), 12))


async def test_awaiting_gives_the_finished_run(background):
    runs = [background.submit(prompt(5, i), greedy(8)) for i in range(6)]
    finished = await asyncio.gather(*runs)
    assert finished == runs
    assert all(run.token_ids == continuation(run.prompt_token_ids, 8) for run in runs)


async def test_async_iteration_starts_the_thread_of_a_hand_stepped_engine():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(4))
    assert "".join([piece async for piece in run]) == text_of(continuation(prompt(5), 4))
    engine.close()
    assert_all_returned(engine)


async def test_a_cancelled_consumer_leaves_no_listener_and_the_run_can_be_aborted(background):
    run = background.submit(prompt(5), greedy(LONG))
    task = asyncio.ensure_future(run._finish_async())
    while not run.token_ids:
        await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert run._listeners == []
    run.abort()
    await run
    assert run.stop_reason == "aborted"


async def test_async_abort_in_the_middle(background):
    run = background.submit(prompt(5), greedy(LONG))
    seen = []
    async for delta in run.adeltas():
        seen += delta.token_ids
        if len(seen) == 3:
            run.abort()
    assert run.stop_reason == "aborted"
    assert seen == run.token_ids == continuation(prompt(5), len(seen))


async def test_awaiting_a_run_of_a_closed_engine_raises_and_starts_no_thread():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(4))
    engine.close()
    with pytest.raises(EngineStopped):
        await run
    assert not engine.is_running


def test_submitting_to_a_closed_engine_is_refused():
    engine = mock_engine()
    engine.close()
    with pytest.raises(EngineStopped):
        engine.submit(prompt(5), greedy(4))


def test_stopping_and_starting_from_many_threads_leaves_at_most_one_thread():
    engine, others = mock_engine(), set(threading.enumerate())
    runs = [engine.submit(prompt(5, i), greedy(40)) for i in range(4)]

    def switch(times: int) -> None:
        for _ in range(times):
            engine.start()
            engine.stop()

    threads = [threading.Thread(target=switch, args=(50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)
    assert not any(thread.name == "llmlab-engine" for thread in set(threading.enumerate()) - others)
    assert all(run.wait(10).token_ids == continuation(run.prompt_token_ids, 40) for run in runs)
