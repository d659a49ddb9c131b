"""From a model's name to a trained head in a folder."""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch

from llmlab.engine.speculative.head import TrainedHead
from llmlab.engine.speculative.head_files import output_rows, save_head, weights_sha256
from llmlab.engine.speculative.head_model import DraftHead, HeadConfig
from llmlab.errors import InvalidParameter
from llmlab.models.load import load
from llmlab.training.conversations import Conversation, converse
from llmlab.training.corpus import Sequence, digest, frequent_tokens, from_conversations, from_topics
from llmlab.training.features import Seen, look
from llmlab.training.instructions import instructions
from llmlab.training.loop import Schedule, measure, num_batches, train
from llmlab.training.objective import Objective
from llmlab.training.trial import open_trial, tokens_per_round

if TYPE_CHECKING:
    from llmlab.models.load import LoadedModel

DTYPE = "bfloat16"
TRIAL_QUESTIONS = 32
TRIAL_TEMPERATURES = (0.0, 0.8)
CURVE_EVERY = 10


class Stages(Protocol):
    """Who is told how far the training is."""

    def __call__(self, name: str, total: int) -> Callable[[int], None]:
        """A new stage of ``total`` steps begins; returns what is told how many more are done."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that determines a head.

    ``conversations`` of at most ``max_tokens`` answer tokens, of which the first ``held_out`` are not trained on;
    ``topics`` stretches of documentation; sequences of at most ``length`` tokens; ``drafted`` token ids may be
    drafted.
    """

    model: str
    seed: int = 0
    conversations: int = 1344
    held_out: int = 96
    max_tokens: int = 192
    topics: int = 64
    length: int = 256
    drafted: int = 8192
    schedule: Schedule = field(default_factory=Schedule)

    def __post_init__(self) -> None:
        if not 0 < self.held_out < self.conversations:
            raise InvalidParameter(
                f"held_out={self.held_out} must be at least 1 and leave some of {self.conversations} conversations"
            )


@dataclass(frozen=True, slots=True)
class Material:
    """What the target said and thought: ``train`` and ``held_out`` sequences, and the ids to draft."""

    train: list[Seen]
    held_out: list[Seen]
    drafted: torch.Tensor
    data: list[dict[str, Any]]


def train_head(recipe: Recipe, folder: Path, stages: Stages, command: list[str] | None = None) -> dict[str, Any]:
    """Generate, look, train, measure and save; returns the card that is saved beside the weights.

    ``command`` is what the user typed after the program's name, to be kept in the card.

    Raises the errors of loading a model, and ``HeadMismatch`` for one that is not in a local folder.
    """
    questions = instructions(recipe.conversations, recipe.seed)
    target = load(recipe.model, device="cpu", dtype=DTYPE)
    identity = {"name": target.name, "weights_sha256": weights_sha256(target.path)}
    talks = _talk(recipe, questions, stages)
    material = prepare(recipe, target, talks, stages)
    head, report = fit(recipe, target, material, stages)
    card = {
        "command": command,
        "target": identity,
        "recipe": asdict(recipe),
        "data": material.data,
        **report,
        "made_with": _versions(),
    }
    save_head(folder, head, material.drafted, card)
    card["trial"] = try_out(target, folder, questions[: min(TRIAL_QUESTIONS, recipe.held_out)], stages)
    save_head(folder, head, material.drafted, card)
    return card


def _talk(recipe: Recipe, questions: list[str], stages: Stages) -> list[Conversation]:
    advance = stages("the model answers", len(questions))
    with open_trial(load(recipe.model, device="cpu", dtype=DTYPE), max_num_seqs=48) as lab:
        lab.engine.recorder.enabled = False
        return converse(lab, questions, max_tokens=recipe.max_tokens, seed=recipe.seed, progress=advance)


def prepare(recipe: Recipe, target: LoadedModel, talks: list[Conversation], stages: Stages) -> Material:
    """Look at all sequences with the target."""
    held_out = from_conversations(talks[: recipe.held_out], recipe.length)
    chats = from_conversations(talks[recipe.held_out :], recipe.length)
    topics = from_topics(target.tokenizer, recipe.length, recipe.topics)
    drafted = frequent_tokens([*chats, *topics], recipe.drafted, target.model.config.get_text_config().vocab_size)
    advance = stages("the model reads", len(chats) + len(topics) + len(held_out))
    return Material(
        look(target, [*chats, *topics], advance),
        look(target, held_out, advance),
        torch.tensor(drafted),
        [
            _described("conversations", chats),
            _described("pydoc_data.topics", topics),
            _described("held-out conversations", held_out),
        ],
    )


def _described(name: str, sequences: list[Sequence]) -> dict[str, Any]:
    tokens = sum(len(sequence.tokens) for sequence in sequences)
    return {"name": name, "sequences": len(sequences), "tokens": tokens, "sha256": digest(sequences)}


def fit(recipe: Recipe, target: LoadedModel, material: Material, stages: Stages) -> tuple[DraftHead, dict[str, Any]]:
    """A trained head, its learning curve and how it does on what it was not trained on."""
    torch.manual_seed(recipe.seed)
    head = DraftHead(HeadConfig.for_target(target.model.config))
    embedding = target.model.get_input_embeddings().weight.detach()
    objective = Objective(embedding, output_rows(target.model, material.drafted))
    advance = stages("the head learns", num_batches(material.train, recipe.schedule, recipe.seed))
    curve: list[dict[str, Any]] = []

    def note(number: int, losses: list[float]) -> None:
        advance(1)
        if number % CURVE_EVERY == 0:
            curve.append({"batch": number, "loss": [round(loss, 3) for loss in losses]})

    train(head, objective, material.train, recipe.schedule, recipe.seed, note)
    return head, {"curve": curve, "held_out": measure(head, objective, material.held_out)}


def try_out(target: LoadedModel, folder: Path, questions: list[str], stages: Stages) -> list[dict[str, Any]]:
    """Tokens per round of the saved head, at every temperature of the trial. Replaces the target's modules."""
    advance = stages("the head drafts", len(TRIAL_TEMPERATURES))
    results = []
    with open_trial(target, TrainedHead.load(target, folder)) as lab:
        for temperature in TRIAL_TEMPERATURES:
            results.append(tokens_per_round(lab, questions, temperature))
            advance(1)
    return results


def _versions() -> dict[str, str]:
    import transformers

    return {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__}
