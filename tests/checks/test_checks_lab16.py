"""Lab 16's checks: right answers pass, and the usual wrong answers get the message meant for them."""

from __future__ import annotations

from math import ceil

import pytest
import torch

import llmlab
from llmlab.checks import check
from llmlab.checks.lab16 import BYTE_CASES, integer_bytes, kv_bytes, requests_that_fit
from llmlab.models.quantized_format import Quantization
from llmlab.models.quantized_weight import round_weight
from llmlab.planner.model_shape import ModelShape


def test_the_right_answers_pass():
    assert check.lab16.q1(kv_bytes)
    assert check.lab16.q2(requests_that_fit)
    assert check.lab16.q3(integer_bytes)


def test_the_stubs_do_not_pass():
    assert "replace the ..." in repr(check.lab16.q1(lambda layers, heads, kv_heads, dim, tokens, size: ...))
    assert "replace the ..." in repr(check.lab16.q2(lambda memory, weights, kv, block, tokens: ...))
    assert "replace the ..." in repr(check.lab16.q3(lambda rows, columns, bits, group: ...))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda layers, heads, kv_heads, dim, tokens, size: 2 * layers * heads * dim * tokens * size, "query heads"),
        (lambda layers, heads, kv_heads, dim, tokens, size: layers * kv_heads * dim * tokens * size, "keys alone"),
        (lambda layers, heads, kv_heads, dim, tokens, size: 2 * kv_heads * dim * tokens * size, "one layer"),
        (lambda layers, heads, kv_heads, dim, tokens, size: 2 * layers * kv_heads * dim * tokens, "size bytes"),
    ],
)
def test_k_v_wrongly_counted(wrong, said):
    assert said in repr(check.lab16.q1(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * tokens), "whole blocks"),
        (lambda memory, weights, kv, block, tokens: memory // (kv * block) // ceil(tokens / block), "subtract them"),
        (
            lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * block) // (tokens // block),
            "round up",
        ),
        (
            lambda memory, weights, kv, block, tokens: ceil((memory - weights) / (kv * block) / ceil(tokens / block)),
            "round down",
        ),
        (lambda memory, weights, kv, block, tokens: (memory - weights) // (kv * block), "takes several"),
    ],
)
def test_requests_wrongly_counted(wrong, said):
    assert said in repr(check.lab16.q2(wrong))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda rows, columns, bits, group: rows * columns * bits // 8, "codes alone"),
        (
            lambda rows, columns, bits, group: rows * columns * bits // 8 + rows * (columns // group) * 2,
            "a zero beside",
        ),
        (lambda rows, columns, bits, group: rows * columns * bits // 8 + columns // group * 4, "each row"),
        (
            lambda rows, columns, bits, group: rows * columns * bits + rows * (columns // group) * 32,
            "eight make a byte",
        ),
        (lambda rows, columns, bits, group: rows * columns * bits // 8 + rows * 4, "each group of it"),
    ],
)
def test_bytes_wrongly_counted(wrong, said):
    assert said in repr(check.lab16.q3(wrong))


def test_k_v_of_a_known_model_is_what_the_planner_says():
    shape = ModelShape.of("Llama-3-8B")
    attention = shape.layers[0].attention
    heads = (attention.num_heads, attention.num_kv_heads, attention.key_dim)
    assert kv_bytes(shape.num_layers, *heads, 8192, 2) == shape.kv_bytes(8192, "bf16")


@pytest.mark.parametrize("tokens", [16, 17, 120])
def test_the_engine_opens_as_many_requests_as_the_check_says(tokens):
    limits = {"num_blocks": 50, "max_num_seqs": 64, "max_num_batched_tokens": 10_000, "prefix_cache": "off"}
    with llmlab.open("mock", background=False, **limits) as lab:
        for _ in range(60):
            lab.submit([40] * tokens, max_tokens=1)
        lab.engine.step()
        assert lab.trace.steps.num_rows.iloc[0] == requests_that_fit(50 * 16, 0, 1, 16, tokens)


@pytest.mark.parametrize(("rows", "columns", "bits", "group"), [case for case in BYTE_CASES if case[2:] == (4, 32)])
def test_rounded_weights_take_the_bytes_that_the_check_says(rows, columns, bits, group):
    assert round_weight(torch.ones(rows, columns), Quantization("int4")).nbytes == integer_bytes(
        rows, columns, bits, group
    )
