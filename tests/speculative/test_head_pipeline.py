"""`llmlab train-head` from questions to files, on a model that takes a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny_models import COMMON, random_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from typer.testing import CliRunner

import llmlab
from llmlab.commands.train_head import train_head as command
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.head import TrainedHead
from llmlab.engine.speculative.head_files import CARD, WEIGHTS, heads_folder, read_card
from llmlab.errors import InvalidParameter
from llmlab.models.load import load
from llmlab.training.loop import Schedule
from llmlab.training.pipeline import Recipe, train_head
from llmlab.training.trial import open_trial, tokens_per_round

MOST_BYTES = 12_000_000


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory) -> str:
    """A folder with a random model and a tokenizer of single bytes."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    random_model("llama", **COMMON | {"vocab_size": 256, "max_position_embeddings": 512}).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return str(folder)


def recipe(folder: str) -> Recipe:
    schedule = Schedule(epochs=2, batch_tokens=512)
    return Recipe(
        folder, 0, conversations=8, held_out=3, max_tokens=24, topics=3, length=96, drafted=60, schedule=schedule
    )


def train_one(folder: str, out: Path) -> tuple[dict, dict[str, list[int]]]:
    stages: dict[str, list[int]] = {}

    def stage(name: str, total: int):
        stages[name] = [total, 0]

        def advance(done: int) -> None:
            stages[name][1] += done

        return advance

    return train_head(recipe(folder), out, stage, ["train-head"]), stages


def test_the_same_seed_gives_the_same_head(tiny_folder, tmp_path):
    card, stages = train_one(tiny_folder, tmp_path / "a")
    assert all(total == done > 0 for total, done in stages.values())
    assert len(stages) == 4
    assert read_card(tmp_path / "a").items() >= json.loads(json.dumps(card)).items()
    again, _ = train_one(tiny_folder, tmp_path / "b")
    assert again["data"] == card["data"]
    assert (tmp_path / "a" / WEIGHTS).read_bytes() == (tmp_path / "b" / WEIGHTS).read_bytes()
    assert [part["name"] for part in card["data"]] == ["conversations", "pydoc_data.topics", "held-out conversations"]
    assert all(len(part["sha256"]) == 64 for part in card["data"])
    greedy = card["trial"][0]
    assert greedy["temperature"] == 0.0
    assert 1 <= greedy["tokens_per_round"] <= 5
    shares = greedy["accepted_by_position"]
    assert shares == sorted(shares, reverse=True)
    assert greedy["tokens_per_round"] == pytest.approx(1 + sum(shares), abs=0.01)


def test_the_command_writes_a_head(tiny_folder, tmp_path):
    import typer

    app = typer.Typer()
    app.command()(command)
    out = tmp_path / "head"
    arguments = ["--out", str(out), "--model", tiny_folder, "--conversations", "4", "--held-out", "1"]
    threads = str(torch.get_num_threads())
    result = CliRunner().invoke(app, [*arguments, "--topics", "1", "--epochs", "1", "--threads", threads])
    assert result.exit_code == 0, result.output
    assert "tokens per round" in result.output
    assert {file.name for file in out.iterdir()} == {WEIGHTS, CARD}


def test_a_recipe_needs_something_to_train_on():
    with pytest.raises(InvalidParameter, match="held_out=4"):
        Recipe("any", conversations=4, held_out=4)


# -- the head that comes with the default model -----------------------------------------------------------------


def test_shipped_heads_are_small_and_described():
    folders = [folder for folder in heads_folder().iterdir() if folder.is_dir()]
    assert folders
    for folder in folders:
        card = read_card(folder)
        assert (folder / WEIGHTS).stat().st_size < MOST_BYTES
        assert folder.name == card["target"]["name"]
        assert card["curve"][-1]["loss"][0] < card["curve"][0]["loss"][0]
        assert all(trial["tokens_per_round"] > 1 for trial in card["trial"])


@pytest.mark.model
def test_the_shipped_head_drafts_for_the_default_model():
    """Held to less than its card says, because another machine rounds differently."""
    target = load(llmlab.models.DEFAULT_MODEL, device="cpu", dtype="float32")
    questions = ["Name the planets in order from the sun.", "Why is sleep important?"]
    with open_trial(target, TrainedHead.load(target), prefix_cache=True) as lab:
        first = tokens_per_round(lab, questions, 0.0, max_tokens=48)
        again = tokens_per_round(lab, questions, 0.0, max_tokens=48)
    assert first["tokens_per_round"] > 1.3
    # the prompt now comes from the prefix cache, so its features are unknown
    assert again["tokens_per_round"] > 0.75 * first["tokens_per_round"]


@pytest.mark.model
def test_greedy_answers_are_the_same_with_the_shipped_head():
    question = "Give me three interesting facts about whales."
    settings = {"dtype": "float32", "background": False}
    with llmlab.open(**settings) as lab:
        expected = lab.ask(question, max_tokens=40).token_ids
    with llmlab.open(**settings, speculative=Speculation("head", adaptive=False)) as lab:
        assert lab.ask(question, max_tokens=40).token_ids == expected
        assert lab.trace.drafts.num_tokens.mean() > 1.1
