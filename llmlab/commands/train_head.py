"""``llmlab train-head``: teach a draft head to foresee what a model will say."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from llmlab.commands.options import Model, Threads
from llmlab.commands.terminal import stderr_console, stdout_console
from llmlab.models.catalogue import DEFAULT_MODEL


def train_head(
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Gets head.safetensors and head.json.")] = Path("head"),
    model: Model = DEFAULT_MODEL,
    seed: Annotated[int, typer.Option(help="Of the questions, the answers, the first weights and the order.")] = 0,
    conversations: Annotated[int, typer.Option(min=2, help="Answers the model writes to learn from.")] = 1344,
    held_out: Annotated[int, typer.Option(min=1, help="Of these, how many only serve to measure.")] = 96,
    topics: Annotated[int, typer.Option(min=0, help="Stretches of Python's built-in help to learn from too.")] = 64,
    epochs: Annotated[int, typer.Option(min=1, help="How often every sequence is learned from.")] = 2,
    threads: Threads = None,
) -> None:
    """Train a draft head for a model, on text the model writes itself. On the CPU; takes half an hour or more.

    The same seed gives the same head on the same machine and versions; another CPU rounds differently.
    """
    import torch

    from llmlab.models.hardware import default_threads
    from llmlab.training.loop import Schedule
    from llmlab.training.pipeline import Recipe, train_head

    recipe = Recipe(
        model=model, seed=seed, conversations=conversations, held_out=held_out, topics=topics,
        schedule=Schedule(epochs=epochs),
    )  # fmt: skip
    torch.set_num_threads(threads or default_threads())
    with _progress() as progress:
        card = train_head(recipe, out, lambda name, total: _stage(progress, name, total), sys.argv[1:])
    console = stdout_console()
    for trial in card["trial"]:
        console.print(f"temperature {trial['temperature']}: {trial['tokens_per_round']} tokens per round")
    console.print(f"written to {out}")


def _progress():
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=stderr_console(),
    )


def _stage(progress, name: str, total: int) -> Callable[[int], None]:
    task = progress.add_task(name, total=total)
    return lambda done: progress.advance(task, done)
