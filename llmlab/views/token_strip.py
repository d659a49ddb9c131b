"""A request as a strip of its tokens, from the first of the prompt to the one that ended it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from types import MappingProxyType

import numpy as np
import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.events import RequestFinished
from llmlab.trace.trace import Trace
from llmlab.views.choose import choose_request
from llmlab.views.glyphs import fit, text_width, visible
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count
from llmlab.views.scene import Mark, Rect, Scene, Text
from llmlab.views.strip_layout import (
    BOX,
    BOX_TOP,
    GUTTER,
    LINE_HEIGHT,
    Cell,
    Gap,
    gap_marks,
    lay,
    line_marks,
    token_marks,
    window,
)
from llmlab.views.strip_legend import legend
from llmlab.views.strip_tokens import NEVER, TokenFact, output_facts, prompt_facts, prompt_size
from llmlab.views.view import View

HEADER, MIN_WIDTH, MIN_LIMIT, MAX_LIMIT, LISTED = 26, 320, 8, 800, 16
NOTHING = "The trace has no request. Record one: lab.ask(...), then token_strip(lab.trace)."
COLUMNS = (
    "request_id",
    "position",
    "token_id",
    "token",
    "source",
    "step",
    "logprob",
    "probability",
    "shown_in_step",
    "held_back",
    "time_s",
)
ENDS = MappingProxyType(
    {
        "eos": "the model ended its answer (EOS)",
        "length": "max_tokens reached",
        "context": "the context is full",
        "aborted": "aborted",
        "error": "an error",
    }
)


def token_strip(trace: Trace, request_id: str | None = None, *, width: float = 960, limit: int = 128) -> View:
    """Every token of a request: id, text, where it came from, the step that computed or chose it, its probability under
    the model before temperature and filters, and where its text was held back.

    At most ``limit`` tokens are drawn; of a longer prompt or output the first and last ones. The table has all.
    Raises ``UnknownRequest``, and ``InvalidParameter`` for a picture too small to hold anything.
    """
    if width < MIN_WIDTH or not MIN_LIMIT <= limit <= MAX_LIMIT:
        allowed = f"use {MIN_WIDTH} pixels or more, {MIN_LIMIT} to {MAX_LIMIT} tokens"
        raise InvalidParameter(f"width={width!r}, limit={limit!r}: {allowed}")
    if request_id is None and not trace.index.request_ids:
        return missing_view("token_strip", "Tokens", NOTHING, COLUMNS, width)
    request_id = choose_request(trace, request_id)
    prompt, output = prompt_facts(trace, request_id), output_facts(trace, request_id)
    strip = _Strip(trace, request_id, prompt, output)
    shown_output = min(len(output), max(limit // 2, limit - len(prompt)))
    parts = [window(prompt, limit - shown_output), window(output, shown_output)]
    return View(
        name="token_strip",
        title=f"Tokens of request {fit(request_id, width / 2, 14)}",
        alt=strip.alt(),
        text=strip.text(),
        scene=strip.scene(parts, width),
        frame=strip.frame(),
        notes=tuple(_left_out(parts)),
    )


def _left_out(parts: Sequence[Sequence[TokenFact | Gap]]) -> Iterator[str]:
    for name, part in zip(("prompt", "output"), parts, strict=True):
        for gap in part:
            if isinstance(gap, Gap):
                size = f"{gap.end - gap.start:,}"
                where = f"positions {gap.start:,} to {gap.end - 1:,}"
                yield f"{size} {name} tokens are left out of the picture ({where}): the table has them."


class _Strip:
    """One request's tokens, told as text, picture and table."""

    def __init__(self, trace: Trace, request_id: str, prompt: Sequence[TokenFact], output: Sequence[TokenFact]) -> None:
        self.trace, self.request_id = trace, request_id
        self.prompt, self.output = prompt, output
        self.finished = trace.index.finished.get(request_id)

    # -- words ----------------------------------------------------------------------------------------------

    def alt(self) -> str:
        return f"The tokens of request {visible(self.request_id)}: {self._prompt_words()}; {self._output_words()}."

    def text(self) -> str:
        lines = [
            f"request {visible(self.request_id)}",
            f"prompt: {self._prompt_words()}",
            *_listed(self.prompt),
            f"output: {self._output_words()}",
            *_listed(self.output),
            *self._held_words(),
            f"end: {self.end()}",
        ]
        return "\n".join(lines)

    def _prompt_words(self) -> str:
        if not self.prompt:
            size = prompt_size(self.trace, self.request_id)
            return f"{size:,} prompt tokens, not recorded" if size else "no prompt recorded"
        sources = Counter(fact.source for fact in self.prompt)
        words = []
        if sources["cached"]:
            words.append(f"{sources['cached']:,} served from cache (not computed)")
        if sources["prompt"]:
            words.append(f"{sources['prompt']:,} " + _computed(self.prompt))
        if sources["shared"]:
            words.append(f"{sources['shared']:,} shared with the first sample")
        return f"{count(len(self.prompt), 'token')}: {', '.join(words)}"

    def _output_words(self) -> str:
        if not self.output:
            return "no output token recorded"
        sources = Counter(fact.source for fact in self.output)
        steps = len({fact.step for fact in self.output})
        kinds = ", ".join(f"{number:,} {source}" for source, number in sources.items())
        return f"{count(len(self.output), 'token')} in {count(steps, 'step')} ({kinds})"

    def _held_words(self) -> Iterator[str]:
        held = groupby(self.output, key=lambda fact: (fact.held, fact.shown))
        spans = [(reason, shown, list(facts)) for (reason, shown), facts in held if reason]
        for reason, shown, facts in spans[:LISTED]:
            first, last = facts[0].position, facts[-1].position
            where = f"position {first}" if first == last else f"positions {first} to {last}"
            yield f"never shown: {where}" if reason == NEVER else f"held back: {where} until step {shown} ({reason})"
        if len(spans) > LISTED:
            yield f"held back: {len(spans) - LISTED:,} more times"

    def end(self) -> str:
        """Why the request ended."""
        if self.finished is None:
            return "none recorded so far"
        return _ending(self.finished)

    # -- picture --------------------------------------------------------------------------------------------

    def scene(self, parts: Sequence[Sequence[TokenFact | Gap]], width: float) -> Scene:
        marks: list[Mark] = []
        y, words_of = 0.0, (self._prompt_words(), self._output_words())
        for name, words, part in zip(("Prompt", "Output"), words_of, parts, strict=True):
            marks += [Text(0, y + 14, name, 13, bold=True)]
            marks += [Text(GUTTER, y + 14, fit(words, width - GUTTER, 11), 11, "muted")]
            y += HEADER
            cells = lay(part, y, width)
            marks += self._cell_marks(cells)
            y = cells[-1].y + LINE_HEIGHT - cells[-1].lift if cells else y
        y = self._end_marks(marks, cells, y, width)
        y = legend(marks, [fact for part in parts for fact in part if isinstance(fact, TokenFact)], y, width)
        return Scene(width, y, tuple(marks))

    def _cell_marks(self, cells: Sequence[Cell]) -> Iterator[Mark]:
        yield from line_marks(cells, self.request_id)
        for cell in cells:
            if isinstance(cell.item, Gap):
                yield from gap_marks(cell, f"positions {cell.item.start:,} to {cell.item.end - 1:,}")
            else:
                yield from token_marks(cell, self._key(cell.item), self._tip(cell.item))

    def _key(self, fact: TokenFact) -> dict[str, int | str]:
        key = {"request": self.request_id, "position": fact.position}
        return key | {"step": fact.step} if fact.step >= 0 else key

    def _tip(self, fact: TokenFact) -> str:
        parts = [f"{fact.position}: {fact.token_id} {fact.label}", fact.source]
        if fact.step >= 0:
            parts.append(f"step {fact.step}")
        if not math.isnan(fact.logprob):
            parts.append(f"logprob {fact.logprob:.3f} (p {math.exp(min(fact.logprob, 0)):.3g})")
        if fact.held:
            parts.append(f"text out in step {fact.shown}: {fact.held}")
        if fact.is_output:
            parts.append(f"at {float(self.trace.index.seconds(fact.t_ns)) * 1e3:.1f} ms")
        return ", ".join(parts)

    def _end_marks(self, marks: list[Mark], cells: Sequence[Cell], y: float, width: float) -> float:
        """Why it ended, after the last token or on a line of its own."""
        label = f"■ end: {self.end()}"
        needed = text_width(label, 12, mono=False) + 20
        last = cells[-1] if cells else None
        x = last.x + last.width + 8 if last else float(GUTTER)
        if last is None or x + needed > width:
            x, top, y = float(GUTTER), y, y + BOX + 8
        else:
            top = last.y + BOX_TOP
        needed = min(needed, width - x)
        key = {"request": self.request_id} | ({"step": self.finished.step} if self.finished else {})
        marks.append(Rect(x, top, needed, BOX, "", "ink", dash=self.finished is None, key=key, tip=label))
        marks.append(Text(x + 8, top + 15, fit(label, needed - 12, 12), 12, key=key))
        return y

    # -- table ----------------------------------------------------------------------------------------------

    def frame(self) -> pd.DataFrame:
        facts = [*self.prompt, *self.output]
        logprobs = np.array([fact.logprob for fact in facts], dtype=np.float64)
        columns = {
            "request_id": [self.request_id] * len(facts),
            "position": np.array([fact.position for fact in facts], dtype=np.int64),
            "token_id": np.array([fact.token_id for fact in facts], dtype=np.int64),
            "token": [fact.label for fact in facts],
            "source": [fact.source for fact in facts],
            "step": _optional([fact.step for fact in facts]),
            "logprob": logprobs,
            "probability": np.exp(logprobs),
            "shown_in_step": _optional([fact.shown for fact in facts]),
            "held_back": [fact.held for fact in facts],
            "time_s": [self._seconds(fact) for fact in facts],
        }
        return pd.DataFrame(columns, columns=list(COLUMNS))

    def _seconds(self, fact: TokenFact) -> float:
        return float("nan") if not fact.is_output else (fact.t_ns - self.trace.index.start_ns) / 1e9


