"""Checks of lab 05, two embeddings; and the notes that it searches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import hypot
from typing import Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict

PASSAGES = (
    "The staging database is called heron and is copied from production every night.",
    "The production database is called osprey and runs on three machines.",
    "Backups are kept for ninety days and then deleted.",
    "Deployments are forbidden on Fridays after noon.",
    "The on-call engineer changes every Monday at nine.",
    "Migrations must be reviewed by two people before they run.",
    "The office kitchen closes at six in the evening.",
    "New colleagues get a laptop and a badge on their first day.",
    "The parking garage opens with the blue key card.",
    "Holidays are requested at least two weeks in advance.",
    "The coffee machine is cleaned every Wednesday.",
    "Visitors sign in at the front desk and wear a yellow badge.",
    "The payment service retries a failed charge three times.",
    "Invoices are sent on the first working day of the month.",
    "Refunds above one hundred euros need a manager's approval.",
    "Passwords must have at least fourteen characters.",
    "Two-factor login is required for all administrators.",
    "Access rights are reviewed every quarter by the security team.",
    "A lost laptop must be reported within one hour.",
    "The test suite takes eleven minutes on the build server.",
    "Every pull request needs one approval and a green build.",
    "The main branch is protected and cannot be pushed to directly.",
    "Release notes are written by the person who merges last.",
    "Feature flags are removed one month after the launch.",
    "The search index is rebuilt every Sunday at three in the morning.",
    "The cache server is called magpie and holds sixteen gigabytes.",
    "Log files are compressed after one day and deleted after thirty.",
    "Alerts go to the phone of the on-call engineer.",
    "The status page is updated within fifteen minutes of an outage.",
    "After an outage the team writes a report without blame.",
    "The library on the second floor lends books for three weeks.",
    "The bicycle room has space for forty bicycles.",
    "The fire drill takes place twice a year.",
    "Lunch is free on Thursdays for everyone in the building.",
    "The meeting room named Cedar seats twelve people.",
    "Printers are repaired by a company from the next town.",
    "The summer party is on the last Friday of June.",
    "Expenses are paid back within ten days of the receipt.",
    "Train tickets are booked through the travel portal.",
    "Business cards are ordered from the office manager.",
    "The mobile app is released every second Tuesday.",
    "The website is served from two data centres.",
    "Images are resized by a worker named sparrow.",
    "Emails to customers are sent from a queue, never directly.",
    "Customer data may not leave the European Union.",
    "The data warehouse is loaded every four hours.",
    "Dashboards are public inside the company.",
    "The machine learning team trains its models at night.",
    "The support team answers within one working day.",
    "Complaints are forwarded to the head of support.",
    "Interns are paid and stay for three months.",
    "Salaries are paid on the twenty-fifth of each month.",
    "The gym on the ground floor is open from six to ten.",
    "The roof terrace is closed in winter.",
    "Plants are watered by a volunteer every Tuesday.",
    "The company was founded in a garage in 2009.",
    "The first customer was a bakery.",
    "The newsletter has four thousand readers.",
    "The wireless network for guests changes its password daily.",
    "The server room is cooled to twenty-one degrees.",
)
"""Notes of an invented company, so that no model can know them."""

QUESTIONS = (
    ("What is the staging database called?", 0),
    ("How long are backups kept?", 2),
    ("When does the on-call engineer change?", 4),
    ("How many people must review a migration?", 5),
    ("How often is the search index rebuilt?", 24),
    ("How long may a lost laptop stay unreported?", 18),
    ("Who writes the release notes?", 22),
    ("On which day is lunch free?", 33),
    ("How many characters does a password need?", 15),
    ("When are salaries paid?", 51),
)
"""Questions, each with the place of the passage that answers it."""

SEARCHES = (
    ([1.0, 0.0], [[2.0, 0.1], [9.0, 9.0], [-5.0, 0.1], [0.5, 0.0]], 2),
    ([0.0, 1.0, 0.0], [[0.0, 1.0, 0.0], [4.0, 4.0, 4.0], [0.0, 3.0, 0.3], [0.1, -2.0, 0.0]], 3),
    ([1.0, 1.0], [[8.0, 1.0], [1.0, 1.1], [-1.0, -1.01]], 1),
)
CHAINS = ((60, 50), (1_000_000, 50), (60, 5), (30, 50), (100, 1))


def q1(answer: Any) -> Verdict:
    """How many bytes does the embedding matrix of Llama 3 8B take in 16-bit numbers?"""
    rows, width = 128_256, 4_096
    mistakes = [
        (rows * width, "those are its numbers; each takes 2 bytes."),
        (rows * width * 4, "that is with 32-bit numbers; 16 bits are 2 bytes."),
        (rows * width * 16, "16 bits are 2 bytes, not 16."),
        (128_000 * width * 2, "the 256 special tokens have rows too: 128,256 rows."),
        (40 * width * 2, "those are the 40 rows that one prompt looks up; the matrix has a row for every token."),
        (49_152 * 576 * 2, "that is the matrix of the model here."),
    ]
    because = "128,256 rows of 4,096 numbers of 2 bytes: 1.05 GB, of which a prompt of 40 tokens reads 328 kB."
    hint = "Rows times numbers per row times bytes per number."
    return judge_number(answer, rows * width * 2, mistakes, because=because, hint=hint)


def q2(function: Any) -> Verdict:
    """The nearest rows by cosine."""
    mistakes = [
        (_ordered(_dot), "that is the order of dot products, in which long rows win; divide by the rows' lengths."),
        (_ordered(_far), "that is the order of distances between points; the cosine does not look at lengths."),
        (_ordered(lambda q, r: -_cosine(q, r)), "those are the least similar; sort the other way round."),
        (_ordered(lambda q, r: abs(_cosine(q, r))), "the opposite direction is not near: leave the sign alone."),
        (_all_of, "the order is right, but return only the first top of them."),
        (_as_rows, "return the rows' numbers, not the rows."),
    ]
    because = "by direction, not by length."
    return judge_function(_plain(function), nearest, SEARCHES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """Model calls for one question before the call that answers it."""
    mistakes = [
        (lambda n, top: top, "the question itself must be embedded too."),
        (lambda n, top: 1 + top, "nearly: no more candidates can be reranked than there are passages."),
        (lambda n, top: n + top, "the passages' vectors were made in advance; only the question's is missing."),
        (lambda n, top: 1 + n, "only the candidates are reranked, not the whole store."),
        (lambda n, top: n + 1 + min(top, n), "the passages' vectors were made in advance."),
        (lambda n, top: 2, "a reranker is called once per candidate: question and passage go in together."),
        (lambda n, top: 1, "that is the question's vector; every candidate needs a rerank call as well."),
        (lambda n, top: 2 + min(top, n), "leave out the call that answers."),
    ]
    because = "one vector for the question, one score per candidate. The search between them is no model call."
    return judge_function(function, calls_before, CHAINS, mistakes, because=because)


def nearest(query: Sequence[float], rows: Sequence[Sequence[float]], top: int) -> list[int]:
    """Numbers of the ``top`` rows with the largest cosine, nearest first."""
    return _ordered(_cosine)(query, rows, top)


def calls_before(num_passages: int, top: int) -> int:
    """One embedding of the question, then one score per candidate."""
    return 1 + min(top, num_passages)


def _ordered(likeness: Callable) -> Callable[..., list[int]]:
    return lambda query, rows, top: sorted(range(len(rows)), key=lambda row: -likeness(query, rows[row]))[:top]


def _dot(query: Sequence[float], row: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(query, row, strict=True))


def _far(query: Sequence[float], row: Sequence[float]) -> float:
    return -hypot(*(a - b for a, b in zip(query, row, strict=True)))


def _cosine(query: Sequence[float], row: Sequence[float]) -> float:
    return _dot(query, row) / hypot(*query) / hypot(*row)


def _all_of(query: Sequence[float], rows: Sequence[Sequence[float]], top: int) -> list[int]:
    return nearest(query, rows, len(rows))


def _as_rows(query: Sequence[float], rows: Sequence[Sequence[float]], top: int) -> list[Sequence[float]]:
    return [rows[row] for row in nearest(query, rows, top)]


def _plain(function: Any) -> Any:
    """The learner's function with arrays and tuples turned into lists, so that they compare."""
    if not callable(function):
        return function

    def plain(query: Sequence[float], rows: Sequence[Sequence[float]], top: int) -> Any:
        given = function(query, rows, top)
        given = given.tolist() if hasattr(given, "tolist") else given
        if not isinstance(given, list | tuple):
            return given
        return [item.tolist() if hasattr(item, "tolist") else item for item in given]

    plain.__name__ = getattr(function, "__name__", "nearest")
    return plain
