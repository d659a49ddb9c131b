"""``llmlab serve`` as people use it: a process, its output, signals, and its exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import contextmanager

import httpx2
import pytest
from command_line import COMMAND, llmlab, uncoloured
from typer.main import get_command

from llmlab import open as open_lab
from llmlab.cli import app

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
    with serving("--model", "mock", "--num-blocks", "64") as (process, url, said):
        anthropic = httpx2.post(f"{url}/v1/messages", json=message()).json()
        openai = httpx2.post(f"{url}/v1/chat/completions", json=message()).json()
        commands = re.findall(r"curl (http\S+) -H '([^:]+): ([^']+)' \\\n +-d '([^']+)'", said)
        for address, name, value, body in commands:
            assert httpx2.post(address, content=body, headers={name: value}).status_code == 200
        assert httpx2.get(re.search(r"health +(\S+)", said)[1]).json()["status"] == "ok"
        taken = llmlab("serve", "--model", "mock", "--port", url.rpartition(":")[2])
        assert stop(process) == (0, "")
    assert anthropic["content"][0]["text"] == openai["choices"][0]["message"]["content"]
    assert f"ANTHROPIC_BASE_URL={url} " in said
    assert f"OPENAI_BASE_URL={url}/v1 " in said
    assert [command[0] for command in commands] == [f"{url}/v1/messages", f"{url}/v1/chat/completions"]
    assert "mock, context 1,024 tokens, K/V pool 64 blocks of 16 tokens" in said
    assert "keys             none are asked for" in said
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
        with serving(*arguments) as (process, url, said):
            headers = ({}, {"x-api-key": "secret"}, {"x-api-key": "secret"})
            found = [httpx2.post(f"{url}/v1/messages", json=message(), headers=each) for each in headers]
            assert stop(process, signal.SIGTERM) == (0, "")
        directly = httpx2.post(f"{upstream.url}/v1/messages", json=message()).json()
    assert [response.status_code for response in found] == [401, 200, 429]
    assert f"upstream         {upstream.url}/v1: mock (4,095 input tokens)" in said
    assert f"1 from {keys}; every request needs one" in said
    assert "secret" not in said
    assert found[1].json()["content"] == directly["content"]
    assert found[1].json()["model"] == "mock"


def test_a_second_interrupt_does_not_wait_for_open_requests():
    with serving("--model", "mock", "--drain", "60", "--allow-faults") as (process, url, _):
        with httpx2.stream(
            "POST", f"{url}/v1/messages", json=message(stream=True), headers={"llmlab-fault": "stall=1"}, timeout=30
        ) as response:
            process.send_signal(signal.SIGINT)
            said = "\n"
            while "stopping" not in said:
                said = process.stdout.readline()
            assert "1 open request has 60 s to finish; Ctrl-C again" in said
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
        (["--upstream", "ftp://example.org"], 2, "http://"),
        (["--upstream", "http://127.0.0.1:1/v1", "--upstream", "http://127.0.0.1:1/v1"], 2, "different names"),
    ],
)
def test_mistakes_are_one_message_before_any_model_is_loaded(arguments, status, says):
    result = llmlab("serve", "--model", "mock", *arguments)
    assert result.returncode == status
    assert says in uncoloured(result.stderr)
    assert "Traceback" not in result.stderr


def test_a_keys_file_with_a_mistake_says_how_it_is_written(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret alice gold\n")
    keys.chmod(0o600)
    result = llmlab("serve", "--model", "mock", "--keys", str(keys))
    assert (result.returncode, result.stderr.count("\n")) == (2, 1)
    assert "line 1: write KEY [NAME [TIER]]" in result.stderr
    assert "secret" not in result.stderr


def test_a_keys_file_that_others_may_read_is_one_line_of_warning(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("secret alice\n")
    keys.chmod(0o644)
    with serving("--model", "mock", "--keys", str(keys)) as (process, _, _):
        status, errors = stop(process)
    assert (status, errors) == (0, f"llmlab: other users may read the keys file {keys}: use chmod 600\n")


def test_help_names_every_option_in_full_at_80_columns():
    text = uncoloured(llmlab("serve", "--help", env={**os.environ, "COLUMNS": "80"}).stdout)
    shown = set(re.findall(r"--[a-z-]+", text))
    options = [each for each in get_command(app).commands["serve"].params if each.opts]
    assert len(options) > 20
    assert {name for each in options for name in (*each.opts, *each.secondary_opts)} <= shown
    assert max(map(len, text.splitlines())) <= 80
    assert {"round_robin,", "least_loaded", "prefix_affine."} <= set(text.split())


def test_help_says_what_an_operator_has_to_know():
    text = " ".join(uncoloured(llmlab("serve", "--help", env={**os.environ, "COLUMNS": "200"}).stdout).split())
    for words in ("KEY [NAME [TIER]]", "Exit status: 0 stopped by one signal", "LLMLAB_UPSTREAM_API_KEY", "--log"):
        assert words in text
