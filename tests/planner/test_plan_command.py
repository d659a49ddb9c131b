"""``llmlab plan``."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from llmlab.cli import app


def plan(*arguments: str):
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "120"})


def test_a_plan_as_tables():
    result = plan("Llama-3-70B", "--device", "h100", "--weights", "int4", "--kv", "bf16", "--context", "8192")
    assert result.exit_code == 0
    for words in (
        "70,553,706,496",
        "46.99",
        "9 requests of 8,192 tokens",
        "COMPUTED",
        "data sheet",
        "decode of 9 requests",
    ):
        assert words in result.stdout


def test_a_plan_as_json():
    told = json.loads(plan("Llama-3-8B", "--context", "2000", "--json").stdout)
    assert told["computed"]
    assert told["kv_bytes_per_request"] == 262_144_000
    assert [step["step"] for step in told["floors"]][:2] == ["prefill of 2,000 tokens", "decode of 1 request"]
    assert sum(told["bytes"].values()) == told["device_memory_bytes"] == 80e9


def test_what_does_not_fit_says_what_would():
    result = plan("Llama-3-70B")
    assert "the weights do not fit" in result.stdout
    assert "on 4 x H100 SXM: 54 requests" in result.stdout


def test_several_devices_communicate():
    told = json.loads(plan("Llama-3-70B", "--tensor-parallel", "4", "--json").stdout)
    assert told["num_devices"] == 4
    assert all(step["communication_ms"] > 0 for step in told["floors"])
    assert any("tensor parallel" in note for note in told["notes"])


def test_a_context_beyond_the_models_own_is_said():
    assert "8,192 tokens only" in plan("Llama-3-8B", "--context", "100000").stdout


def test_a_folder_of_an_unknown_family_is_said_to_be_a_guess(tmp_path):
    config = {"model_type": "novel", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    (tmp_path / "config.json").write_text(json.dumps(config | {"intermediate_size": 128, "vocab_size": 100}))
    result = plan(str(tmp_path))
    assert result.exit_code == 0
    assert "counted as Llama's" in result.stdout


def test_mistakes_end_with_a_named_error(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for arguments, status, words in (
        (["no-such-model"], 1, "Llama-3-8B"),
        ([str(tmp_path)], 1, "hidden_size"),
        (["Llama-3-8B", "--device", "h1000"], 2, "rtx-4090"),
        (["Llama-3-8B", "--weights", "int3"], 2, "int4"),
        (["Llama-3-8B", "--tensor-parallel", "5", "--context", "0"], 2, "context"),
        (["Llama-3-8B", "--tensor-parallel", "48"], 2, "heads"),
    ):
        result = plan(*arguments)
        assert result.exit_code == status, arguments
        assert words in result.stderr
