"""Answers to the notebooks' exercises: ``check.lab00.q1(answer, ...)`` says whether one is right, and if not, why.

A check computes what is right from the recorded trace it is given, and recognises the usual wrong answers.
:func:`predict` asks before a cell is run and compares afterwards.
"""

from llmlab.checks.lookup import check
from llmlab.checks.predict import Prediction, predict
from llmlab.checks.verdict import Verdict

__all__ = ["Prediction", "Verdict", "check", "predict"]
