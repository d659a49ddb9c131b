"""Pausing the engine's thread, and stepping by hand meanwhile."""

from __future__ import annotations

import threading

import pytest

import llmlab


@pytest.fixture
def lab():
    with llmlab.open("mock") as opened:
        yield opened


def test_a_paused_engine_steps_only_by_hand(lab):
    lab.engine.pause()
    run = lab.submit("hello", max_tokens=5)
    with pytest.raises(TimeoutError):
        run.wait(0.3)  # waiting does not step either: the thread is there, it rests
    assert lab.trace.index.steps == []
    assert lab.engine.step()
    assert len(run.token_ids) == 1
    assert lab.engine.is_paused


def test_resumed_it_goes_on_from_there(lab):
    lab.engine.pause()
    run = lab.submit("hello", max_tokens=5)
    lab.engine.step()
    lab.engine.resume()
    assert len(run.wait(60).token_ids) == 5
    assert not lab.engine.is_paused


def test_no_step_begins_after_pause_has_returned(lab):
    run = lab.submit("hello", max_tokens=2_000)
    for _ in range(20):
        lab.engine.pause()
        before = len(lab.engine.recorder)
        threading.Event().wait(0.002)
        assert len(lab.engine.recorder) == before
        lab.engine.resume()
    run.abort()


def test_a_paused_engine_can_be_closed(lab):
    lab.engine.pause()
    lab.submit("hello", max_tokens=5)
    lab.close()
    assert not lab.engine.is_running


def test_an_aborted_run_ends_with_the_next_step_by_hand(lab):
    lab.engine.pause()
    run = lab.submit("hello", max_tokens=5)
    run.abort()
    lab.engine.step()
    assert run.stop_reason == "aborted"
