"""Lab 20: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llmlab.checks import check
from llmlab.checks.lab20 import bill, block_size, counted


def test_the_right_answers_pass():
    assert check.lab20.q1(block_size)
    assert check.lab20.q2(counted)
    assert check.lab20.q3(bill)


@pytest.mark.parametrize("number", [1, 2])
def test_the_stubs_do_not_pass(number):
    assert "replace the ..." in repr(getattr(check.lab20, f"q{number}")(lambda counts: ...))


def test_the_stub_of_the_bill_does_not_pass():
    assert "replace the ..." in repr(check.lab20.q3(lambda prompt, cached, output: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (min, "may be several blocks"),
        (max, "many blocks"),
        (lambda counts: counts[0], "one count alone"),
        (len, "the number of counts"),
        (lambda counts: min((b - a for a, b in pairwise(sorted(counts))), default=counts[0]), "a difference"),
    ],
    ids=["min", "max", "first", "len", "gap"],
)
def test_the_block_size_wrongly_read(wrong, said):
    assert said in repr(check.lab20.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda readings: readings[-1] - readings[0], "began again at 0"),
        (lambda readings: readings[-1], "before the first reading"),
        (sum, "a total so far"),
        (lambda readings: sum(abs(b - a) for a, b in pairwise(readings)), "never counts down"),
        (lambda readings: sum(max(b - a, 0) for a, b in pairwise(readings)), "the whole reading"),
    ],
    ids=["ends", "last", "sum", "abs", "no restart"],
)
def test_a_counter_wrongly_read(wrong, said):
    assert said in repr(check.lab20.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda prompt, cached, output: prompt * 30 + cached * 3 + output * 150, "paid twice"),
        (lambda prompt, cached, output: prompt * 30 + output * 150, "the discount is missing"),
        (lambda prompt, cached, output: (prompt - cached) * 30 + output * 150, "not free"),
        (lambda prompt, cached, output: (prompt - cached) * 30 + cached * 3, "the output is missing"),
        (lambda prompt, cached, output: prompt * 3 + output * 150, "only the cached part"),
    ],
    ids=["twice", "no discount", "free", "no output", "all read"],
)
def test_a_bill_wrongly_made(wrong, said):
    assert said in repr(check.lab20.q3(wrong))
