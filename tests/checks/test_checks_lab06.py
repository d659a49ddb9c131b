"""Lab 06: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest
import torch

from llmlab.checks import check
from llmlab.checks.lab06 import HEAD_CASES, SIGHT_CASES, kv_head, score_bytes, visible
from llmlab.engine.attention import Variant, attend_prefill


def test_the_right_answers_pass():
    assert check.lab06.q1(kv_head)
    assert check.lab06.q2(visible)
    assert check.lab06.q2(lambda position, window: range(max(0, position - window + 1) if window else 0, position + 1))
    assert check.lab06.q3(score_bytes)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab06.q1(lambda head, num_heads, num_kv_heads: ...))
    assert "replace the ..." in repr(check.lab06.q2(lambda position, window: ...))
    assert "replace the ..." in repr(check.lab06.q3(lambda tokens, heads, tile: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda h, n, kv: h % kv, "in turn"),
        (lambda h, n, kv: h // kv, "how many share one"),
        (lambda h, n, kv: h, "without sharing"),
        (lambda h, n, kv: h / (n // kv), "use //"),
    ],
)
def test_heads_wrongly_grouped(wrong, said):
    assert said in repr(check.lab06.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda p, w: list(range(max(0, p - w) if w else 0, p + 1)), "one too many"),
        (lambda p, w: list(range(max(0, p - w + 1) if w else 0, p)), "sees itself too"),
        (lambda p, w: list(range(p - w + 1 if w else 0, p + 1)), "before 0"),
        (lambda p, w: list(range(p + 1)), "without a window"),
        (lambda p, w: list(range(max(0, p - w + 1), p + 1)), "a window of 0"),
    ],
)
def test_sight_wrongly_bounded(wrong, said):
    assert said in repr(check.lab06.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda n, h, t: h * n * n * 4, "the whole matrix"),
        (lambda n, h, t: h * t * n * 4, "shorter than a tile"),
        (lambda n, h, t: h * min(t, n) ** 2 * 4, "all keys"),
        (lambda n, h, t: min(t, n) * n * 4, "every query head"),
        (lambda n, h, t: h * min(t, n) * n, "4 bytes"),
    ],
)
def test_scores_wrongly_counted(wrong, said):
    assert said in repr(check.lab06.q3(wrong))


@pytest.mark.parametrize(("head", "num_heads", "num_kv_heads"), HEAD_CASES)
def test_the_engine_shares_heads_as_the_check_says(head, num_heads, num_kv_heads):
    query = torch.zeros(num_kv_heads, num_heads // num_kv_heads, 1, 4)
    values = torch.arange(num_kv_heads).float()[:, None, None].expand(num_kv_heads, 1, 4)
    output = attend_prefill(query, torch.zeros_like(values), values, Variant(scale=1.0))
    assert output.view(num_heads, 4)[head, 0] == kv_head(head, num_heads, num_kv_heads)


@pytest.mark.parametrize(("position", "window"), SIGHT_CASES)
def test_the_engine_sees_what_the_check_calls_visible(position, window):
    values = torch.eye(10)[None]
    output = attend_prefill(torch.zeros(1, 1, 10, 4), torch.zeros(1, 10, 4), values, Variant(1.0, window))
    assert output[0, 0, position].nonzero().flatten().tolist() == visible(position, window)
