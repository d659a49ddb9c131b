"""The token strip shows every token of a request once, where it came from and when its text came out."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from time import perf_counter

import drawn
import pytest
import recordings

from llmlab.engine.detokenizer import Detokenizer
from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace import Trace
from llmlab.trace.events import RequestFinished, RequestSubmitted, Step, StepRow, TextEmitted, Token
from llmlab.views.glyphs import visible_bytes
from llmlab.views.scene import Line, Rect, Text
from llmlab.views.token_strip import token_strip

MS = 1_000_000
PROMPT = tuple(b"say something nice to me")
PIECES = {i: ByteTokenizer().token_bytes(i) for i in range(258)}


def answer(
    text: bytes, stop: tuple[str, ...] = (), finish: str | None = None, prompt: tuple[int, ...] = PROMPT
) -> Trace:
    """A request whose prompt is computed in two chunks and whose output is ``text``, a byte a step."""
    detokenizer = Detokenizer(ByteTokenizer(), prompt, stop)
    half = len(prompt) // 2
    events = [RequestSubmitted(0, "r", None, 0, None, prompt, {"stop": list(stop)})]
    rows = [StepRow("r", 0, half, 0, True, False), StepRow("r", half, len(prompt) - half, 0, True, True)]
    events += [Step(*[i * MS] * 6, (i + 1) * MS, i, (row,), 0, 1, 1, 1, 1) for i, row in enumerate(rows)]
    for i, token in enumerate(text):
        events.append(Token((i + 2) * MS, i + 1, "r", len(prompt) + i, token, -0.1 * i, "target"))
        if piece := detokenizer.push(token):
            events.append(TextEmitted((i + 2) * MS, i + 1, "r", piece, i + 1))
    if finish:
        events.append(RequestFinished((i + 2) * MS, i + 1, "r", finish, detokenizer.stop_hit, {}))
    return Trace(events, pieces=PIECES)


def boxes(view):
    """Marks that stand for a position."""
    return [m for m in view.scene.marks if isinstance(m, Rect) and "position" in m.key and m.tip]


def brackets(view):
    return [m for m in view.scene.marks if isinstance(m, Line) and m.stroke == "alarm" and m.tip]


def test_every_token_of_the_trace_is_drawn_once_with_its_id_text_and_source(lab_trace, draft_trace):
    for trace in (lab_trace, draft_trace):
        for request_id in trace.index.request_ids:
            view, tokens = token_strip(trace, request_id, limit=400), trace.tokens.query("request_id == @request_id")
            table = view.table()
            for column in ("position", "token_id", "source"):
                assert table[column].tolist() == tokens[column].tolist()
            assert [m.key["position"] for m in boxes(view)] == table["position"].tolist()
            known = [trace.piece(i) for i in table["token_id"]]
            assert [label for label in table["token"] if label.isalpha()] == [
                p.decode() for p in known if p.isalpha() and p.isascii()
            ]


def test_counts_in_the_words_are_those_of_the_usage(draft_trace):
    for request_id, finished in draft_trace.index.finished.items():
        sources = Counter(token_strip(draft_trace, request_id).table()["source"])
        usage = finished.usage
        assert sources["cached"] == usage["cached_tokens"]
        assert sources["cached"] + sources["prompt"] == usage["prompt_tokens"]
        assert sources["accepted"] == usage.get("accepted_draft_tokens", 0)
        assert sum(sources.values()) == usage["prompt_tokens"] + usage["output_tokens"]
        assert f"output: {usage['output_tokens']} token" in token_strip(draft_trace, request_id).text


def test_steps_are_those_that_computed_and_chose_each_token(lab_trace):
    for request_id in lab_trace.index.request_ids:
        tokens = lab_trace.tokens.query("request_id == @request_id and source != 'cached'")
        table = token_strip(lab_trace, request_id).table().query("source != 'cached'")
        assert table["step"].tolist() == tokens["step"].tolist()


def test_cached_tokens_are_hatched_and_have_no_step(lab_trace):
    view = token_strip(lab_trace, "r2")
    cached = [m for m in boxes(view) if m.hatch]
    assert len(cached) == lab_trace.requests.set_index("request_id").num_cached_tokens["r2"] > 0
    assert not any("step" in m.key for m in cached)
    assert "served from cache (not computed)" in view.text


def test_drafted_tokens_differ_by_more_than_colour(draft_trace):
    view = token_strip(draft_trace, limit=400)
    sources = dict(zip(view.table()["position"], view.table()["source"], strict=True))
    looks = {(sources[m.key["position"]], bool(m.fill), m.stroke, m.width, m.dash, m.hatch) for m in boxes(view)}
    assert {source for source, *_ in looks} >= {"prompt", "target", "accepted", "recovered", "bonus"}
    assert len({look[1:] for look in looks if look[0] != "prompt"}) == len(looks) - 1


def test_bytes_of_a_character_are_held_back_until_its_last():
    view = token_strip(answer("né 🙂.".encode(), finish="length"))
    table = view.table().query("source == 'target'")
    held = table[table["held_back"] != ""]
    assert held["token"].tolist() == ["<0xC3>", "<0xF0>", "<0x9F>", "<0x99>"]
    assert held["shown_in_step"].tolist() == [3, 8, 8, 8]
    assert "held back: positions 28 to 30 until step 8 (half a character)" in view.text
    assert [m.tip for m in brackets(view)] == [
        "text held back until step 3: half a character",
        "text held back until step 8: half a character",
    ]


def test_what_may_begin_a_stop_string_is_held_back_and_the_stop_string_is_never_shown():
    view = token_strip(answer(b"E, END", ("END",), "stop_string"))
    held = view.table().query("held_back != '' and source == 'target'")
    assert list(zip(held["token"], held["held_back"], strict=True)) == [
        ("E", "may begin a stop string"),
        ("E", "never shown"),
        ("N", "never shown"),
        ("D", "never shown"),
    ]
    assert "end: stop string END" in view.text
    assert "never shown: positions 27 to 29" in view.text


def test_text_that_comes_at_once_is_not_marked(lab_trace):
    view = token_strip(lab_trace)
    assert not brackets(view)
    assert set(view.table()["held_back"]) == {""}


def test_the_end_says_why(lab_trace):
    assert "end: length: max_tokens reached" in token_strip(lab_trace).text
    assert "end: none recorded so far" in token_strip(answer(b"x")).text
    eos = token_strip(answer(b"x", finish="eos")).text
    assert "end: eos: the model ended its answer" in eos


def test_chunks_of_the_prompt_are_told_apart():
    view = token_strip(answer(b"x"))
    assert "24 tokens: 24 computed in 2 chunks" in view.text
    named = [m.text for m in view.scene.marks if isinstance(m, Text) and m.text.startswith("step ")]
    assert named[:2] == ["step 0", "step 1"]


def test_a_bar_is_as_long_as_the_probability():
    view = token_strip(answer(b"abc"))
    widths = {m.key["position"]: m.w for m in boxes(view)}
    bars = [m for m in view.scene.marks if isinstance(m, Rect) and m.fill == "mark" and "position" in m.key]
    shares = [bar.w / widths[bar.key["position"]] for bar in bars]
    assert shares == pytest.approx(view.table()["probability"].dropna().tolist())


def test_text_has_no_time_and_repeats(lab_trace):
    again = recordings.record_lab()
    for request_id in lab_trace.index.request_ids:
        one, other = token_strip(lab_trace, request_id), token_strip(again, request_id)
        assert (one.text, one.alt, one.notes) == (other.text, other.alt, other.notes)
    late = [replace(e, t_ns=e.t_ns + 7 * MS) if isinstance(e, Token) else e for e in lab_trace.events]
    assert token_strip(Trace(late, pieces=lab_trace.pieces), "r1").text == token_strip(lab_trace, "r1").text


def test_another_trace_gives_another_picture(lab_trace, other_trace):
    assert token_strip(lab_trace, "r1").scene.marks != token_strip(other_trace, "r1").scene.marks


def test_a_saved_trace_gives_the_same_picture(draft_trace, tmp_path):
    loaded = Trace.load(draft_trace.save(tmp_path / "t.gz"))
    assert token_strip(loaded).svg == token_strip(draft_trace).svg


@pytest.mark.parametrize("width", [320, 480, 960, 1400])
def test_nothing_is_outside_or_on_other_text(lab_trace, draft_trace, hostile_trace, width):
    for trace in (lab_trace, draft_trace, hostile_trace):
        for request_id in trace.index.request_ids:
            assert drawn.faults(token_strip(trace, request_id, width=width)) == []
    assert drawn.faults(token_strip(answer("né 🙂. END".encode(), ("END",), "stop_string"), width=width)) == []


def test_text_of_others_is_shown_not_obeyed(hostile_trace):
    events = [
        RequestSubmitted(0, recordings.MARKUP, None, 0, None, (1, 2), {}),
        Token(1, 0, recordings.MARKUP, 2, 3, float("-inf"), "<b>", ()),
        RequestFinished(2, 0, recordings.MARKUP, "stop_string", recordings.INVISIBLE + "\ud800", {}),
    ]
    evil = Trace(events, pieces={1: recordings.MARKUP.encode() * 50, 2: b"\xe2\x80\xae\x00\xff", 3: b""})
    for view in (token_strip(evil), token_strip(hostile_trace)):
        assert "<script" not in view.svg
        assert "\u202e" not in view.svg + view.text
        assert "\x00" not in view.svg + view.text
    assert drawn.faults(token_strip(evil)) == []


def test_a_long_request_is_cut_and_says_so():
    trace = answer(b"0123456789" * 60, prompt=tuple(i * 37 % 256 for i in range(20_000)))
    trace.index  # noqa: B018 (sorted before the clock starts)
    start = perf_counter()
    view = token_strip(trace, limit=400)
    assert perf_counter() - start < 1.5
    assert len(view.table()) == 20_600
    drawn_positions = [m.key["position"] for m in boxes(view)]
    assert len(drawn_positions) == 400
    assert {0, 19_999, 20_000, 20_599} <= set(drawn_positions)
    assert view.notes[0].startswith("19,800 prompt tokens are left out of the picture (positions 100 to 19,899)")
    assert view.notes[1].startswith("400 output tokens are left out")
    assert drawn.faults(view) == []


def test_without_pieces_tokens_have_their_ids(lab_trace):
    table = token_strip(Trace(lab_trace.events), "r1").table()
    assert table["token"].tolist() == [f"#{i}" for i in table["token_id"]]


def test_a_trace_without_requests_says_how_to_record_one():
    view = token_strip(Trace([]))
    assert "no request" in view.text
    assert "lab.ask" in view.svg
    assert len(view.table()) == 0


def test_a_request_whose_submission_was_lost_says_so(lab_trace):
    rest = [e for e in lab_trace.events if not isinstance(e, RequestSubmitted)]
    view = token_strip(Trace(rest, pieces=lab_trace.pieces), "r2")
    usage = lab_trace.index.finished["r2"].usage
    assert f"{usage['prompt_tokens']} prompt tokens, not recorded" in view.text
    assert drawn.faults(view) == []


def test_mistakes_say_what_would_work(lab_trace):
    with pytest.raises(UnknownRequest, match="r1"):
        token_strip(lab_trace, "nobody")
    with pytest.raises(InvalidParameter, match="320"):
        token_strip(lab_trace, width=10)
    with pytest.raises(InvalidParameter, match="800"):
        token_strip(lab_trace, limit=100_000)


def test_a_token_of_very_many_bytes_is_cut():
    for piece in (b"\xff" * 10**6, b"a" * 10**6, "é".encode() * 10**6):
        start = time.process_time()
        assert len(visible_bytes(piece)) < 20_000
        assert time.process_time() - start < 1


def test_a_log_probability_above_zero_is_drawn_as_certain(lab_trace):
    events = [replace(e, logprob=1e308) if isinstance(e, Token) else e for e in lab_trace.events]
    assert "(p 1)" in token_strip(Trace(events)).svg
