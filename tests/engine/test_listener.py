"""Waking a consumer in an event loop: one wake-up however many rings, none lost, and a dead engine is noticed."""

from __future__ import annotations

import asyncio
import threading

import pytest
from mock_serving import greedy, mock_engine, prompt

from llmlab.engine import run as run_module
from llmlab.engine.listener import Listener
from llmlab.errors import EngineStopped


async def test_many_rings_before_the_consumer_runs_are_one_wakeup(monkeypatch):
    listener, loop, calls = Listener(lambda: False, 60.0), asyncio.get_running_loop(), []
    inner = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (calls.append(args), inner(*args)))
    for _ in range(5):
        listener.ring()
    assert len(calls) == 1
    await asyncio.wait_for(listener.wait(), 5)
    listener.clear()
    listener.ring()
    assert len(calls) == 2
    listener.close()


async def test_no_ring_is_lost_between_two_threads():
    listener, produced, total = Listener(lambda: False, 60.0), [], 20_000

    def produce():
        for i in range(total):
            produced.append(i)
            listener.ring()

    thread = threading.Thread(target=produce)
    thread.start()
    seen = 0
    async with asyncio.timeout(60):
        while seen < total:
            listener.clear()
            if len(produced) > seen:
                seen = len(produced)
            else:
                await listener.wait()
    thread.join()
    listener.close()
    assert seen == total


def test_ringing_for_a_closed_loop_does_no_harm():
    async def make() -> Listener:
        return Listener(lambda: False, 60.0)

    listener = asyncio.run(make())
    listener.ring()
    listener.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_consumer_notices_that_the_engines_thread_died(monkeypatch):
    monkeypatch.setattr(run_module, "POLL_S", 0.02)
    engine = mock_engine()
    gate = threading.Event()

    def die(*_):
        gate.wait(30)
        raise SystemExit

    monkeypatch.setattr(engine.scheduler, "schedule", die)
    run = engine.submit(prompt(5), greedy(4))
    waiting = asyncio.ensure_future(run._finish_async())
    await asyncio.sleep(0.05)
    gate.set()
    with pytest.raises(EngineStopped, match="thread ended while"):
        await asyncio.wait_for(waiting, 30)
    assert run._listeners == []
