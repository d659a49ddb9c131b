"""Lab 05: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import numpy as np
import pytest

from llmlab.checks import check
from llmlab.checks.lab05 import PASSAGES, QUESTIONS, calls_before, nearest


def by(likeness, most=True):
    """A search by another likeness."""

    def search(query, rows, top):
        rows = np.array(rows)
        order = np.argsort([likeness(np.array(query), row) for row in rows], kind="stable")
        return list(order[::-1] if most else order)[:top]

    return search


def cosine(query, row):
    return query @ row / np.linalg.norm(query) / np.linalg.norm(row)


def test_the_right_answers_pass():
    assert check.lab05.q1(1_050_673_152)
    assert check.lab05.q2(nearest)
    assert check.lab05.q2(by(cosine))
    assert check.lab05.q2(lambda query, rows, top: np.array(nearest(query, rows, top)))
    assert check.lab05.q3(calls_before)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab05.q1(...))
    assert "replace the ..." in repr(check.lab05.q2(lambda query, rows, top: ...))
    assert "replace the ..." in repr(check.lab05.q3(lambda num_passages, top: ...))
    assert "give the function itself" in repr(check.lab05.q2([0, 3]))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (128_256 * 4_096, "each takes 2 bytes"),
        (128_256 * 4_096 * 4, "with 32-bit numbers"),
        (128_000 * 4_096 * 2, "special tokens"),
        (40 * 4_096 * 2, "one prompt"),
        (49_152 * 576 * 2, "the model here"),
    ],
)
def test_bytes_wrongly_counted(wrong, said):
    assert said in repr(check.lab05.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (by(lambda query, row: query @ row), "long rows win"),
        (by(lambda query, row: -np.linalg.norm(query - row)), "distances between points"),
        (by(cosine, most=False), "least similar"),
        (by(lambda query, row: abs(cosine(query, row))), "sign"),
        (lambda query, rows, top: nearest(query, rows, len(rows)), "only the first top"),
        (lambda query, rows, top: [rows[row] for row in nearest(query, rows, top)], "not the rows"),
    ],
)
def test_searches_done_wrongly(wrong, said):
    assert said in repr(check.lab05.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, top: top, "the question itself"),
        (lambda n, top: 1 + top, "no more candidates"),
        (lambda n, top: n + top, "in advance"),
        (lambda n, top: 2, "once per candidate"),
        (lambda n, top: 2 + min(top, n), "leave out the call that answers"),
    ],
)
def test_calls_wrongly_counted(wrong, said):
    assert said in repr(check.lab05.q3(wrong))


def test_every_question_has_its_passage():
    assert len(PASSAGES) == len(set(PASSAGES)) == 60
    assert all(0 <= place < len(PASSAGES) for _, place in QUESTIONS)
