"""``llmlab send`` as people use it: what is on which stream, and that all of it was really so."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from command_line import COMMAND, llmlab, uncoloured
from typer.testing import CliRunner

from llmlab import Trace
from llmlab import open as open_lab
from llmlab.api.sse_parser import SseParser
from llmlab.cli import app
from llmlab.commands.frame_line import MAX_WIDTH, summary, usage_words
from llmlab.commands.wire_view import pretty


def send_mock(*arguments: str, **options) -> subprocess.CompletedProcess:
    return llmlab("send", "--model", "mock", *arguments, **options)


def in_process(*arguments: str):
    return CliRunner().invoke(app, ["send", *arguments])


@pytest.fixture(scope="module")
def shown():
    """A request with everything, to a server of its own."""
    done = send_mock("--max-tokens", "6", "--system", "Be brief.", "--tools", "hello\x1b[2J")
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def server():
    with open_lab("mock") as lab, lab.serve() as server:
        yield server


def answer(*arguments: str) -> tuple[dict, subprocess.CompletedProcess]:
    done = in_process("--json", "--max-tokens", "6", *arguments, "hello")
    return json.loads(done.stdout), done


# -- text ----------------------------------------------------------------------------------------------------


def test_the_request_is_shown_as_it_left(shown):
    head, _, rest = shown.stdout.partition("\n\n")
    assert head.startswith("POST /v1/messages\n  host: 127.0.0.1:")
    assert "  anthropic-version: 2023-06-01" in head
    body = rest.partition("\n\n")[0]
    assert body.startswith('{\n  "model": "mock",\n  "max_tokens": 6,\n  "stream": true,\n')
    assert re.findall('^    {"name": "(.+?)"', body, re.MULTILINE) == ["calculator", "list_folder", "read_file"]
    assert '    {"type": "text", "text": "Be brief."' in body


def test_every_event_has_a_time_a_size_a_name_and_a_summary(shown):
    lines = re.findall(r"^ *([0-9.,]+) ms +([0-9,]+)  (\w+)(?: +(.*\S))?", shown.stdout, re.MULTILINE)
    names = [name for _, _, name, _ in lines]
    assert (names[0], names[-2:]) == ("message_start", ["message_delta", "message_stop"])
    times = [float(time.replace(",", "")) for time, *_ in lines]
    assert times == sorted(times)
    assert all(int(size.replace(",", "")) > 0 for _, size, *_ in lines)
    assert any(name == "content_block_delta" and text.startswith('block 0: "') for *_, name, text in lines)


def test_what_it_came_to_follows_on_standard_error(shown):
    rows = dict(re.findall(r"^(\w[\w ]*?)  +(\S.*?) *$", shown.stderr, re.MULTILINE))
    assert rows["attempts"] == "1"
    assert rows["stop reason"] == "max_tokens"
    assert re.fullmatch(r"[0-9.]+ ms", rows["first delta"])
    assert {"assemble", "send", "forward", "together"} < rows.keys()


def test_control_characters_of_prompt_and_answer_never_reach_the_terminal(shown):
    assert "\\u001b[2J" in shown.stdout
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown.stdout + uncoloured(shown.stderr))


def test_retries_are_told_as_they_happen_and_the_last_attempt_counts():
    done = in_process("--model", "mock", "--max-tokens", "3", "--fault", "status=529x1", "hello")
    assert done.exit_code == 0
    assert re.search(r"^llmlab: [0-9.]+ ms: retry: status 529: 1 s: retry-after$", done.stderr, re.MULTILINE)
    assert "POST /v1/messages (attempt 2)" in done.stdout
    assert "(the same body)" in done.stdout
    assert re.search("^attempts +2", done.stderr, re.MULTILINE)


def test_an_answer_that_broke_off_is_shown_as_far_as_it_came_and_fails():
    done = in_process("--model", "mock", "--max-tokens", "40", "--fault", "drop=1500", "hello")
    assert done.exit_code == 1
    assert "content_block_delta" in done.stdout
    assert "message_stop" not in done.stdout
    assert re.search("^end +never came", done.stderr, re.MULTILINE)
    assert done.stderr.rstrip().split("\n")[-1].startswith("llmlab: ")


def test_raw_is_the_stream_and_nothing_else():
    done = send_mock("--max-tokens", "6", "--raw", "hello", encoding=None)
    events = [(event.name, json.loads(event.data)["type"]) for event in SseParser().feed(done.stdout)]
    assert done.stdout.startswith(b"event: message_start\ndata: {")
    assert events[-1] == ("message_stop", "message_stop")
    received = re.search(rb"([0-9,]+) received", done.stderr)[1].replace(b",", b"")
    assert int(received) == len(done.stdout)


# -- JSON ----------------------------------------------------------------------------------------------------


def test_json_is_one_object_that_adds_up():
    found, done = answer("--model", "mock", "--temperature", "0")
    assert found.keys() == {
        *("request", "message", "error", "attempts", "timings_ms", "bytes"),
        *("frames", "events", "stages_ms"),
    }
    assert (done.exit_code, found["error"], found["attempts"]) == (0, None, 1)
    assert found["request"]["temperature"] == 0
    frames = [event for event in found["events"] if event["kind"] == "frame"]
    assert len(frames) == found["frames"]
    pieces = [event["size"] for event in found["events"] if event["kind"] == "bytes"]
    assert sum(pieces) == found["bytes"]["received"]
    deltas = "".join(event["text"] for event in found["events"] if event["kind"] == "delta")
    assert deltas == found["message"]["content"][0]["text"]
    times = [found["timings_ms"][name] for name in ("head", "first_byte", "first_delta", "end")]
    assert times == sorted(times)
    assert sum(found["stages_ms"].values()) >= found["timings_ms"]["end"]


def test_a_failure_is_in_the_object_too():
    found, done = answer("--model", "mock", "--fault", "drop=1200")
    assert done.exit_code == 1
    assert found["error"].startswith(("ConnectionLost", "StreamIncomplete"))
    assert found["message"]["is_complete"] is False
    assert done.stderr.startswith("llmlab: ")


def test_thinking_is_asked_for():
    found, done = answer("--model", "mock", "--max-tokens", "40", "--thinking", "20")
    assert found["request"]["thinking"] == {"type": "enabled", "budget_tokens": 20}
    assert done.exit_code == 0


# -- trace, other servers, mistakes --------------------------------------------------------------------------


def test_the_trace_begins_with_assembling_and_is_consistent(tmp_path):
    path = tmp_path / "send.trace.jsonl.gz"
    assert in_process("--model", "mock", "--max-tokens", "4", "--trace", str(path), "hi").exit_code == 0
    trace = Trace.load(path)
    assert trace.check() == []
    (row,) = trace.exchanges.itertuples()
    assert trace.leaves(row.wire_id).sort_values("start_s").name.iloc[0] == "assemble"


def test_any_server_can_be_sent_to_and_its_first_model_is_asked(server):
    found, done = answer("--url", server.url)
    assert (done.exit_code, found["request"]["model"], found["message"]["model"]) == (0, "mock", "mock")
    assert next(iter(found["stages_ms"])) == "assemble"


def test_the_key_goes_to_the_server_and_nowhere_else(monkeypatch, tmp_path):
    monkeypatch.setenv("SOME_KEY", "sk-secret")
    keys = tmp_path / "keys"
    keys.write_text("sk-secret alice\n")
    keys.chmod(0o600)
    with open_lab("mock") as lab, lab.serve(keys_file=keys) as server:
        done = in_process("--url", server.url, "--api-key-env", "SOME_KEY", "--max-tokens", "2", "hi")
        refused = in_process("--url", server.url, "--model", "mock", "hi")
    assert done.exit_code == 0
    assert "x-api-key: [removed]" in done.stdout
    assert "sk-secret" not in done.output
    assert refused.exit_code == 1
    assert "401" in refused.stderr


def test_nothing_at_the_address_fails_within_seconds():
    with open_lab("mock") as lab, lab.serve() as server:
        url = server.url
    done = in_process("--url", url, "--model", "m", "hi")
    assert done.exit_code == 1
    assert "no server answers at" in done.stderr.rstrip().split("\n")[-1]
    assert re.search("^attempts +3", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--raw", "--json", "hi"], "--json"),
        (["--fault", "nonsense", "hi"], "--fault"),
        (["--fault", "drop=1", "--url", "http://127.0.0.1:1", "hi"], "--fault"),
        (["--api-key-env", "HOME", "hi"], "--api-key-env"),
        (["--api-key-env", "NO_SUCH_VARIABLE", "--url", "http://127.0.0.1:1", "hi"], "NO_SUCH_VARIABLE"),
        (["--url", "127.0.0.1:1", "--model", "m", "hi"], "url"),
        (["--max-tokens", "5", "--thinking", "5", "hi"], "budget_tokens"),
        (["--trace", "/no/such/folder/file", "hi"], "--trace"),
        (["--model", "mock", ""], "the prompt is empty"),
        (["--model", "mock", " "], "the prompt is empty"),
    ],
)
def test_wrong_usage_is_exit_status_2_and_names_the_mistake(arguments, named):
    result = in_process(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert named in uncoloured(result.stderr)


def test_nothing_on_standard_input_is_an_empty_prompt():
    result = CliRunner().invoke(app, ["send", "--model", "mock", "-"], input="\n")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "the prompt is empty: give some text on standard input" in result.stderr


def test_a_server_that_falls_silent_on_purpose_is_waited_for_aloud_and_not_for_long(monkeypatch):
    monkeypatch.setattr("llmlab.commands.connection.IDLE_S", 0.6)
    monkeypatch.setattr("llmlab.commands.connection.WARN_S", 0.2)
    done = in_process("--model", "mock", "--max-tokens", "20", "--fault", "stall=3", "hi")
    assert done.exit_code == 1
    assert re.search(r"^llmlab: [0-9.,]+ ms: warning: idle: 0\.2\S* s without events$", done.stderr, re.MULTILINE)
    assert "no events for 0.6 s" in done.stderr.rstrip().split("\n")[-1]


def test_a_request_of_which_nothing_comes_is_waited_for_aloud(monkeypatch):
    monkeypatch.setattr("llmlab.commands.sending.PATIENCE_S", 0.2)
    slow = in_process("--model", "mock", "--max-tokens", "2", "--fault", "delay=0.8", "hi")
    monkeypatch.setattr("llmlab.commands.sending.PATIENCE_S", 60)
    quick = in_process("--model", "mock", "--max-tokens", "2", "hi")
    assert (slow.exit_code, quick.exit_code) == (0, 0)
    assert slow.stderr.count("nothing has come for 0.2 s") == 1
    assert "nothing has come" not in quick.stderr


def test_help_explains_each_fault():
    text = " ".join(uncoloured(llmlab("send", "--help", env={**os.environ, "COLUMNS": "200"}).stdout).split())
    for words in ("status=529x2: refuse twice", "drop=200: cut after", "stall=3x1: silence for 1 s after 3 frames"):
        assert words in text


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal to the process")
def test_interrupt_ends_quietly_with_130():
    arguments = ["send", "--model", "mock", "--max-tokens", "20", "--fault", "stall=4", "hi"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while b"content_block_start" not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


# -- lines ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ({"type": "ping"}, ""),
        ({"type": "content_block_delta", "index": 1, "delta": {"text": "a\n\x1b"}}, 'block 1: "a\\n\\u001b"'),
        ({"type": "content_block_delta", "index": 0, "delta": {"partial_json": "{"}}, 'block 0: partial json "{"'),
        ({"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "t"}}, "tool_use t"),
        ({"type": "error", "error": {"type": "api_error", "message": "m"}}, "api_error: m"),
        ({"type": "other", "x": 1}, '{"type": "other", "x": 1}'),
        ({"type": "message_start", "message": 5}, "None of None: no counts"),
        ([1], "[1]"),
    ],
)
def test_summaries_of_events(data, shown):
    assert summary(json.dumps(data)).endswith(shown)


@pytest.mark.parametrize("text", ["\x9b" * 500, "\u202e" * 500, "x" * 500, "[" * 100_000])
def test_no_summary_is_long_or_harmful(text):
    for found in (summary(text), summary(json.dumps({"type": "x", "y": text}, ensure_ascii=False))):
        assert len(found) <= MAX_WIDTH
        assert found.isprintable()


def test_usage_in_words():
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}
    assert usage_words(usage) == "3 uncached input, 9 output, of which 4 thinking tokens"


def test_long_bodies_are_cut_and_the_cuts_counted():
    found = pretty({"model": "m", "messages": [{"role": "user", "content": "x" * 1000}] * 100}).split("\n")
    assert len(found) == 63
    assert "more characters" in found[3]
    assert found[-2:] == ["  … 43 more lines", "}"]


def test_speculation_is_asked_of_our_own_server_only(tmp_path):
    done = in_process("--model", "mock", "--speculative", "ngram", "--trace", str(tmp_path / "t.jsonl.gz"), "aaaa")
    assert done.exit_code == 0
    assert Trace.load(tmp_path / "t.jsonl.gz").info.speculative.startswith("ngram")
    assert in_process("--url", "http://127.0.0.1:1", "--speculative", "ngram", "x").exit_code == 2
