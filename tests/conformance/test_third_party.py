"""Programs that were not written for this server: the ``llm`` command line with its Anthropic plugin, pydantic-ai."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "third_party"


def run(command, tmp_path, **env):
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), **env}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_llm_with_its_anthropic_plugin(third_party_python, server, tmp_path):
    llm = third_party_python.with_name("llm")
    command = [llm, "-m", "claude-sonnet-4.5", "-o", "max_tokens", "20", "-o", "temperature", "0", "hello"]
    streamed = run(command, tmp_path, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="x")
    whole = run([*command, "--no-stream"], tmp_path, ANTHROPIC_BASE_URL=server.url, ANTHROPIC_API_KEY="x")
    assert len(streamed.strip()) > 10
    assert streamed == whole


def test_llm_through_the_openai_protocol(third_party_python, server, tmp_path):
    extra = f"- model_id: lab\n  model_name: mock\n  api_base: {server.url}/v1\n"
    (tmp_path / "extra-openai-models.yaml").write_text(extra, "utf-8")
    command = [
        third_party_python.with_name("llm"),
        "-m",
        "lab",
        "-o",
        "max_tokens",
        "20",
        "-o",
        "temperature",
        "0",
        "hello",
    ]
    streamed = run(command, tmp_path, OPENAI_API_KEY="x")
    assert len(streamed.strip()) > 10
    assert streamed == run([*command, "--no-stream"], tmp_path, OPENAI_API_KEY="x")


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_a_pydantic_ai_agent_gets_text_and_a_valid_tool_call(third_party_python, server, tmp_path, protocol):
    seen = json.loads(run([third_party_python, HERE / "agent.py", server.url, protocol, "mock"], tmp_path))
    assert len(seen["text"]) == seen["output_tokens"] == 40
    assert seen["input_tokens"] > 0
    assert type(seen["outcome"]) is int, "the agent's answer is the checked argument of its own output tool"
    assert "final_result" in seen["tool_calls"]
