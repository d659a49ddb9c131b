"""Lab 07: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil
from xml.etree.ElementTree import fromstring

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab07 import Series, chart, chunked_steps, crossing, flip
from llmlab.errors import InvalidParameter


def test_the_right_answers_pass():
    assert check.lab07.q1(chunked_steps)
    assert check.lab07.q2(crossing)
    assert check.lab07.q3(flip)


def test_the_stubs_do_not_pass():
    stub = lambda a, b, c: ...  # noqa: E731
    for question in (check.lab07.q1, check.lab07.q2, check.lab07.q3):
        assert "replace the ..." in repr(question(stub))
        assert "give the function itself" in repr(question(...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, budget, streams: ceil(n / budget), "out of the same budget"),
        (lambda n, budget, streams: n // (budget - streams), "the last chunk is a step too"),
        (lambda n, budget, streams: ceil(n / (budget - streams)) + streams, "in the same steps"),
        (lambda n, budget, streams: n, "a step per token"),
        (lambda n, budget, streams: 1, "only if the whole prompt fits"),
    ],
)
def test_chunks_wrongly_counted(wrong, said):
    assert said in repr(check.lab07.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, width, layers: p // (2 * width * layers), "without the causal mask"),
        (lambda p, width, layers: 2 * p // (width * layers), "on both sides"),
        (lambda p, width, layers: p // width, "divide by the number of layers"),
        (lambda p, width, layers: p // layers, "divide by the width"),
    ],
)
def test_crossing_wrongly_computed(wrong, said):
    assert said in repr(check.lab07.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda flops, bandwidth, size: round(flops / bandwidth), "operations per byte"),
        (lambda flops, bandwidth, size: round(flops * size / bandwidth), "two operations a token"),
        (lambda flops, bandwidth, size: round(flops / bandwidth / size / 2), "more tokens are needed"),
        (lambda flops, bandwidth, size: 1, "two operations only"),
    ],
)
def test_bend_wrongly_computed(wrong, said):
    assert said in repr(check.lab07.q3(wrong))


@pytest.mark.parametrize(("tokens", "budget", "streams"), [(100, 16, 1), (45, 16, 1), (90, 16, 3)])
def test_the_engine_cuts_as_the_check_says(tokens, budget, streams):
    with llmlab.open("mock", background=False, max_num_batched_tokens=budget, prefix_cache="off") as lab:
        running = [lab.submit([40 + i], max_tokens=200, ignore_eos=True) for i in range(streams)]
        lab.engine.step()
        prompt = lab.ask([*range(40, 40 + tokens)], max_tokens=1)
        ran = prompt.trace.schedule.query("request_id == @prompt.id and action == 'ran'")
        assert len(ran) == chunked_steps(tokens, budget, streams)
        assert not any(run.finished for run in running)


@pytest.mark.parametrize("log", [False, True])
def test_a_chart_shows_every_point_and_names_no_number_in_its_text(log):
    series = [Series("limit", [(1, 2), (100, 50)], is_line=True), Series("found", [(3, 7)], labels=["three"])]
    shown = chart("Title", "Two lines.", ("x", "y"), series, log=log)
    assert len(shown.table()) == 3
    assert shown.text == "Two lines."
    assert "three" in shown.svg
    fromstring(shown.svg)


def test_a_chart_of_nothing_is_refused():
    with pytest.raises(InvalidParameter):
        chart("Title", "Nothing.", ("x", "y"), [])
    with pytest.raises(InvalidParameter):
        chart("Title", "Zero.", ("x", "y"), [Series("a", [(0, 1), (1, 1)])], log=True)
