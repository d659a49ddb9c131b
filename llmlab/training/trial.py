"""How much a head saves: the engine drafts with it and verifies, on questions it was not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.proposer import Proposer
from llmlab.lab import Lab
from llmlab.trace.events import DraftRound

if TYPE_CHECKING:
    from llmlab.models.load import LoadedModel

K = 4
WHOLE = ("recovered", "bonus")
"""Outcomes of a draft that was verified to its end, or to its first mistake."""


def open_trial(
    loaded: LoadedModel, proposer: Proposer | None = None, max_num_seqs: int = 8, prefix_cache: bool = False
) -> Lab:
    """A lab on ``loaded``, whose modules are replaced by faster ones; drafts have :data:`K` tokens.

    Without a prefix cache the head sees every position, however often a prompt is asked.
    """
    speculation = None if proposer is None else Speculation(proposer, k=K, adaptive=False)
    engine = Engine(
        build_runner(loaded),
        loaded.tokenizer,
        eos_token_ids=loaded.eos_token_ids,
        config=SchedulerConfig(max_num_seqs=max_num_seqs),
        prefix_cache=prefix_cache,
        speculation=speculation,
    )
    return Lab(engine, loaded.tokenizer, loaded.name, loaded.path, loaded)


def tokens_per_round(lab: Lab, questions: list[str], temperature: float, max_tokens: int = 96) -> dict[str, Any]:
    """Mean number of tokens a round of drafting and verifying yields, and the share of rounds that accepted each
    position of the draft.

    Rounds whose end a stop cut off do not count, nor do shorter drafts at the token limit; without any round the
    figures are ``None``.
    """
    asked = {"temperature": temperature, "questions": len(questions)}
    before = len(lab.engine.recorder.snapshot())
    runs = [lab.submit(question, temperature=temperature, max_tokens=max_tokens) for question in questions]
    for run in runs:
        run.wait()
    events = [event for event in lab.engine.recorder.snapshot()[before:] if isinstance(event, DraftRound)]
    accepted = [event.num_accepted for event in events if event.num_drafted == K and event.outcome in WHOLE]
    if not accepted:
        return {**asked, "rounds": 0, "tokens_per_round": None, "accepted_by_position": None}
    share = [sum(number > place for number in accepted) / len(accepted) for place in range(K)]
    return {
        **asked,
        "rounds": len(accepted),
        "tokens_per_round": round(1 + sum(accepted) / len(accepted), 3),
        "accepted_by_position": [round(value, 3) for value in share],
    }
