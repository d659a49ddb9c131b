"""Verdicts, numbers, functions, predictions: what a learner is told."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from llmlab.checks import check, predict
from llmlab.checks.judge import judge_function, judge_number
from llmlab.errors import InvalidParameter

MISTAKES = [(7, "seven is the decode steps."), (8, "never said: it is right.")]


def judged(answer):
    return judge_number(answer, 8, MISTAKES, because="eight.", hint="Count again.")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (8, "Correct: eight."),
        (8.0, "Correct: eight."),
        (7, "Not yet: seven is the decode steps."),
        (9, "Not yet: 9 is too large. Count again."),
        (2, "Not yet: 2 is too small. Count again."),
        (..., "Not yet: replace the ... by your answer, then run this cell again."),
        (None, "Not yet: replace the ... by your answer, then run this cell again."),
        (True, "Not yet: the answer is a whole number; yours is True, of type bool."),
        ("8", "Not yet: the answer is a whole number; yours is '8', of type str."),
        (8.5, "Not yet: the answer is a whole number; yours is 8.5, of type float."),
        (float("nan"), "Not yet: the answer is a whole number; yours is nan, of type float."),
    ],
)
def test_a_number_is_judged_in_one_sentence(answer, said):
    assert repr(judged(answer)) == said
    assert bool(judged(answer)) is said.startswith("Correct")


def double(number):
    return 2 * number


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda n: n + n, "Correct: doubled."),
        (lambda n: n * n, "Not yet: that is the square."),
        (lambda n: ..., "Not yet: the function returns nothing yet: replace the ... by what it should return."),
        (3, "Not yet: give the function itself, as in q(my_function); you gave 3."),
        (lambda n: 1 // (n - 2), "Not yet: <lambda>(number=2) raises ZeroDivisionError: integer division or modulo by"),
        (lambda n: 4, "Not yet: <lambda>(number=3) is 4; 6 would be right."),
    ],
)
def test_a_function_is_judged_by_its_values(function, said):
    mistakes = [(lambda n: n * n, "that is the square.")]
    assert repr(judge_function(function, double, [(2,), (3,)], mistakes, because="doubled.")).startswith(said)


def test_an_unknown_lab_is_told_which_there_are():
    with pytest.raises(AttributeError, match="no checks 'lab99': there are lab00"):
        getattr(check, "lab99")  # noqa: B009


def test_a_prediction_is_text_that_two_runs_repeat():
    asked = predict("How many steps?", [8, 45])
    assert repr(asked) == "Predict: How many steps?\n  ( ) 8\n  ( ) 45"
    assert asked._repr_mimebundle_()["text/plain"] == repr(asked)
    assert repr(asked.choose(8)) == "Predict: How many steps?\n  (x) 8\n  ( ) 45"


def test_a_click_is_recorded_and_compared(capsys):
    asked = predict("How many steps?", [8, 45])
    asked._repr_mimebundle_()
    asked._buttons().children[1].value = "45"
    asked.reveal(8)
    asked.choose(8).reveal(8)
    predict("How many steps?", [8, 45]).reveal(8)
    said = capsys.readouterr().out.splitlines()
    assert said[0] == "Measured: 8. You said 45: what did you assume that is not so?"
    assert said[1] == "Measured: 8, as you said."
    assert said[2].startswith("Measured: 8. You made no prediction")


@pytest.mark.parametrize("options", [[], ["one"], ["1", 1]])
def test_options_that_are_no_choice_are_refused(options):
    with pytest.raises(InvalidParameter, match="at least two, all different"):
        predict("Which?", options)


def test_a_choice_that_is_no_option_is_refused():
    with pytest.raises(InvalidParameter, match="choose one of 8, 45"):
        predict("How many?", [8, 45]).choose(9)


class Rude:
    """Answers no question about itself."""

    def __eq__(self, other):
        raise RuntimeError("no")

    __hash__ = None
    __repr__ = __int__ = __eq__


STRANGE = {
    "array": np.array([1, 2]),
    "empty": np.array([]),
    "huge": 10**5000,
    "rude": Rude(),
    "series": pd.Series([3]),
    "missing": pd.NA,
}


@pytest.mark.parametrize("value", STRANGE.values(), ids=STRANGE)
def test_whatever_an_answer_is_it_gets_a_verdict(value):
    assert not judge_number(value, 7, [(3, "three")], because="b", hint="h")
    verdict = judge_function(lambda n: value, lambda n: n, [(1,), (2,)], [(lambda n: -n, "m")], because="b")
    assert not verdict
    assert len(str(verdict)) < 500
