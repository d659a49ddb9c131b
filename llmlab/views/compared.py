"""Two recordings side by side, as numbers: what was counted, what was measured, and where they part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any

import numpy as np

from llmlab.errors import InvalidParameter
from llmlab.trace.drafts import summary
from llmlab.trace.requests import Moments, cached_tokens, moments, num_prompt
from llmlab.trace.trace import Trace
from llmlab.views.choose import choose_request
from llmlab.views.phrases import count

Source = Trace | tuple[Trace, str]
NOT_SETTINGS = frozenset({"t_ns", "wall_time", "versions"})
MISSING = "not recorded"


@dataclass(frozen=True)
class Side:
    """One of the two: a trace, or one request of it (``only``)."""

    label: str
    trace: Trace
    only: str | None = None

    @cached_property
    def ids(self) -> list[str]:
        """Its requests in the order in which they appear."""
        return [self.only] if self.only is not None else self.trace.index.request_ids

    @cached_property
    def lives(self) -> dict[str, Moments]:
        """The moments of each request."""
        return dict(zip(self.trace.index.request_ids, moments(self.trace.index), strict=True))

    @cached_property
    def cached(self) -> dict[str, int]:
        """Prompt tokens each request had from the prefix cache."""
        return cached_tokens(self.trace.index)

    @cached_property
    def outputs(self) -> dict[str, dict[int, int]]:
        """Output tokens of each request: place in the output -> token id. The record may lack the first ones."""
        found: dict[str, dict[int, int]] = {i: {} for i in self.ids}
        prompts = {i: self.num_prompt(i) for i in self.ids}
        for token in self.trace.index.tokens:
            if token.request_id in found:
                found[token.request_id][token.position - prompts[token.request_id]] = token.token_id
        return found

    def num_prompt(self, request_id: str) -> int:
        """Tokens of its prompt."""
        return num_prompt(self.trace.index, request_id)

    @cached_property
    def row_mask(self) -> np.ndarray:
        """Which of the index's rows belong to its requests."""
        rows, index = self.trace.index.rows, self.trace.index
        return np.isin(rows.request, [index.code[i] for i in self.ids if i in index.code])

    @cached_property
    def step_places(self) -> np.ndarray:
        """Places in ``index.steps`` of the steps it is about: all, or those its request took part in."""
        if self.only is None:
            return np.arange(len(self.trace.index.steps))
        return np.unique(self.trace.index.rows.step[self.row_mask])


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of both sides; ``None``: not there. ``is_time``: measured, so it differs between two equal runs."""

    scope: str
    name: str
    unit: str
    a: Any
    b: Any
    is_time: bool = False

    @property
    def ratio(self) -> float | None:
        """``b / a``, where both are numbers and ``a`` is not 0."""
        if not (_is_number(self.a) and _is_number(self.b)) or self.a == 0:
            return None
        return self.b / self.a


@dataclass(frozen=True, slots=True)
class Pair:
    """Two requests of one place in the order; an id is ``None`` where a side has no further one."""

    number: int
    a: str | None
    b: str | None
    tokens: str
    prompt: str
    times: tuple[Metric, ...]

    @property
    def name(self) -> str:
        """Both ids, or one when they are the same."""
        return str(self.a) if self.a == self.b else f"{self.a or 'none'} / {self.b or 'none'}"


def side(source: Source, label: str) -> Side:
    """A trace, or ``(trace, request id)``. Raises ``InvalidParameter`` and ``UnknownRequest``."""
    if isinstance(source, Trace):
        return Side(label, source)
    if isinstance(source, tuple) and len(source) == 2 and isinstance(source[0], Trace):
        return Side(label, source[0], choose_request(*source))
    raise InvalidParameter(f"{label} is a {type(source).__name__}: give a Trace, or (trace, request id)")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


# -- counts --------------------------------------------------------------------------------------------------


def counts(a: Side, b: Side) -> list[Metric]:
    """What was counted on both sides; what neither side has is left out."""
    both = [_counted(each) for each in (a, b)]
    names = {name: unit for each in both for name, (unit, _) in each.items()}
    found = [Metric("counts", n, unit, *(each.get(n, ("", None))[1] for each in both)) for n, unit in names.items()]
    return [metric for metric in found if metric.a is not None or metric.b is not None]


def _counted(side: Side) -> dict[str, tuple[str, float | int | None]]:
    index, rows, mask = side.trace.index, side.trace.index.rows, side.row_mask
    steps = [index.steps[i] for i in side.step_places.tolist()]
    sizes = [len(step.rows) for step in steps]
    computed, output = int(rows.num_tokens[mask].sum()), sum(len(side.outputs.get(i, ())) for i in side.ids)
    preempted = sum(d.action == "preempted" and d.request_id in set(side.ids) for d in index.decisions)
    has_steps = bool(steps)
    return {
        "requests": ("requests", len(side.ids)),
        "prompt tokens": ("tokens", sum(map(side.num_prompt, side.ids))),
        "cached tokens": ("tokens", sum(side.cached.get(i, 0) for i in side.ids)),
        "computed tokens": ("tokens", computed if has_steps else None),
        "recomputed tokens": ("tokens", int(rows.recomputed[mask].sum()) if has_steps else None),
        "preemptions": ("times", preempted if has_steps else None),
        "output tokens": ("tokens", output),
        "steps": ("steps", len(steps) if has_steps else None),
        "computed tokens per step": ("tokens", computed / len(steps) if has_steps else None),
        "output tokens per step": ("tokens", output / len(steps) if has_steps else None),
        "mean batch size": ("requests", sum(sizes) / len(sizes) if sizes else None),
        "largest batch": ("requests", max(sizes, default=None)),
        "blocks used at most": ("blocks", max((step.used for step in steps), default=None)),
        "mean acceptance length": ("tokens", _acceptance(side)),
    }


def _acceptance(side: Side) -> float | None:
    """Output tokens per verification of a draft; ``None`` where nothing was drafted."""
    rounds = [r for r in side.trace.index.drafts if r.request_id in set(side.ids)]
    if not rounds:
        return None
    if side.only is None:
        return float(summary(side.trace.index)["mean_acceptance_length"])
    return sum(r.num_accepted + (r.token_id >= 0) for r in rounds) / len(rounds)


# -- settings ------------------------------------------------------------------------------------------------


def settings(a: Side, b: Side) -> list[Metric]:
    """Engine settings that differ."""
    one, other = (_settings(each) for each in (a, b))
    names = dict.fromkeys([*one, *other])
    found = (Metric("settings", n, "", one.get(n, MISSING), other.get(n, MISSING)) for n in names)
    return [metric for metric in found if metric.a != metric.b]


def _settings(side: Side) -> dict[str, Any]:
    info = side.trace.info
    if info is None:
        return {}
    plain = {name: value for name, value in asdict(info).items() if name not in NOT_SETTINGS}
    return plain | {f"version of {name}": value for name, value in info.versions.items()}


def params(a: Side, b: Side) -> Iterator[Metric]:
    """Parameters that differ between requests of one place in the order."""
    for i, j in zip(a.ids, b.ids, strict=False):
        one, other = (_params(side, request_id) for side, request_id in ((a, i), (b, j)))
        for name in dict.fromkeys([*one, *other]):
            if one.get(name, MISSING) != other.get(name, MISSING):
                scope = i if i == j else f"{i} / {j}"
                yield Metric(scope, f"param {name}", "", one.get(name, MISSING), other.get(name, MISSING))


def _params(side: Side, request_id: str) -> dict[str, Any]:
    submitted = side.trace.index.submitted.get(request_id)
    return dict(submitted.params) if submitted else {}


# -- requests ------------------------------------------------------------------------------------------------


def pairs(a: Side, b: Side) -> list[Pair]:
    """The requests of both sides, matched by their order."""
    return [_pair(a, b, number, i, j) for number, (i, j) in enumerate(zip_longest(a.ids, b.ids), 1)]


def _pair(a: Side, b: Side, number: int, i: str | None, j: str | None) -> Pair:
    name = str(i) if i == j else f"{i or 'none'} / {j or 'none'}"
    one, other = (_times(side, each) for side, each in ((a, i), (b, j)))
    times = tuple(Metric(name, key, "ms", one.get(key), other.get(key), True) for key in ("TTFT", "ITL", "e2e"))
    if i is None or j is None:
        there = a.label if j is None else b.label
        return Pair(number, i, j, f"only {there} has this request", "", times)
    return Pair(number, i, j, _first_difference(a, b, i, j), _prompt_difference(a, b, i, j), times)


def _times(side: Side, request_id: str | None) -> dict[str, float]:
    life = side.lives.get(request_id) if request_id is not None else None
    if life is None:
        return {}
    spans = {"TTFT": (life.submitted, life.first_token), "e2e": (life.submitted, life.finished)}
    found = {name: (end - start) / 1e6 for name, (start, end) in spans.items() if None not in (start, end)}
    return found | ({"ITL": life.itl_ms} if life.num_output > 1 else {})


def _first_difference(a: Side, b: Side, i: str, j: str) -> str:
    one, other = a.outputs[i], b.outputs[j]
    if not one and not other:
        return "no output tokens on either side"
    both = sorted(one.keys() & other.keys())
    for place in both:
        if one[place] != other[place]:
            return f"first difference at output token {place}: {one[place]} and {other[place]}"
    if len(one) != len(other):
        return f"same {count(len(both), 'token')}, then one ends: {len(one)} and {len(other)}"
    return f"same tokens ({len(one)})"


def _prompt_difference(a: Side, b: Side, i: str, j: str) -> str:
    found = [side.trace.index.submitted.get(each) for side, each in ((a, i), (b, j))]
    if None in found:
        return "prompt not recorded on both sides"
    one, other = (submitted.prompt_token_ids for submitted in found)
    if one == other:
        return ""
    same = next((n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))
    return f"prompts ({len(one)}, {len(other)}) differ from position {same} on"
