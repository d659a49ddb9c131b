"""Checks of lab 13, from tokens back to text. The first is given the run."""

from __future__ import annotations

from typing import Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict
from llmlab.engine.detokenizer import partial_stop_length
from llmlab.engine.run import Run

FOX = "ab你é🦊".encode()
BYTE_CASES = tuple((FOX[:length],) for length in range(len(FOX) + 1))
STOP_CASES = (
    ("The answer is", "is not"),
    ("The answer", "is not"),
    ("Paris", "is not"),
    ("a\n", "\n\n"),
    ("aab", "abc"),
    ("abab", "ababc"),
    ("aaa", "aaaa"),
    ("", "stop"),
    ("no", "yes"),
)


def q1(answer: Any, run: Run) -> Verdict:
    """In how many steps was a token of the text made, but nothing sent?"""
    deltas = list(run.deltas())
    silent = sum(not delta.text and not delta.finished for delta in deltas)
    sent = sum(bool(delta.text) for delta in deltas)
    mistakes = [
        (silent + 1, "one of these tokens is the end of the answer: it has no text, so nothing of it was held back."),
        (sent, "those are the steps that did send something."),
        (len(deltas), "those are all steps; some of them did send text."),
        (len(deltas) - 1, "those are all tokens of the text; some of them did send text."),
        (len(run.text), "those are the characters of the answer."),
    ]
    because = f"{len(deltas)} tokens, {sent} pieces of text, 1 end: {silent} tokens waited for the rest of a character."
    hint = "Count the deltas without text that are not the last one."
    return judge_number(answer, silent, mistakes, because=because, hint=hint)


def q2(function: Any) -> Verdict:
    """How many bytes, from the beginning, are whole characters?"""
    mistakes = [
        (len, "that decodes everything at once: the end may be half a character."),
        (_characters, "that counts characters; the answer counts bytes."),
        (
            lambda data: max(0, len(data) - 3),
            "at most three bytes wait, but often fewer: look at what the last ones are.",
        ),
        (
            _without_last,
            "a last character that is whole need not wait: compare its bytes with how many it should have.",
        ),
        (_ascii_only, "characters of several bytes may be sent too, once all their bytes are there."),
    ]
    because = "all but an unfinished last character, which is at most three bytes."
    return judge_function(function, safe_length, BYTE_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """How many characters at the end may be the beginning of the stop string?"""
    mistakes = [
        (lambda text, stop: 0, "then the beginning of a stop string would be shown, and it cannot be taken back."),
        (
            lambda text, stop: min(len(text), len(stop) - 1),
            "that always waits; only an end that begins the stop has to.",
        ),
        (
            lambda text, stop: len(stop) if text.endswith(stop) else 0,
            "the whole string is not there yet; look for parts.",
        ),
        (
            lambda text, stop: int(text[-1:] == stop[:1] != ""),
            "that looks at one character; longer ends may begin it too.",
        ),
        (_shortest, "that is the shortest end that begins it; a longer one may, and then all of it has to wait."),
        (lambda text, stop: len(text), "that holds everything back; the reader would see nothing until the end."),
    ]
    because = "the longest end of the text that is a beginning of the stop string."
    return judge_function(function, held, STOP_CASES, mistakes, because=because)


def safe_length(data: bytes) -> int:
    """Bytes at the start of ``data`` that are whole characters; ``data`` begins valid UTF-8."""
    return len(data.decode(errors="ignore").encode())


def held(text: str, stop: str) -> int:
    """Length of the longest end of ``text`` that begins ``stop``."""
    return partial_stop_length(text, [stop])


def _characters(data: bytes) -> int:
    return len(data.decode(errors="ignore"))


def _without_last(data: bytes) -> int:
    """All before the last byte that begins a character of several bytes, whole or not."""
    starts = [place for place, byte in enumerate(data) if byte >= 0xC0]
    return starts[-1] if starts and data[-1] >= 0x80 else len(data)


def _ascii_only(data: bytes) -> int:
    return next((place for place, byte in enumerate(data) if byte >= 0x80), len(data))


def _shortest(text: str, stop: str) -> int:
    return next((n for n in range(1, len(stop)) if text.endswith(stop[:n])), 0)
