"""From what a user says about speculation to the object that the engine calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.engine.runner import Runner
from llmlab.engine.speculative.adaptive import Adaptive, step_time_on
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.ngram import NGram
from llmlab.engine.speculative.proposer import Proposer
from llmlab.engine.speculative.speculator import Speculator
from llmlab.errors import InvalidParameter

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine


def make_speculator(speculation: Speculation, engine: Engine) -> Speculator:
    """The speculator of an engine. Raises ``InvalidParameter`` for a proposer that needs the target's weights: give
    those to :func:`with_proposer` first."""
    settings = with_proposer(speculation, engine.runner)
    if settings.proposer.needs_features and not hasattr(engine.runner, "keep_features"):
        raise InvalidParameter(
            f"{engine.runner.model!r} gives no hidden states, which {settings.proposer.name!r} needs"
        )
    if settings.proposer.needs_features:
        engine.runner.keep_features()
    engine.scheduler.drafts_first = True
    return Speculator(
        settings.proposer,
        k=settings.k,
        rule=settings.rule,
        adaptive=_adaptive(settings, engine.runner) if settings.adaptive else None,
        vocab_size=engine.capacity.vocab_size,
        journal=engine.journal,
    )


def _adaptive(settings: Speculation, runner: Runner) -> Adaptive:
    draft_cost = getattr(settings.proposer, "draft_cost", 0.0)
    return Adaptive(settings.k, draft_cost, step_time_on(runner.device))


def with_proposer(speculation: Speculation, runner: Runner, loaded: Any = None) -> Speculation:
    """The same settings with the proposer itself in place of its name.

    ``loaded`` is the target's :class:`~llmlab.models.load.LoadedModel`, ``None`` for the mock model.
    """
    if not isinstance(speculation.proposer, str):
        return speculation
    return replace(speculation, proposer=_make(speculation, runner, loaded), layers=None, model=None, head=None)


def _make(speculation: Speculation, runner: Runner, loaded: Any) -> Proposer:
    if speculation.proposer == "ngram":
        return NGram()
    if loaded is None:
        raise InvalidParameter(f"{runner.model!r} has no weights to draft with: use speculative='ngram'")
    if speculation.proposer == "early-exit":
        from llmlab.engine.speculative.early_exit import EarlyExit

        return EarlyExit(runner, speculation.layers)
    if speculation.proposer == "draft-model":
        from llmlab.engine.speculative.draft_model import load_draft_model

        return load_draft_model(speculation.model, loaded, runner)
    from llmlab.engine.speculative.head import TrainedHead

    return TrainedHead.load(loaded, None if speculation.head is None else Path(speculation.head))
