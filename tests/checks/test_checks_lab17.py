"""Lab 17: the right answers pass, the stubs and the usual wrong answers get the message meant for them."""

from __future__ import annotations

import pytest

from llmlab.checks import check
from llmlab.checks.lab17 import BUBBLE_CASES, EXPERT_CASES, SUM_CASES, empty_share, sum_bytes, touched
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import bubble, tensor_parallel_bytes


def test_the_right_answers_pass():
    assert check.lab17.q1(sum_bytes)
    assert check.lab17.q2(empty_share)
    assert check.lab17.q2(lambda stages, parts: 1 - parts / (parts + stages - 1))
    assert check.lab17.q3(touched)
    assert check.lab17.q3(lambda experts, chosen, tokens: experts - experts * ((experts - chosen) / experts) ** tokens)


def test_the_stubs_do_not_pass():
    for question in (check.lab17.q1, check.lab17.q2, check.lab17.q3):
        assert "replace the ..." in repr(question(lambda *arguments: ...))
        assert "give the function itself" in repr(question(0.5))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda layers, width, size, tokens, ranks: layers * width * size * tokens, "a layer has two sums"),
        (lambda layers, width, size, tokens, ranks: 2 * layers * width * size, "for one token"),
        (lambda layers, width, size, tokens, ranks: 2 * layers * width * size * tokens // ranks, "a whole vector"),
        (lambda layers, width, size, tokens, ranks: 2 * layers * width * tokens, "has `size` bytes"),
        (lambda layers, width, size, tokens, ranks: 2 * layers * width * size * tokens * ranks, "all processes"),
    ],
)
def test_sums_wrongly_counted(wrong, said):
    assert said in repr(check.lab17.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda stages, parts: parts / (parts + stages - 1), "the share in use"),
        (lambda stages, parts: (stages - 1) / parts, "with the busy ones"),
        (lambda stages, parts: (stages - 1) / stages, "for one micro-batch"),
        (lambda stages, parts: (stages - 1) / (parts + stages), "not one later"),
    ],
)
def test_bubbles_wrongly_counted(wrong, said):
    assert said in repr(check.lab17.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda experts, chosen, tokens: min(experts, chosen * tokens), "read once for all of them"),
        (lambda experts, chosen, tokens: chosen, "that is one token"),
        (lambda experts, chosen, tokens: experts, "only a large batch"),
        (lambda experts, chosen, tokens: experts * (1 - chosen / experts) ** tokens, "nobody chose"),
        (lambda experts, chosen, tokens: experts * (1 - (1 - 1 / experts) ** tokens), "it chooses several"),
    ],
)
def test_experts_wrongly_counted(wrong, said):
    assert said in repr(check.lab17.q3(wrong))


def test_an_unusual_answer_is_shown_with_the_case():
    assert "stages=2, parts=1" in repr(check.lab17.q2(lambda stages, parts: 7.0))


def test_the_checks_agree_with_the_planner():
    shape = ModelShape.of("SmolLM2-135M")
    for layers, width, size, tokens, ranks in SUM_CASES:
        if (layers, width) == (shape.num_layers, shape.hidden_size):
            found = tensor_parallel_bytes(shape, tokens, ranks, {4: "fp32", 2: "bf16"}[size])
            assert found == sum_bytes(layers, width, size, tokens, ranks)
    assert [bubble(*case) for case in BUBBLE_CASES] == pytest.approx([empty_share(*case) for case in BUBBLE_CASES])
    mlp = ModelShape.of("Mixtral-8x7B").layers[0].mlp
    for experts, chosen, tokens in EXPERT_CASES:
        if (experts, chosen) == (mlp.num_experts, mlp.top_k):
            assert mlp.experts_touched(tokens) == pytest.approx(touched(experts, chosen, tokens))