def _optional(values: Sequence[int]) -> pd.Series:
    numbers = np.array(values, dtype=np.int64)
    return pd.Series(pd.arrays.IntegerArray(numbers, numbers < 0))


def _ending(finished: RequestFinished) -> str:
    reason, sequence = finished.stop_reason, finished.stop_sequence
    if reason == "stop_token":
        return f"stop token {sequence}"
    if reason == "stop_string":
        return f"stop string {visible(str(sequence), spaces=True, limit=60)}"
    return f"{visible(reason)}: {ENDS[reason]}" if reason in ENDS else visible(reason)


def _computed(prompt: Sequence[TokenFact]) -> str:
    """How those that were not served from the cache were, or will be, computed."""
    todo = [fact for fact in prompt if fact.source == "prompt"]
    done, chunks = sum(fact.step >= 0 for fact in todo), len({fact.step for fact in todo if fact.step >= 0})
    if done == len(todo):
        return f"computed in {count(chunks, 'chunk')}"
    return f"to compute, {done:,} of them in {count(chunks, 'chunk')} of this trace"


def _listed(facts: Sequence[TokenFact]) -> list[str]:
    if not facts:
        return []
    some = " ".join(f"{fact.token_id}:{fact.label}" for fact in facts[:LISTED])
    return [f"  {some}" + (" …" if len(facts) > LISTED else "")]
