"""Which token a picture of sampling is about, and what the trace has of how it was chosen."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmlab.errors import InvalidParameter
from llmlab.trace.distribution import KIND, RecordedChoice, recorded_choices
from llmlab.trace.events import Captured, Token
from llmlab.trace.trace import Trace
from llmlab.views.phrases import count

RULES = {"temperature": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}
PENALTIES = (
    ("repetition", "repetition_penalty"),
    ("presence", "presence_penalty"),
    ("frequency", "frequency_penalty"),
    ("min_tokens", "min_tokens"),
)
UNCHANGED = ("repetition 1",)
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Sampled:
    """Output token ``index`` of ``count`` of a request, with its recorded stages, or with its likeliest tokens only.

    ``is_whole``: ``choice`` has the sampler's stages; else it has one stage, of what ``logprobs=`` asked for.
    """

    request_id: str
    index: int
    count: int
    token: Token
    params: Mapping[str, Any]
    choice: RecordedChoice
    is_whole: bool

    @property
    def is_greedy(self) -> bool:
        """Whether the largest was taken, without a draw."""
        temperature = self.params.get("temperature")
        if isinstance(temperature, int | float):
            return temperature < GREEDY_BELOW
        return self.is_whole and math.isnan(self.choice.uniform) and int(self.choice.possible[-1]) == 1

    @property
    def key(self) -> dict[str, int | str]:
        """What the shared selection calls it."""
        return {"request": self.request_id, "step": self.token.step, "position": self.token.position}

    def setting(self, stage: str) -> str:
        """What the request asked of a stage: ``20`` for top-k; empty where there is nothing to say."""
        if stage == "penalties":
            parts = [f"{word} {_number(value)}" for word, name in PENALTIES if (value := self.params.get(name))]
            parts = [part for part in parts if part not in UNCHANGED]
            biases = self.params.get("logit_bias")
            return ", ".join(parts + ([count(len(biases), "bias")] if isinstance(biases, dict) and biases else []))
        return _number(self.params.get(RULES.get(stage, "")))

    def rule(self, stage: str) -> str:
        """The stage with its setting: ``top-k 20``."""
        return f"{stage} {self.setting(stage)}".rstrip()


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else ""


def find(trace: Trace, request_id: str, index: int | None) -> Sampled | None:
    """The output token asked for: by default the last one whose choice was recorded, else the last one.

    ``None`` when the trace has nothing of how it was chosen. Raises ``InvalidParameter`` for an index that the output
    does not have.
    """
    tokens = [token for token in trace.index.tokens if token.request_id == request_id]
    if not tokens:
        return None
    events = [event for event in trace.index.captured if event.request_id == request_id and event.kind.startswith(KIND)]
    at = _default(tokens, events, trace) if index is None else _index(index, len(tokens))
    token, submitted = tokens[at], trace.index.submitted.get(request_id)
    choice = next(recorded_choices(events, trace.arrays, token.position), None)
    params = submitted.params if submitted is not None else {}
    if choice is not None:
        return Sampled(request_id, at, len(tokens), token, params, choice, True)
    if not token.top:
        return None
    return Sampled(request_id, at, len(tokens), token, params, _from_logprobs(token), False)


def _default(tokens: list[Token], events: list[Captured], trace: Trace) -> int:
    held = {p + 1 for event in events if event.array_id in trace.arrays for p in event.positions}
    return next((i for i in reversed(range(len(tokens))) if tokens[i].position in held), len(tokens) - 1)


def _index(index: int, count: int) -> int:
    if type(index) is not int or not -count <= index < count:
        raise InvalidParameter(
            f"index={index!r} is no output token: this request has 0 to {count - 1}, or -1 for the last"
        )
    return index % count


def _from_logprobs(token: Token) -> RecordedChoice:
    """One stage, of the likeliest tokens and the chosen one; what was not recorded is -1 or NaN."""
    pairs = dict(token.top)
    ids = [*pairs] if token.token_id in pairs else [*pairs, token.token_id]
    logprobs = [pairs.get(i, token.logprob) for i in ids]
    ranks = [place if i in pairs else -1 for place, i in enumerate(ids)]
    nothing = np.full(len(ids), np.nan)
    return RecordedChoice(
        token.position,
        token.step,
        token.token_id,
        math.nan,
        ("raw",),
        np.array(ids),
        np.array(ranks),
        nothing,
        np.zeros(len(ids), dtype=np.int64),
        np.exp(np.array(logprobs, dtype=np.float64))[None],
        np.array([-1]),
        np.array([math.nan]),
    )
