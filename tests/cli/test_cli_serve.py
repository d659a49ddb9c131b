"""``llmlab serve`` as people use it: a process, its output, signals, and its exit status."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import httpx2
import pytest
from command_line import COMMAND, llmlab, uncoloured

from llmlab import open as open_lab

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals to the process")


@contextmanager
def serving(*arguments: str):
    """A server process on a free port, its address, and what it said about itself."""
    command = [*COMMAND, "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = ""
        while "/metrics" not in said:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        yield process, re.search(r"serves at (\S+)", said)[1], said
    finally:
        process.kill()
        process.communicate()


def message(**changes) -> dict:
    return {"model": "any", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]} | changes


def stop(process: subprocess.Popen, number: int = signal.SIGINT) -> tuple[int, str]:
    """Exit status and standard error after a signal."""
    process.send_signal(number)
    errors = process.communicate(timeout=60)[1]
    return process.returncode, errors


def test_it_serves_both_protocols_says_how_to_reach_it_and_stops_cleanly():
    with serving("--model", "mock") as (process, url, said):
        anthropic = httpx2.post(f"{url}/v1/messages", json=message()).json()
        openai = httpx2.post(f"{url}/v1/chat/completions", json=message()).json()
        line = said.partition("-d '")[2].partition("'")[0]
        assert httpx2.post(f"{url}/v1/messages", json=json.loads(line)).status_code == 200
        taken = llmlab("serve", "--model", "mock", "--port", url.rpartition(":")[2])
        assert stop(process) == (0, "")
    assert anthropic["content"][0]["text"] == openai["choices"][0]["message"]["content"]
    assert f"ANTHROPIC_BASE_URL={url} " in said
    assert f"OPENAI_BASE_URL={url}/v1 " in said
    assert (taken.returncode, taken.stderr.count("\n")) == (1, 1)
    assert "the port is in use" in taken.stderr


def test_an_upstream_is_served_without_a_model_of_ones_own_behind_keys_and_limits(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret alice\n")
    keys.chmod(0o600)
    with open_lab("mock") as lab, lab.serve() as upstream:
        arguments = [
            "--no-engine",
            "--upstream",
            f"{upstream.url}/v1",
            "--keys",
            str(keys),
            "--requests-per-minute",
            "1",
        ]
        with serving(*arguments) as (process, url, _):
            headers = ({}, {"x-api-key": "secret"}, {"x-api-key": "secret"})
            found = [httpx2.post(f"{url}/v1/messages", json=message(), headers=each) for each in headers]
            assert stop(process, signal.SIGTERM) == (0, "")
        directly = httpx2.post(f"{upstream.url}/v1/messages", json=message()).json()
    assert [response.status_code for response in found] == [401, 200, 429]
    assert found[1].json()["content"] == directly["content"]
    assert found[1].json()["model"] == "mock"


def test_a_second_interrupt_does_not_wait_for_open_requests():
    with serving("--model", "mock", "--drain", "60", "--allow-faults") as (process, url, _):
        with httpx2.stream(
            "POST", f"{url}/v1/messages", json=message(stream=True), headers={"llmlab-fault": "stall=1"}, timeout=30
        ) as response:
            process.send_signal(signal.SIGINT)
            time.sleep(0.5)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert "event: error" in response.read().decode()
        errors = process.communicate(timeout=60)[1]
    assert (process.returncode, errors) == (130, "")


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["--host", "0.0.0.0"], 2, "give keys_file"),
        (["--keys", "/nowhere/keys"], 2, "cannot be read"),
        (["--no-engine"], 2, "--upstream"),
        (["--routing", "random"], 2, "routing"),
        (["--port", "70000"], 2, "port"),
    ],
)
def test_mistakes_are_one_message_before_any_model_is_loaded(arguments, status, says):
    result = llmlab("serve", "--model", "mock", *arguments)
    assert result.returncode == status
    assert says in uncoloured(result.stderr)
    assert "Traceback" not in result.stderr
