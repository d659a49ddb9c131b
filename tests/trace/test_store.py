from __future__ import annotations

import gzip
import json
import math
import os
import re
import stat

import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from synthetic import clockwork, make_info, story

from llmlab.errors import TraceFormatError
from llmlab.trace import Trace, store
from llmlab.trace.codec import decode, encode, parse
from llmlab.trace.events import (
    EVENT_TYPES,
    BlockEvent,
    Captured,
    Decision,
    DraftPolicy,
    DraftRound,
    Gap,
    ProbeNote,
    PromptLogprobs,
    RequestFinished,
    RequestSubmitted,
    Span,
    Stage,
    Step,
    StepRow,
    TextEmitted,
    Token,
    WireEvent,
    WireLink,
)
from llmlab.trace.split_events import BlockTransfer, Collective, RankWork

ONE_OF_EACH = [
    make_info(0, 4, 4, 4),
    RequestSubmitted(1, "r0", "p", 2, "prompt", (1, 2), {"stop": ["a"], "temperature": 0.5}),
    Span(1, 2, "tokenize", None),
    Step(1, 2, 3, 4, 5, 6, 7, 0, (StepRow("r0", 0, 2, 0, True, True),), 0, 1, 3, 0, 1),
    Decision(1, 0, "r0", "preempted", "blocks", 0, "r1"),
    BlockEvent(1, 0, 3, "copy", "r0", 1, 1, "ab", 2),
    Token(1, 0, "r0", 2, 9, -0.25, "target", ((9, -0.25), (4, -3.0))),
    PromptLogprobs(1, 0, "r0", 1, (-0.5,), (((2, -0.5), (1, -2.0)),)),
    DraftRound(
        1, 0, "r0", "ngram", "exact", 0, 4, 3, (5, 6), (0.5, 0.1), (1.0, 1.0), (0.2, 0.9), 1, "recovered", 7, 9, 2, 8
    ),
    DraftPolicy(1, 0, None, 2, "it pays", 0.5, 3),
    TextEmitted(1, 0, "r0", "é", 1),
    RequestFinished(1, 0, "r0", "stop_token", 9, {"output_tokens": 1}),
    WireEvent(1, "req_1", "gateway", "frame", "sent", 12, "ping", "é\x00\ud83d"),
    Stage(1, 2, "req_1", "gateway", "route", "ok", "least loaded", {"backend": "engine", "load": 0.5}),
    WireLink(1, "req_1", "engine", "r0"),
    Captured(1, 0, "r0", "r0/hidden/3/0", "hidden", 3, ("position", "width"), (1, 2), "float32", 8, (5,), ()),
    ProbeNote(1, 0, "r0", "started", "hidden", (5, 6), 4),
    RankWork(1, 2, 0, 1, "pipeline", "forward", 0, 10, 19, 4),
    Collective(1, 2, 0, 1, "tensor", "all_reduce", 3, "mlp", 4608, 3),
    BlockTransfer(1, 2, 0, "r0", "send", "prefill", "decode", "socket", (3, 4), 30, 1024, "its decode runs there"),
    Gap(1, 5),
]


def written(path, *lines: object) -> str:
    """A file with a good header and the given lines (text, or objects to be written as JSON)."""
    header = {"format": "llmlab-trace", "version": 1}
    texts = [line if isinstance(line, str) else json.dumps(line) for line in (header, *lines)]
    path.write_bytes(gzip.compress("\n".join(texts).encode()))
    return str(path)


def test_there_is_an_example_of_every_event():
    assert {type(event) for event in ONE_OF_EACH} == set(EVENT_TYPES)


@pytest.mark.parametrize("event", ONE_OF_EACH, ids=lambda e: type(e).__name__)
def test_every_event_survives_with_its_types(event):
    again = decode(parse(encode(event)))
    assert again == event
    assert hash(getattr(again, "rows", getattr(again, "top", ()))) is not None  # tuples, all the way down


def test_a_saved_trace_loads_equal(tmp_path):
    trace = Trace(story())
    loaded = Trace.load(trace.save(tmp_path / "run.trace.jsonl.gz"))
    assert loaded.events == trace.events
    pd.testing.assert_frame_equal(loaded.spans, trace.spans)
    pd.testing.assert_frame_equal(loaded.requests, trace.requests)


def test_a_part_remembers_that_it_is_one(tmp_path):
    part = Trace(story()).for_request("r1")
    loaded = Trace.load(part.save(tmp_path / "part"))
    assert loaded.only == ("r1",)
    assert loaded.requests.request_id.tolist() == ["r1"]
    assert loaded.check() == []


def test_equal_events_give_equal_bytes(tmp_path):
    trace = Trace(clockwork())
    first, second = trace.save(tmp_path / "a"), trace.save(tmp_path / "b")
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_log_probabilities_that_json_has_no_number_for(value):
    line = encode(Token(1, 0, "r0", 2, 9, value, "target", ((9, value),)))
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not strict JSON"))
    token = decode(parse(line))
    assert str(token.logprob) == str(token.top[0][1]) == str(value)


@given(st.text(st.characters(codec=None, exclude_categories=()), max_size=20))
def test_any_text_survives_lone_surrogates_included(text):
    event = TextEmitted(1, 0, "r0", text, 1)
    line = encode(event)
    assert line.isascii()
    assert "\n" not in line
    assert decode(parse(line)) == event


