"""What :func:`~llmlab.views.handoff.handoff` tells of a request."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from llmlab.trace.handoffs import PREFILL_PROCESS, TRANSFER, elsewhere
from llmlab.trace.requests import cached_tokens, num_prompt
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.phrases import count

Stretch = tuple[int, int]


@dataclass(slots=True)
class Story:
    """One request, times in nanoseconds. ``there``: the prefill process worked on it; ``travel``: its K/V was sent;
    ``here``: steps of this process that computed its prompt; ``tokens``: when each token was chosen."""

    request_id: str
    num_prompt: int
    num_cached: int
    submitted: int
    there: list[Stretch] = field(default_factory=list)
    travel: list[Stretch] = field(default_factory=list)
    here: list[Stretch] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    computed_there: int = 0
    computed_here: int = 0
    nbytes: int = 0
    medium: str = ""

    @property
    def begun(self) -> int:
        """When its prompt was first worked on; the last moment that is known where it never was."""
        return min((begin for begin, _ in (*self.there, *self.travel, *self.here)), default=self.end)

    @property
    def end(self) -> int:
        """The last moment that is known of it."""
        ends = [end for _, end in (*self.there, *self.travel, *self.here)]
        return max([self.submitted, *ends, *self.tokens])

    @property
    def longest_gap(self) -> Stretch | None:
        """The two neighbouring tokens that were furthest apart; ``None`` below two tokens."""
        return max(pairwise(self.tokens), key=lambda pair: pair[1] - pair[0], default=None)

    def told(self) -> str:
        """Counts in words, no times."""
        parts = [f"{visible(self.request_id)}: {count(self.num_prompt, 'prompt token')}"]
        if self.num_cached:
            parts.append(f"{self.num_cached:,} from the prefix cache")
        if self.there:
            parts.append(f"{self.computed_there:,} computed there, {self.nbytes:,} bytes by {visible(self.medium)}")
        parts.append(f"{self.computed_here:,} computed here")
        return f"{', '.join(parts)}; {count(len(self.tokens), 'token')} out"

    def facts(self) -> dict[str, Any]:
        """A row of the view's table."""
        gap = self.longest_gap
        return {
            "request_id": self.request_id,
            "num_prompt_tokens": self.num_prompt,
            "num_cached_tokens": self.num_cached,
            "computed_there": self.computed_there,
            "computed_here": self.computed_here,
            "nbytes": self.nbytes,
            "medium": self.medium,
            "num_output_tokens": len(self.tokens),
            "prefill_ms": _ms(self.there) + _ms(self.here),
            "transfer_ms": _ms(self.travel),
            "ttft_ms": (self.tokens[0] - self.submitted) / 1e6 if self.tokens else np.nan,
            "longest_gap_ms": np.nan if gap is None else (gap[1] - gap[0]) / 1e6,
        }


def read_stories(trace: Trace, request_ids: Sequence[str] | None) -> list[Story]:
    """The requests, in order of submission. Raises ``UnknownRequest``."""
    index = trace.index
    ids = index.request_ids if request_ids is None else [trace.for_request(i).index.request_ids[0] for i in request_ids]
    cached, submitted = cached_tokens(index), index.submitted
    begins = {i: submitted[i].t_ns if i in submitted else index.start_ns for i in ids}
    stories = {i: Story(i, num_prompt(index, i), cached[i], begins[i]) for i in ids}
    _add_elsewhere(trace, stories)
    for step in index.steps:
        for row in step.rows:
            if row.is_prefill and (story := stories.get(row.request_id)):
                story.here.append((step.t_ns, step.sample_ns))
                story.computed_here += row.num_tokens
    for token in index.tokens:
        if story := stories.get(token.request_id):
            story.tokens.append(token.t_ns)
    return sorted(stories.values(), key=lambda story: story.submitted)


def _add_elsewhere(trace: Trace, stories: dict[str, Story]) -> None:
    parts = defaultdict(list, elsewhere(trace.index))
    for request_id, story in stories.items():
        story.there = [(a, b) for name, a, b in parts[request_id] if name == PREFILL_PROCESS]
        story.travel = [(a, b) for name, a, b in parts[request_id] if name == TRANSFER]
    for transfer in trace.index.transfers:
        story = stories.get(transfer.request_id)
        if story and transfer.action == "send":
            story.computed_there = transfer.num_tokens - story.num_cached
            story.nbytes += transfer.nbytes
            story.medium = transfer.medium


def _ms(stretches: Sequence[Stretch]) -> float:
    return sum(end - begin for begin, end in stretches) / 1e6
