"""The benchmark of quantization: its ratios, tables and JSON from figures made by hand; its parts on tiny models."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from tiny_models import COMMON, as_loaded, random_model

import llmlab
from llmlab.bench.linear_pass import passes_ms
from llmlab.bench.quality import fixed_text, perplexity, rounded_before, same_share, same_tokens
from llmlab.bench.quantize import (
    BATCHES,
    FormatFigures,
    QuantizationResult,
    measure_quantization,
    pass_table,
    quantization_object,
    quantization_table,
)
from llmlab.cli import app
from llmlab.engine.build import build_runner
from llmlab.errors import InvalidParameter
from llmlab.models.quantized_format import Quantization


def figures(name: str, answers: list[list[int]], step: float) -> FormatFigures:
    found = FormatFigures(name, weights=4_000_000, linear=1_000_000, perplexity=20.0, answers=answers)
    found.step_s = {batch: [step, 2 * step] for batch in BATCHES}
    found.ttft_s = [4 * step, 8 * step]
    return found


@pytest.fixture
def result() -> QuantizationResult:
    base = figures("bf16", [[1, 2, 3, 4], [5, 6]], 0.02)
    other = figures("int4", [[1, 2, 9, 4], [5, 6]], 0.01)
    return QuantizationResult({"bf16": base, "int4": other}, {1: {"bf16": 2.0, "int4, kernel": 1.0}}, "Q4_1")


def test_speeds_are_ratios_within_a_round(result):
    assert result.speed("int4", 1) == pytest.approx(2.0)
    assert result.ttft("int4") == pytest.approx(0.5)
    assert result.speed("bf16", 16) == result.ttft("bf16") == 1.0


def test_equal_tokens_are_counted_by_position_and_to_the_first_difference(result):
    assert result.same("int4") == pytest.approx(5 / 6)
    assert result.first_difference("int4") == 2.0
    assert same_share([[1, 2]], [[1, 2, 3, 4]]) == 0.5
    assert same_tokens([1, 2], [1, 2, 3]) == 2


def test_tables_and_json_say_what_was_measured(result):
    written = json.loads(json.dumps(quantization_object(result)))
    assert [row["format"] for row in written["formats"]] == ["bf16", "int4"]
    assert written["formats"][1]["speed_beside_bf16"] == {"1": 2.0, "4": 2.0, "16": 2.0}
    assert written["linear_pass_ms"] == {"1": {"bf16": 2.0, "int4, kernel": 1.0}}
    assert quantization_table(result).row_count == 2
    assert "met" in quantization_table(result).caption
    assert "not what four bits cost" in quantization_table(result).caption
    assert pass_table(result).row_count == 1


def test_a_file_that_held_four_bits_is_known():
    assert rounded_before("smollm2-135m") == "Q4_1"
    assert rounded_before("some/folder") == ""


def test_perplexity_is_that_of_the_probabilities():
    with llmlab.open("mock", background=False) as lab:
        ids = lab.tokenizer.encode("a text", add_special_tokens=False)
        run = lab.ask(ids, max_tokens=1, prompt_logprobs=0)
        expected = math.exp(-sum(value for value, _ in run.prompt_logprobs) / (len(ids) - 1))
        assert perplexity(lab, "a text") == pytest.approx(expected)
        assert perplexity(lab, "aaaaaaaa") != pytest.approx(expected)


def test_the_fixed_text_is_there():
    assert len(fixed_text().split()) > 1_200


def test_every_way_through_the_linear_layers_is_timed():
    model = random_model("llama", **(COMMON | {"intermediate_size": 64})).bfloat16()
    models = {}
    for name in ("bf16", "int8", "int4"):
        loaded = as_loaded(model)
        loaded.dtype = loaded.model.dtype
        quantization = None if name == "bf16" else Quantization(name)
        models[name] = build_runner(loaded, block_size=4, num_blocks=8, quantization=quantization).loaded_model
    times = passes_ms(models, rows=(1, 40), rounds=1)
    assert list(times) == [1, 40]
    for found in times.values():
        assert list(found) == ["bf16", "int8, kernel", "int8, expanded", "int4, kernel", "int4, expanded"]
        assert all(value > 0 for value in found.values())


def test_a_model_without_weights_is_refused():
    with pytest.raises(InvalidParameter, match="no weights"):
        measure_quantization(1, model="mock", quick=True)
    done = CliRunner().invoke(app, ["bench", "--quantize", "--model", "mock"])
    assert done.exit_code != 0
    assert "no weights" in done.output


@pytest.mark.parametrize("command", [["ask", "hi"], ["send", "hi"], ["serve"]])
def test_a_format_that_is_none_is_refused_by_every_command(command):
    done = CliRunner().invoke(app, [*command, "--model", "mock", "--quantize", "int3"])
    assert done.exit_code == 2
    assert "int8, int4" in done.output


def test_another_server_is_not_told_how_to_keep_its_weights():
    done = CliRunner().invoke(app, ["send", "hi", "--url", "http://127.0.0.1:9", "--quantize", "int4"])
    assert done.exit_code == 2
    assert "that server decides" in done.output