def test_what_cannot_be_stored_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "run"
    before = Trace(clockwork()).save(path).read_bytes()
    with pytest.raises(TypeError, match="object cannot be part"):
        store.save(path, [RequestSubmitted(1, "r0", None, 0, None, (1,), {"seed": object()})])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# -- files that are refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"plain text", "not a saved trace"),
        (b"", "not a trace"),
        (gzip.compress(b"", mtime=0), "not a trace"),
        (gzip.compress(b"\xff\xfe\n", mtime=0), "not a trace"),
        (gzip.compress(b'{"format": "other", "version": 1}\n', mtime=0), "not a trace"),
        (gzip.compress(b'{"format": "llmlab-trace", "version": "1"}\n', mtime=0), "not a trace"),
        (gzip.compress(b'{"format": "llmlab-trace", "version": 2}\n', mtime=0), "version 2, newer than 1: update"),
        (gzip.compress(b'{"format": "llmlab-trace", "version": 1, "only": "r0"}\n', mtime=0), "list of request ids"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path, content, message):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(TraceFormatError, match=message):
        Trace.load(tmp_path / "file")


@pytest.mark.parametrize("cut", [0.3, 0.6, 0.99])
def test_a_truncated_file_is_refused(tmp_path, cut):
    path = Trace(story()).save(tmp_path / "run")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(TraceFormatError, match="damaged"):
        Trace.load(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"type": "Surprise", "t_ns": 1}, "'Surprise' is unknown"),
        ({"type": "object"}, "'object' is unknown"),
        ({"type": ["Gap"]}, "is unknown"),
        ({"t_ns": 1, "dropped": 1}, "None is unknown"),
        ({"type": "Gap", "t_ns": 1}, "missing or unknown: dropped"),
        ({"type": "Gap", "t_ns": 1, "dropped": 1, "extra": 2}, "missing or unknown: extra"),
        ({"type": "Gap", "t_ns": "1", "dropped": 1}, "expected int, found '1'"),
        ({"type": "Gap", "t_ns": True, "dropped": 1}, "expected int, found True"),
        ({"type": "Gap", "t_ns": 2**64, "dropped": 1}, "64 bits"),
        (
            {
                "type": "RequestFinished",
                "t_ns": 1,
                "step": 0,
                "request_id": "r",
                "stop_reason": "length",
                "stop_sequence": None,
                "usage": {"prompt_tokens": "x"},
            },
            "expected int, found 'x'",
        ),
        ({"type": "StepRow", "step": 1}, "is unknown"),
        (
            {"type": "PromptLogprobs", "t_ns": 1, "step": 2**31, "request_id": "r", "start": 0, "logprobs": []},
            "32 bits",
        ),
        ({"type": "Span", "t_ns": 1, "end_ns": 2, "name": "x", "request_id": 3}, "expected str or NoneType"),
        ("[1, 2]", "not an object"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"type": "Gap", "t_ns": ' + "1" * 5000 + ', "dropped": 1}', "not JSON"),
    ],
)
def test_a_line_that_is_no_event_is_refused_with_its_number(tmp_path, line, message):
    path = written(tmp_path / "file", {"type": "Gap", "t_ns": 1, "dropped": 1}, line)
    with pytest.raises(TraceFormatError, match=message) as caught:
        Trace.load(path)
    assert "line 3:" in str(caught.value)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.dictionaries(st.sampled_from(["type", "t_ns", "rows", "top", "logprob", "params"]), st.text() | st.none()))
def test_no_line_raises_anything_but_the_named_error(data):
    with pytest.raises(TraceFormatError):
        decode({"type": "Token", **data})


def test_a_decompression_bomb_is_stopped_early(tmp_path):
    path = written(tmp_path / "bomb", "x" * 3_000_000)
    with pytest.raises(TraceFormatError, match="more than 1,000,000 bytes"):
        Trace.load(path, max_bytes=1_000_000)
    many = written(tmp_path / "lines", *[{"type": "Gap", "t_ns": 1, "dropped": 1}] * 1000)
    with pytest.raises(TraceFormatError, match=re.escape("more than 10,000 bytes")):
        Trace.load(many, max_bytes=10_000)
    assert len(Trace.load(many)) == 1000


def test_a_missing_file_is_the_usual_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        Trace.load(tmp_path / "nowhere")


def test_saving_writes_through_links_and_into_pipes(tmp_path):
    trace = Trace(ONE_OF_EACH)
    target, link = tmp_path / "real.gz", tmp_path / "link.gz"
    link.symlink_to(target)
    trace.save(link)
    assert link.is_symlink()
    assert Trace.load(target).events == trace.events
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        trace.save(pipe)
        assert stat.S_ISFIFO(pipe.stat().st_mode)
        assert os.read(reader, 2) == b"\x1f\x8b"
    finally:
        os.close(reader)


def test_a_line_too_long_to_be_an_event_is_not_parsed(tmp_path):
    path = Trace(ONE_OF_EACH).save(tmp_path / "t.gz")
    with gzip.open(path, "ab") as file:
        file.write(b"[" * 16_000_001)
    with pytest.raises(TraceFormatError, match="16,000,000"):
        Trace.load(path)


def test_times_sizes_and_priorities_may_have_64_bits():
    event = RequestSubmitted(2**62, "r0", None, -(2**62), None, (), {})
    assert decode(parse(encode(event))) == event
    event = WireEvent(2**62, "w", "client", "bytes", "sent", 2**62, "")
    assert decode(parse(encode(event))) == event
