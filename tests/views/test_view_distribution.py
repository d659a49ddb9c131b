"""The view of how a token was chosen draws the recorded numbers, all of them, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest

import llmlab
from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.probes import Capture
from llmlab.trace import Trace
from llmlab.trace.events import Captured
from llmlab.views.distribution import distribution
from llmlab.views.glyphs import text_width
from llmlab.views.scene import MAX_MARKS, Line, Rect, Text

FILTERED = {"temperature": 1.5, "top_k": 4, "top_p": 0.95, "min_p": 0.05, "presence_penalty": 1.0, "seed": 1}


def recorded(prompt: str = "hello", candidates: int = 6, max_tokens: int = 4, **params) -> Trace:
    with llmlab.open("mock", background=False) as lab:
        lab.ask(prompt, max_tokens=max_tokens, ignore_eos=True, capture=Capture(distribution=candidates), **params)
        return lab.trace


@pytest.fixture(scope="module")
def trace() -> Trace:
    return recorded(**FILTERED)


def texts(view) -> list[str]:
    return [mark.text for mark in view.scene.marks if isinstance(mark, Text)]


def bars(view) -> list[Rect]:
    return [m for m in view.scene.marks if isinstance(m, Rect) and ": probability " in m.tip]


def test_two_seeded_runs_say_the_same(trace):
    one, other = distribution(trace), distribution(recorded(**FILTERED))
    assert (one.text, one.alt, one.svg) == (other.text, other.alt, other.svg)


def test_another_choice_is_another_picture(trace):
    pictures = {distribution(trace, index=i).svg for i in range(4)} | {distribution(recorded("bye", **FILTERED)).svg}
    assert len(pictures) == 5


def test_rows_and_the_rest_make_one_in_every_column(trace):
    view = distribution(trace)
    choice = trace.captured().distribution.choices[-1]
    tips = [m.tip for m in view.scene.marks if isinstance(m, Text) and "tokens without a row, " in m.tip]
    rest = {tip.split(":")[0]: float(tip.rsplit(":", 1)[1]) for tip in tips}
    assert list(rest) == list(choice.stages[:-1]), "the final distribution is the strip"
    for j, stage in enumerate(choice.stages[:-1]):
        drawn = [float(bar.tip.rsplit(" ", 1)[1]) for bar in bars(view) if bar.tip.startswith(f"{stage}: ")]
        assert sum(drawn) + rest[stage] == pytest.approx(1, abs=1e-5)
        assert len(drawn) == np.count_nonzero(~choice.excluded[j])


def test_every_excluded_candidate_is_struck_out_where_it_went(trace):
    view, choice = distribution(trace), trace.captured().distribution.choices[-1]
    struck = [m.tip for m in view.scene.marks if isinstance(m, Rect) and m.hatch and m.tip]
    assert len(struck) == int(choice.excluded[:-1].sum()) > 0
    gone = [choice.left_at(i) for i in range(len(choice.ids)) if choice.left_at(i)]
    assert [tip.rsplit(" ", 1)[1] for tip in struck if tip.startswith("min-p: ")] == gone
    assert texts(view).count("out") == len(gone)
    assert "excluded of the candidates" in view.text


def test_the_drawn_number_lies_on_the_chosen_token(trace):
    for index, choice in enumerate(trace.captured().distribution.choices):
        view = distribution(trace, index=index)
        [line] = [m for m in view.scene.marks if isinstance(m, Line) and "uniform number" in m.tip]
        strip = [m for m in view.scene.marks if isinstance(m, Rect) and ": from " in m.tip]
        [segment] = [m for m in strip if m.stroke == "ink" or m.fill == "c1"]
        assert segment.x - 0.5 <= line.points[0][0] <= segment.x + segment.w + 0.5
        assert f"u = {choice.uniform:.4f}" in texts(view)
        assert sum(m.w for m in strip) <= view.scene.width + len(strip)


def test_temperature_0_takes_the_largest_and_draws_no_number():
    view = distribution(recorded(max_tokens=2))
    assert "temperature 0: nothing is drawn, the largest is taken" in view.text
    assert not any("u = " in text for text in texts(view))
    assert "rank 0" in view.text


def test_the_text_holds_counts_and_ranks_of_the_recording(trace):
    view, choice = distribution(trace), trace.captured().distribution.choices[-1]
    for stage, possible in zip(choice.stages[1:-1], choice.possible[1:-1], strict=True):
        assert any(stage in line and f"{possible:,} token" in line for line in view.text.splitlines())
    assert f"rank {choice.rank[choice.chosen]} " in view.text


def test_logprobs_alone_give_one_column_and_say_how_to_record_more():
    with llmlab.open("mock", background=False) as lab:
        lab.ask("hello", max_tokens=2, logprobs=5)
        view = distribution(lab.trace)
        token = lab.trace.index.tokens[-1]
    assert "Capture(distribution=10)" in view.text
    drawn = [float(bar.tip.rsplit(" ", 1)[1]) for bar in bars(view)]
    assert drawn == pytest.approx([np.exp(logprob) for _, logprob in token.top], abs=1e-6)
    assert view.table()["possible"].isna().all()
    assert set(view.table()["stage"]) == {"raw"}


def test_a_chosen_token_outside_logprobs_has_no_rank():
    with llmlab.open("mock", background=False) as lab:
        lab.ask("hello", max_tokens=1, logprobs=1, temperature=5.0, seed=0)
        view = distribution(lab.trace)
    assert "none of the likeliest recorded" in view.text
    assert view.table()["rank"].isna().sum() == 1


def test_traces_without_it_say_so_and_how_to_record_it(lab_trace, wire_trace):
    for view in (distribution(lab_trace), distribution(wire_trace), distribution(Trace([]))):
        assert "Capture(distribution=10)" in view.text
        assert len(view.table()) == 0
        assert any("Capture(distribution=10)" in text for text in texts(view))


def test_arrays_that_were_not_saved_are_named(trace, tmp_path):
    loaded = Trace.load(trace.save(tmp_path / "a.trace.jsonl.gz"))
    assert "not beside the trace" in distribution(loaded).text


def test_a_saved_trace_without_torch_gives_the_same_view(trace, tmp_path):
    path = trace.save(tmp_path / "a.trace.jsonl.gz", captures=True)
    view = distribution(Trace.load(path))
    assert (view.text, view.svg) == (distribution(trace).text, distribution(trace).svg)
    code = (
        "import sys; from llmlab.trace import Trace; from llmlab.views.distribution import distribution; "
        f"v = distribution(Trace.load({str(path)!r})); v.svg; v.figure(); "
        "print('torch' in sys.modules, 'transformers' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == ["False", "False"]


def test_wrong_arguments_are_named(trace):
    with pytest.raises(UnknownRequest, match="r0"):
        distribution(trace, "nobody")
    with pytest.raises(InvalidParameter, match="0 to 3"):
        distribution(trace, index=4)
    with pytest.raises(InvalidParameter, match="index"):
        distribution(trace, index=True)
    with pytest.raises(InvalidParameter, match="width"):
        distribution(trace, width=10)
    assert distribution(trace, index=-4).svg == distribution(trace, index=0).svg


def test_a_draft_token_is_said_to_be_judged_not_drawn(trace):
    events = [replace(e, source="accepted") if e in trace.index.tokens[-1:] else e for e in trace.events]
    arrays = {
        name: np.full_like(values, np.nan) if "/distribution_uniform/" in name else values
        for name, values in trace.arrays.items()
    }
    view = distribution(Trace(events, arrays=arrays))
    assert "was drafted, and kept" in view.text
    assert not any("u = " in text for text in texts(view))


@pytest.mark.parametrize("width", [480, 960, 1600])
@pytest.mark.parametrize("candidates", [1, 6, 258])
def test_nothing_is_drawn_outside_or_too_small(width, candidates):
    view = distribution(recorded(candidates=candidates, max_tokens=1, **FILTERED), width=width)
    assert len(view.scene.marks) < min(MAX_MARKS, 3_000)
    assert len(view.svg) < 64_000
    for mark in view.scene.marks:
        if isinstance(mark, Rect):
            assert mark.x >= 0
            assert mark.x + mark.w <= width + 0.1
            assert mark.y + mark.h <= view.scene.height
        if isinstance(mark, Text):
            assert mark.size >= 10
            left = mark.x - text_width(mark.text, mark.size) * {"start": 0, "middle": 0.5, "end": 1}[mark.anchor]
            assert left >= -1
            assert left + text_width(mark.text, mark.size) <= width + 1


def test_text_of_tokens_stays_text(hostile_trace):
    evil = '<script>alert(1)</script>\u202e\x00</title>"'
    trace = recorded(**FILTERED)
    ids = trace.captured().distribution.choices[-1].ids.tolist()
    pieces = {int(i): (evil * 40).encode() for i in ids}
    view = distribution(Trace(trace.events, arrays=trace.arrays, pieces=pieces))
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text + view.alt
    assert "<script" not in view.figure().to_json()
    assert len(view.svg) < 64_000
    assert "not recorded" in distribution(hostile_trace).text


def test_a_long_output_is_drawn_fast():
    trace = recorded(max_tokens=512, temperature=1.0, seed=1)
    assert len(trace.index.captured) > 4_000
    distribution(trace)
    start = perf_counter()
    view = distribution(trace)
    assert perf_counter() - start < 0.5
    assert "output token 511 of 512" in view.text


def test_an_array_that_contradicts_its_event_is_not_drawn(trace):
    events = [
        replace(e, labels=tuple(99 for _ in e.labels)) if isinstance(e, Captured) and e.labels else e
        for e in trace.events
    ]
    assert "not beside the trace" in distribution(Trace(events, arrays=trace.arrays)).text


def test_the_figure_has_a_column_a_stage(trace):
    figure, choice = distribution(trace).figure(), trace.captured().distribution.choices[-1]
    assert len(figure.data) == len(choice.stages)
    assert [list(bar.x) for bar in figure.data] == choice.prob.tolist()
