"""Three ``llmlab serve`` processes: two with an engine, one in front of them, and what is left when one is killed."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import ExitStack, suppress

import anthropic
import pytest
from test_cli_serve import message, serving, stop

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="sends POSIX signals to the process")

LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ (?P<endpoint>\S+) (?P<model>\S+) (?P<status>\S+) (?P<outcome>\S+) "
    r"prompt=(?P<prompt>\S+) cached=(?P<cached>\S+) output=(?P<output>\S+) ttft=(?P<ttft>\S+) "
    r"total=(?P<total>\S+) backend=(?P<backend>\S+) (requested=(?P<requested>\S+) )?(?P<id>req_\w+)"
)


def ask(client: anthropic.Anthropic):
    return client.messages.with_raw_response.create(**message(model="mock", max_tokens=5))


def test_a_killed_server_costs_the_fleet_only_the_stream_it_was_sending():
    with ExitStack() as stack:
        (one, first, _), (_, second, _) = (stack.enter_context(serving("--model", "mock")) for _ in range(2))
        arguments = ["--no-engine", "--upstream", first, "--upstream", second, "--log", "--routing", "round_robin"]
        front, url, said = stack.enter_context(serving(*arguments))
        assert f"upstream         {first}: mock (4,095 input tokens)" in said
        client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, _strict_response_validation=True)
        with client.messages.stream(**message(model="mock", max_tokens=4000)) as stream:
            pieces = stream.text_stream
            next(pieces)
            one.kill()
            with pytest.raises(anthropic.APIStatusError, match="broke"):
                list(pieces)
        responses = [ask(client) for _ in range(4)]
        status, log = stop(front)
    alive = second.removeprefix("http://")
    assert status == 0
    assert [response.headers["llmlab-backend"] for response in responses] == [alive] * 4
    lines = [LINE.fullmatch(line) for line in log.splitlines()]
    assert all(lines), log
    broken, *rest = lines
    assert broken.group("endpoint", "model", "status", "outcome") == ("anthropic", "mock", "200", "api_error")
    assert broken.group("prompt", "output") == ("-", "-")
    assert [line["id"] for line in rest] == [response.headers["request-id"] for response in responses]
    for line, response in zip(rest, responses, strict=True):
        usage = response.parse().usage
        assert line.group("status", "outcome", "output", "backend") == ("200", "ok", "5", alive)
        assert int(line["cached"]) == usage.cache_read_input_tokens
        assert int(line["prompt"]) == usage.cache_read_input_tokens + usage.input_tokens
        assert float(line["ttft"].rstrip("s")) <= float(line["total"].rstrip("s"))


def test_the_log_names_refusals_and_holds_no_text(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("the-secret-key alice\n")
    keys.chmod(0o600)
    with serving("--model", "mock", "--keys", str(keys), "--log") as (process, url, _):
        for key in ("wrong-key", "the-secret-key"):
            client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
            with suppress(anthropic.AuthenticationError):
                client.messages.create(**message(messages=[{"role": "user", "content": "a very private question"}]))
        status, log = stop(process, signal.SIGTERM)
    refused, answered = (LINE.fullmatch(line) for line in log.splitlines())
    assert status == 0
    assert refused.group("model", "status", "outcome", "backend") == ("-", "401", "authentication_error", "-")
    assert answered.group("model", "status", "outcome", "backend") == ("mock", "200", "ok", "mock")
    assert (refused["requested"], answered["requested"]) == (None, "any")
    for private in ("private", "key", "inRDG"):
        assert private not in log


def test_an_upstream_that_cannot_be_used_is_announced_with_the_reason(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("the-secret-key\n")
    keys.chmod(0o600)
    with serving("--model", "mock", "--keys", str(keys)) as (_, locked, _):
        arguments = ["--no-engine", "--upstream", locked, "--upstream", "http://127.0.0.1:9"]
        with serving(*arguments) as (_, _, said):
            refused, gone = (line for line in said.splitlines() if line.startswith("  upstream"))
    assert "(status 401)): set LLMLAB_UPSTREAM_API_KEY to a key that it takes" in refused
    assert "cannot be reached (Connection refused)" in gone
