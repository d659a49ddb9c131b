"""Processes end on every path: closed, forgotten, parent ended, interrupted or killed; and their death has a name."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmlab.errors import RankFailed
from llmlab.parallel.process import NoAnswer, WorkerProcess

ROOT = Path(__file__).parents[2]
PATH = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), str(ROOT)])}
PARENT = """
import sys, time
sys.path[:0] = {paths}
from llmlab.parallel.process import WorkerProcess
child = WorkerProcess("echo_child", name="child", environment={environment})
child.send({{"do": "hang"}})
child.receive()
print(child.pid, flush=True)
{then}
"""


@pytest.fixture
def child():
    process = WorkerProcess("echo_child", name="rank 1 of 2", environment=PATH)
    yield process
    process.close()


def gone(pid: int, seconds: float = 10) -> bool:
    """Whether a process ends in time."""
    end = time.monotonic() + seconds
    while psutil.pid_exists(pid) and time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True  # ended; its adopted parent has not looked yet
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.02)
    return not psutil.pid_exists(pid)


def test_messages_go_both_ways_and_printed_text_is_none(child):
    child.send({"tokens": [1, 2], "text": "ä\n\u2028"})
    assert child.receive() == {"echo": {"tokens": [1, 2], "text": "ä\n\u2028"}}


def test_a_closed_process_is_gone_and_says_so(child):
    child.close()
    assert gone(child.pid)
    with pytest.raises(RankFailed, match="rank 1 of 2"):
        child.send({})
    child.close()


def test_one_that_does_not_listen_ends_with_its_channel(child):
    child.send({"do": "hang"})
    child.receive()
    child.close()
    assert gone(child.pid)


def test_half_a_message_of_a_parent_that_is_gone_ends_it_too(child):
    child.send({"do": "hang"})
    child.receive()
    child._process.stdin.write(b'{"do": "ha')
    child._process.stdin.close()
    assert gone(child.pid)


def test_a_death_is_told_with_its_code_and_last_words(child):
    child.send({"do": "exit"})
    for _ in range(2):  # whoever asks again is told again
        with pytest.raises(RankFailed, match=r"(?s)rank 1 of 2 \(process \d+\) ended with code 3: .*last words"):
            child.receive()


def test_a_signal_is_told_as_one(child):
    os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(RankFailed, match="ended by signal 9"):
        child.receive()


def test_an_error_told_by_the_process_is_raised(child):
    child.send({"do": "raise"})
    with pytest.raises(RankFailed, match="rank 1 of 2 failed: ValueError: not here"):
        child.receive()


def test_silence_is_told_apart_from_death(child):
    with pytest.raises(NoAnswer, match=r"said nothing for 0\.1 s"):
        child.receive(timeout_s=0.1)
    assert child.is_alive


def test_a_forgotten_process_ends():
    process = WorkerProcess("echo_child", name="forgotten", environment=PATH)
    pid = process.pid
    del process
    gc.collect()
    assert gone(pid)
    assert not any(thread.name == "llmlab-forgotten" and thread.is_alive() for thread in threading.enumerate())


def test_a_wrong_module_is_named_by_python_itself():
    process = WorkerProcess("no_such_module_here", name="rank 1")
    with pytest.raises(RankFailed, match="no_such_module_here"):
        process.receive()
    process.close()


@pytest.mark.parametrize(
    ("then", "sent"),
    [
        ("pass", None),
        ("time.sleep(60)", signal.SIGINT),
        ("time.sleep(60)", signal.SIGKILL),
    ],
    ids=["ends", "interrupted", "killed"],
)
def test_no_process_outlives_its_parent(then, sent):
    paths = [str(Path(__file__).parent), str(ROOT)]
    code = PARENT.format(paths=paths, environment=PATH, then=then)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    pid = int(parent.stdout.readline())
    if sent is not None:
        parent.send_signal(sent)
    parent.wait(30)
    assert gone(pid)
    parent.stdout.close()
