"""Lab 13: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

import llmlab
from llmlab.checks import check
from llmlab.checks.lab13 import BYTE_CASES, STOP_CASES, held, safe_length
from llmlab.engine.detokenizer import Detokenizer
from llmlab.models.byte_tokenizer import ByteTokenizer

STREAM = (*"你好🦊".encode(), *b"ab")


class Deltas:
    """A run of byte tokens that says ``STREAM``, then ends."""

    text = "你好🦊ab"

    def deltas(self):
        """As :meth:`llmlab.engine.run.Run.deltas`."""
        from llmlab.engine.run import Delta

        decoder = Detokenizer(ByteTokenizer())
        for token in STREAM:
            yield Delta(0, decoder.push(token), (token,), False)
        yield Delta(0, decoder.finish(), (257,), True)


@pytest.fixture
def run():
    return Deltas()


def test_the_right_answers_pass(run):
    assert check.lab13.q1(7, run)
    assert check.lab13.q2(safe_length)
    assert check.lab13.q3(held)


def test_the_stubs_do_not_pass(run):
    assert "replace the ..." in repr(check.lab13.q1(..., run))
    assert "replace the ..." in repr(check.lab13.q2(lambda data: ...))
    assert "replace the ..." in repr(check.lab13.q3(lambda text, stop: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (8, "the end of the answer"),
        (5, "the characters of the answer"),
        (13, "all steps"),
        (12, "all tokens of the text"),
        (3, "too small"),
    ],
)
def test_silent_steps_wrongly_counted(run, wrong, said):
    if wrong == 5:  # as many pieces as characters here
        said = "did send something"
    assert said in repr(check.lab13.q1(wrong, run))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (len, "half a character"),
        (lambda data: len(data.decode(errors="ignore")), "counts characters"),
        (lambda data: max(0, len(data) - 3), "often fewer"),
        (lambda data: len(data) - 1 if data else 0, "would be right"),
        (lambda data: next((i for i, byte in enumerate(data) if byte > 127), len(data)), "several bytes may be sent"),
    ],
)
def test_bytes_wrongly_cut(wrong, said):
    assert said in repr(check.lab13.q2(wrong))


def test_a_whole_last_character_is_not_held():
    def without_last(data):
        starts = [place for place, byte in enumerate(data) if byte >= 0xC0]
        return starts[-1] if starts and data[-1] >= 0x80 else len(data)

    assert "whole need not wait" in repr(check.lab13.q2(without_last))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda text, stop: 0, "cannot be taken back"),
        (lambda text, stop: min(len(text), len(stop) - 1), "always waits"),
        (lambda text, stop: len(text), "holds everything back"),
        (lambda text, stop: int(bool(text) and text[-1] == stop[0]), "one character"),
        (lambda text, stop: next((n for n in range(1, len(stop)) if text.endswith(stop[:n])), 0), "the shortest end"),
    ],
)
def test_stop_strings_wrongly_held(wrong, said):
    assert said in repr(check.lab13.q3(wrong))


@pytest.mark.parametrize("case", BYTE_CASES)
def test_the_detokenizer_shows_what_the_check_calls_safe(case):
    decoder, (data,) = Detokenizer(ByteTokenizer()), case
    shown = "".join(decoder.push(byte) for byte in data)
    assert len(shown.encode()) == safe_length(data)


@pytest.mark.parametrize(("text", "stop"), STOP_CASES)
def test_the_detokenizer_holds_what_the_check_calls_held(text, stop):
    decoder = Detokenizer(ByteTokenizer(), stop=[stop])
    shown = "".join(decoder.push(byte) for byte in text.encode())
    assert len(text) - len(shown) == held(text, stop)


def test_a_real_run_is_counted():
    with llmlab.open("mock", background=False) as lab:
        run = lab.ask([*range(40, 60)], max_tokens=12, logit_bias={97: 100}, ignore_eos=True)
        assert check.lab13.q1(sum(not d.text and not d.finished for d in run.deltas()), run)
