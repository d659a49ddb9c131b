from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from command_line import COMMAND, ask_mock, llmlab, uncoloured
from typer.testing import CliRunner

from llmlab import Trace, __version__
from llmlab import ask as ask_in_python
from llmlab.cli import app


@pytest.fixture(scope="module")
def streamed():
    return ask_mock("--max-tokens", "20", "hello")


@pytest.fixture(scope="module")
def as_json():
    done = ask_mock("--max-tokens", "20", "--json", "hello")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_process(*arguments: str, **options):
    return CliRunner().invoke(app, ["ask", "--model", "mock", *arguments], **options)


def test_standard_output_is_the_answer_and_nothing_else(streamed):
    assert streamed.returncode == 0
    assert streamed.stdout == ask_in_python("hello", model="mock", max_tokens=20).text + "\n"


@pytest.mark.parametrize(
    "fact",
    [
        "TTFT",
        "prefill",
        "decode speed",
        "K/V",
        "largest batch",
        "outside forward",
        "20 tokens",
        "6 tokens",
    ],  # <bos> and five bytes
)
def test_timings_follow_on_standard_error(streamed, fact):
    assert fact in streamed.stderr


def test_json_is_one_object_with_every_field(as_json):
    assert as_json.keys() == {
        *("text", "prompt_token_ids", "token_ids", "stop_reason", "usage"),
        *("spans", "model", "device", "dtype"),
    }
    assert len(as_json["token_ids"]) == as_json["usage"]["output_tokens"] == 20
    assert bytes(as_json["token_ids"]).decode() == as_json["text"]
    assert (as_json["stop_reason"], as_json["model"]) == ("length", "mock")


def test_json_spans_begin_at_zero_and_lie_within_the_request(as_json):
    request = next(span for span in as_json["spans"] if span["name"] == "request")
    assert request["start_s"] == 0
    assert all(0 <= span["start_s"] <= span["end_s"] <= request["end_s"] for span in as_json["spans"])
    assert sum(span["name"] == "decode" for span in as_json["spans"]) == 19


def test_json_and_streaming_give_the_same_answer(as_json, streamed):
    assert as_json["text"] + "\n" == streamed.stdout


def test_dash_reads_the_prompt_without_its_last_newline():
    done = ask_mock("--json", "--max-tokens", "1", "-", input="two\nlines\n")
    prompt = bytes(i for i in json.loads(done.stdout)["prompt_token_ids"] if i < 256)
    assert prompt == b"two\nlines"


def test_prompt_that_is_not_utf8_is_asked_with_replacement_characters():
    done = ask_mock("--json", "--max-tokens", "1", "-", input=b"a\xff", encoding=None)
    assert done.returncode == 0
    assert "\ufffd".encode() in bytes(i for i in json.loads(done.stdout)["prompt_token_ids"] if i < 256)


def test_markup_in_a_prompt_is_plain_text():
    result = in_process("--max-tokens", "4", "[bold]not markup[/] [/nothing]")
    assert result.exit_code == 0


def test_system_message_for_a_model_without_a_chat_template_is_wrong_usage():
    result = in_process("--system", "Be brief.", "hi")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "chat template" in result.stderr


def test_seed_repeats_a_sampled_answer():
    options = ("--json", "--temperature", "1.5", "--top-p", "0.9", "--max-tokens", "30", "hi")
    first, again, other = (
        json.loads(in_process("--seed", seed, *options).stdout)["token_ids"] for seed in ("1", "1", "2")
    )
    assert first == again
    assert first != other


def test_trace_is_saved_whole(tmp_path):
    path = tmp_path / "ask.trace.jsonl.gz"
    assert in_process("--trace", str(path), "--max-tokens", "5", "hi").exit_code == 0
    trace = Trace.load(path)
    assert trace.requests.num_output_tokens.tolist() == [5]
    assert trace.check() == []


def test_trace_file_that_cannot_be_written_is_refused_before_anything_is_asked(tmp_path):
    result = in_process("--trace", str(tmp_path / "missing" / "file"), "hi")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "--trace" in uncoloured(result.stderr)


def test_named_error_is_one_line_and_exit_status_1():
    done = llmlab("ask", "--model", "no-such-model", "hi")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("llmlab: There is no model 'no-such-model'")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--temperature", "-1", "hi"], "temperature"),
        (["--top-p", "0", "hi"], "top_p"),
        (["--max-tokens", "-1", "hi"], "max_tokens"),
        (["--threads", "0", "hi"], "--threads"),
        (["--colour", "hi"], "--colour"),
        ([], "PROMPT"),
    ],
)
def test_wrong_usage_is_exit_status_2_and_names_the_mistake(arguments, named):
    result = in_process(*arguments)
    assert result.exit_code == 2
    assert named.lower() in uncoloured(result.stderr).lower()


def test_control_characters_in_an_error_are_spelled_out():
    result = CliRunner().invoke(app, ["ask", "--model", "\x1b]0;title\x07", "hi"])
    assert result.exit_code == 1
    assert "\x1b" not in result.stderr
    assert "\x07" not in result.stderr


def start_long_answer() -> subprocess.Popen:
    """A process that has shown the beginning of a long answer."""
    arguments = ["ask", "--model", "mock", "--max-tokens", "3900", "hi"]
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.read(1)
    return process


def test_interrupt_ends_quietly_with_130():
    process = start_long_answer()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors


def test_reader_that_goes_away_ends_it_quietly():
    process = start_long_answer()
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=60) == 1
    assert errors == b""


def test_version():
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"llmlab {__version__}\n")


def test_help_names_every_command():
    result = CliRunner().invoke(app, ["--help"])
    assert all(command in result.stdout for command in ("ask", "bench", "doctor", "models"))


@pytest.mark.model
def test_default_model_answers_in_json(model_path, tmp_path):
    options = ("--json", "--dtype", "float32", "--device", "cpu", "--max-tokens", "8")
    about = ("--system", "You know geography.", "--trace", str(tmp_path / "trace"))
    done = llmlab("ask", *options, *about, "What is the capital of France?")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert "Paris" in answer["text"]
    assert (answer["model"], answer["device"], answer["dtype"]) == ("smollm2-135m", "cpu", "float32")
    assert len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    (prompt,) = Trace.load(tmp_path / "trace").requests.prompt
    assert prompt.index("You know geography.") < prompt.index("What is the capital")


def test_command_line_starts_without_torch():
    code = "import sys, llmlab.cli; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["False", "False"]
