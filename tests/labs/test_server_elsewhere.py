"""The server in another process: it answers at its address, and ends with whoever started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

import llmlab
from llmlab.errors import LabError
from llmlab.labs.elsewhere import Elsewhere, server_arguments

PARENT = """
import sys
from llmlab.labs.elsewhere import Elsewhere, server_arguments
server = Elsewhere(*server_arguments("mock"))
print(server.url, server.pid, flush=True)
sys.stdin.read()
"""


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as file:  # one that ended and was not waited for is still in the list
        return file.read().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="whether a process has ended is read from /proc")
def test_it_answers_and_ends_with_a_parent_that_is_killed():
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="utf-8"
    )
    try:
        url, pid = parent.stdout.readline().split()
        with llmlab.connect(url) as client:
            assert [model["id"] for model in client.models()] == ["mock"]
    finally:
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
    end = time.monotonic() + 20
    while is_alive(int(pid)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not is_alive(int(pid))


def test_one_that_does_not_start_says_why_and_leaves_no_process():
    with pytest.raises(LabError, match="no model 'nonsense'"):
        Elsewhere(*server_arguments("nonsense"))


def test_a_gateway_before_another_server_has_no_engine():
    arguments = server_arguments("smollm2-135m", "http://127.0.0.1:9")
    assert arguments[:3] == ("--no-engine", "--upstream", "http://127.0.0.1:9")
    assert "--model" not in arguments
