"""The unmodified JavaScript packages, run by node in a process of their own, against a running server."""

import json
import subprocess
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "js"


def run(node, script, server):
    done = subprocess.run([node, script, server.url], cwd=SCRIPTS, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def anthropic_js(node, server):
    """What the Anthropic script saw."""
    return run(node, "anthropic.mjs", server)


@pytest.fixture(scope="module")
def openai_js(node, server):
    """What the OpenAI script saw."""
    return run(node, "openai.mjs", server)


def wait_until_idle(lab):
    end = time.monotonic() + 2
    while lab.engine.pool.num_used and time.monotonic() < end:
        time.sleep(0.01)
    return lab.engine.pool.num_used == 0


def test_anthropic_text_streamed_and_not(anthropic_js):
    whole, streamed = anthropic_js["whole"], anthropic_js["streamed"]
    assert whole["stop_reason"] == streamed["stop_reason"] == "max_tokens"
    assert whole["content"][0]["text"] == streamed["content"][0]["text"] == "".join(anthropic_js["pieces"])
    assert anthropic_js["raw"][0] == "message_start"
    assert anthropic_js["raw"][-1] == "message_stop"


def test_anthropic_tool_call(anthropic_js):
    call = anthropic_js["tool"]["content"][-1]
    assert (anthropic_js["tool"]["stop_reason"], call["name"]) == ("tool_use", "weather")
    assert set(call["input"]) == {"city", "unit"}


def test_anthropic_thinking(anthropic_js):
    block = anthropic_js["thinking"]["content"][0]
    assert block["type"] == "thinking"
    assert block["signature"]


def test_anthropic_counts_and_models(anthropic_js):
    usage = anthropic_js["whole"]["usage"]
    total = sum(usage[f"{kind}input_tokens"] for kind in ("", "cache_read_", "cache_creation_"))
    assert anthropic_js["counted"]["input_tokens"] == total
    assert anthropic_js["models"] == ["mock"]


def test_anthropic_failures(anthropic_js):
    assert anthropic_js["refused"] == {"name": "BadRequestError", "status": 400, "type": "invalid_request_error"}
    assert anthropic_js["overloaded"]["type"] == "overloaded_error"
    assert anthropic_js["cut"] is not None
    assert anthropic_js["aborted"]["name"] == "APIUserAbortError"


def test_openai_text_streamed_and_not(openai_js):
    whole = openai_js["whole"]["choices"][0]["message"]["content"]
    pieces = [c["choices"][0]["delta"].get("content") or "" for c in openai_js["chunks"] if c["choices"]]
    assert "".join(pieces) == whole
    stopped = openai_js["helper"]["choices"][0]
    assert (stopped["finish_reason"], stopped["message"]["content"]) == ("stop", whole[: whole.index(whole[6:8])])
    assert openai_js["chunks"][-1]["usage"]["completion_tokens"] == 12


def test_openai_tool_call(openai_js):
    choice = openai_js["tool"]["choices"][0]
    arguments = choice["message"]["tool_calls"][0]["function"]["arguments"]
    assert choice["finish_reason"] == "tool_calls"
    assert set(json.loads(arguments)) == {"city", "unit"}


def test_openai_failures_and_models(openai_js):
    assert openai_js["refused"]["status"] == 400
    assert openai_js["refused"]["param"] == "temperature"
    assert openai_js["limited"]["name"] == "RateLimitError"
    assert openai_js["cut"] is not None
    assert openai_js["models"] == ["mock"]


def test_streams_left_early_hold_nothing(anthropic_js, openai_js, mock_lab):
    assert wait_until_idle(mock_lab)
