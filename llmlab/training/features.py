"""What the target thinks at every position: the features a head starts from, and the distribution it aims at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from llmlab.training.corpus import Sequence

if TYPE_CHECKING:
    from llmlab.models.load import LoadedModel

BATCH = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """A sequence of ``n`` tokens as the target sees it.

    ``features`` ``(n, width)`` bfloat16 are its states after the final norm; ``log_mass`` ``(n,)`` float32 is the
    logarithm of the sum of the exponentials of all logits, which turns a logit into a log-probability (from ``first``).
    """

    tokens: torch.Tensor
    features: torch.Tensor
    log_mass: torch.Tensor
    first: int


@torch.inference_mode()
def look(loaded: LoadedModel, sequences: list[Sequence], progress: Callable[[int], None] | None = None) -> list[Seen]:
    """Run the target over all sequences, in batches of similar length; the order of ``sequences`` is kept."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i].tokens))
    seen: dict[int, Seen] = {}
    for at in range(0, len(order), BATCH):
        chosen = order[at : at + BATCH]
        seen |= zip(chosen, _look(loaded, [sequences[i] for i in chosen]), strict=True)
        if progress:
            progress(len(chosen))
    return [seen[i] for i in range(len(sequences))]


def _look(loaded: LoadedModel, sequences: list[Sequence]) -> list[Seen]:
    longest = max(len(sequence.tokens) for sequence in sequences)
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, sequence in zip(ids, sequences, strict=True):
        row[: len(sequence.tokens)] = torch.tensor(sequence.tokens)
    # padding comes last, where no token of a causal model looks
    states = loaded.model.get_decoder()(input_ids=ids.to(loaded.device), use_cache=False).last_hidden_state
    return [_seen(loaded, sequence, row) for sequence, row in zip(sequences, states, strict=True)]


def _seen(loaded: LoadedModel, sequence: Sequence, states: torch.Tensor) -> Seen:
    states = states[: len(sequence.tokens)]
    log_mass = torch.zeros(len(states))
    logits = loaded.model.get_output_embeddings()(states[sequence.first :])
    log_mass[sequence.first :] = logits.float().logsumexp(-1).cpu()
    features = states.to("cpu", torch.bfloat16).clone()
    return Seen(torch.tensor(sequence.tokens), features, log_mass, sequence.first)
