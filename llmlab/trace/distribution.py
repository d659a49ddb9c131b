"""How output tokens were chosen: the distributions the sampler went through, as they were recorded."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.trace.events import Captured

STAGES = ("raw", "penalties", "constraint", "temperature", "top-k", "top-p", "min-p", "final")
"""The stages in the order in which they are applied; label ``i`` along dimension ``stage`` is ``STAGES[i]``."""
KIND = "distribution_"
DIMS: Mapping[str, tuple[str, ...]] = {
    "distribution_token": ("position",),
    "distribution_uniform": ("position",),
    "distribution_ids": ("position", "candidate"),
    "distribution_rank": ("position", "candidate"),
    "distribution_below": ("position", "candidate"),
    "distribution_left": ("position", "candidate"),
    "distribution_possible": ("position", "stage"),
    "distribution_entropy": ("position", "stage"),
    "distribution_prob": ("position", "stage", "candidate"),
}
COLUMNS: Mapping[str, str] = {
    "position": "position of the token that was chosen (0: first prompt token)",
    "stage": "what had been applied: raw is the model's own distribution, final what the token was drawn from",
    "token_id": "a candidate",
    "rank": "its rank in the raw distribution (0: likeliest)",
    "probability": "its probability after this stage",
    "excluded": "whether this stage, or one before it, made the candidate impossible",
    "below": "probability of all tokens with a lower id, in the final distribution",
    "possible": "tokens of the whole vocabulary still possible after this stage",
    "entropy_nats": "entropy of the stage's whole distribution (nats)",
    "uniform": "the number in [0, 1) drawn, NaN where none was",
    "chosen": "whether it is the token that was chosen",
}


@dataclass(frozen=True, slots=True, eq=False)
class RecordedChoice:
    """How one token was chosen, over ``S`` stages and ``C`` candidates, likeliest by the model first.

    ``ids``, ``rank`` (in the raw distribution, 0: likeliest), ``below`` (final mass of all lower ids) and ``left`` (1 +
    place in :data:`STAGES` of the stage that made it impossible, 0: none did) are ``(C,)``; ``prob`` is ``(S, C)``;
    ``possible`` (tokens not excluded) and ``entropy`` (nats), both of the whole vocabulary, are ``(S,)``. ``uniform``
    is NaN where nothing was drawn.
    """

    position: int
    step: int
    token_id: int
    uniform: float
    stages: tuple[str, ...]
    ids: np.ndarray
    rank: np.ndarray
    below: np.ndarray
    left: np.ndarray
    prob: np.ndarray
    possible: np.ndarray
    entropy: np.ndarray

    @property
    def chosen(self) -> int:
        """Place of the chosen token among the candidates."""
        return int(np.flatnonzero(self.ids == self.token_id)[0])

    def left_at(self, candidate: int) -> str | None:
        """The stage that made a candidate impossible, ``None`` if it stayed possible to the end."""
        return STAGES[self.left[candidate] - 1] if self.left[candidate] else None

    @property
    def excluded(self) -> np.ndarray:
        """``(S, C)``: whether a stage, or one before it, made a candidate impossible."""
        reached = 1 + np.array([STAGES.index(name) for name in self.stages])
        return (self.left > 0)[None] & (self.left[None] <= reached[:, None])


@dataclass(frozen=True, slots=True)
class Distribution:
    """The recorded choices of one request, in the order of their positions."""

    choices: tuple[RecordedChoice, ...]

    def at(self, position: int) -> RecordedChoice | None:
        """How the token at ``position`` was chosen, ``None`` where that was not recorded."""
        return next((choice for choice in self.choices if choice.position == position), None)

    def frame(self) -> pd.DataFrame:
        """One row per position, stage and candidate; ``attrs["columns"]`` says what the columns mean."""
        parts = [_frame(choice) for choice in self.choices]
        table = pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=list(COLUMNS))
        table.attrs["columns"] = dict(COLUMNS)
        return table


def _frame(choice: RecordedChoice) -> pd.DataFrame:
    num_stages, num_candidates = choice.prob.shape
    return pd.DataFrame(
        {
            "position": choice.position,
            "stage": np.repeat(np.array(choice.stages, dtype=object), num_candidates),
            "token_id": np.tile(choice.ids, num_stages),
            "rank": np.tile(choice.rank, num_stages),
            "probability": choice.prob.ravel(),
            "excluded": choice.excluded.ravel(),
            "below": np.tile(choice.below, num_stages),
            "possible": np.repeat(choice.possible, num_candidates),
            "entropy_nats": np.repeat(choice.entropy, num_candidates),
            "uniform": choice.uniform,
            "chosen": np.tile(choice.ids == choice.token_id, num_stages),
        }
    )


def recorded_choices(
    events: Iterable[Captured], arrays: Mapping[str, np.ndarray], position: int | None = None
) -> Iterator[RecordedChoice]:
    """The choices (or the one of the token at ``position``) that a request's events and arrays tell of completely."""
    pieces: dict[int, dict[str, Captured]] = {}
    for event in events:
        if event.kind.startswith(KIND) and event.array_id in arrays:
            for computed in event.positions if position is None else [p for p in event.positions if p == position - 1]:
                pieces.setdefault(computed, {})[event.kind] = event
    for computed, found in sorted(pieces.items()):
        if (choice := _read(computed, found, arrays)) is not None:
            yield choice


def _read(computed: int, found: Mapping[str, Captured], arrays: Mapping[str, np.ndarray]) -> RecordedChoice | None:
    """``None`` for what is incomplete (the budget ended within it) or does not fit together, as in a damaged file."""
    if any(kind not in found or found[kind].dims != dims for kind, dims in DIMS.items()):
        return None
    part = {kind: arrays[event.array_id][event.positions.index(computed)] for kind, event in found.items()}
    prob, ids = part["distribution_prob"], part["distribution_ids"]
    of_candidates = ("distribution_rank", "distribution_below", "distribution_left")
    sizes = {part[kind].shape for kind in of_candidates} | {(prob.shape[1],)}
    counts = {part[kind].shape for kind in ("distribution_possible", "distribution_entropy")}
    token_id, labels = int(part["distribution_token"]), found["distribution_prob"].labels
    if sizes != {ids.shape} or counts != {prob.shape[:1]} or token_id not in ids or not _are_stages(labels):
        return None
    if not all(left == 0 or left - 1 in labels for left in part["distribution_left"].tolist()):
        return None
    return RecordedChoice(
        computed + 1,
        found["distribution_prob"].step,
        token_id,
        float(part["distribution_uniform"]),
        tuple(STAGES[label] for label in labels),
        ids,
        part["distribution_rank"],
        part["distribution_below"].astype(np.float64),
        part["distribution_left"],
        prob.astype(np.float64),
        part["distribution_possible"],
        part["distribution_entropy"].astype(np.float64),
    )


def _are_stages(labels: Sequence[int]) -> bool:
    """Whether the labels are stages in their order, from the model's own distribution to the final one."""
    known = all(0 <= label < len(STAGES) for label in labels)
    return known and list(labels[:1]) == [0] and labels[-1] == len(STAGES) - 1 and list(labels) == sorted(set(labels))


def has_draw(choice: RecordedChoice) -> bool:
    """Whether a uniform number was drawn and recorded."""
    return not math.isnan(choice.uniform)
