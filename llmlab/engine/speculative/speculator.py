"""Drafting and verifying in the step loop: what the engine calls when speculation is on."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from torch import Tensor

from llmlab.engine.journal import Journal
from llmlab.engine.plan import ScheduledRow
from llmlab.engine.request import Request, StopReason
from llmlab.engine.sequence import Sequence
from llmlab.engine.speculative.adaptive import Adaptive
from llmlab.engine.speculative.config import RULES
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed, Proposer
from llmlab.engine.speculative.verify import ACCEPTED, Judged, Verdict, verify
from llmlab.trace.events import DraftPolicy, DraftRound


@dataclass(slots=True)
class Held:
    """A request's draft on its way through verification: what is left of it, and what is told about it."""

    draft: Draft
    number: int
    num_drafted: int
    draft_ns: int
    num_proposed_for: int


@dataclass(slots=True)
class Round:
    """One row's draft after the forward pass: the verdict, of which a stop may still cut the end."""

    row: ScheduledRow
    verdict: Verdict
    start: int
    verify_ns: int


class Speculator:
    """Owns the proposer, the drafts that are not verified yet, and the rule they are verified by.

    ``totals`` counts drafts, their tokens and those that were accepted, since the beginning.
    """

    def __init__(
        self, proposer: Proposer, *, k: int, rule: str, adaptive: Adaptive | None, vocab_size: int, journal: Journal
    ) -> None:
        self.proposer, self.k, self.rule, self.journal = proposer, k, rule, journal
        self.vocab_size = vocab_size
        self.error: Exception | None = None
        self._judge = RULES[rule]
        self._adaptive = adaptive
        self.totals = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0}
        self._held: dict[str, Held] = {}
        self._numbers: dict[str, int] = {}
        self._silent: set[str] = set()
        # where a draft was kept to its end without room for the position after it, that one is chosen without a draft:
        # it would have been the bonus token
        self._bonus_at: dict[str, int] = {}

    def __str__(self) -> str:
        length = f"at most {self.k} tokens, adaptive" if self._adaptive else f"{self.k} tokens"
        return f"{self.proposer.name}, {length}, {self.rule}"

    # -- before a step --------------------------------------------------------------------------------------

    def draft(self, sequences: Iterable[Sequence], batch_size: int) -> None:
        """Give a draft to every request that decodes in this step and has none left to verify."""
        if self.error is not None:
            return
        start = perf_counter_ns()
        wanting = [(s.request, row) for s in sequences if (row := self._row(s, batch_size)) is not None]
        if not wanting:
            return
        try:
            drafts = self._checked(self.proposer.propose([row for _, row in wanting]), [row for _, row in wanting])
        except Exception as error:  # a guess is not worth a request: everybody decodes plainly from now on
            self._give_up(error)
            return
        spent = perf_counter_ns() - start
        for (request, _), draft in zip(wanting, drafts, strict=True):
            if draft.tokens:
                request.draft = draft.tokens
                number = self._numbers[request.id] = self._numbers.get(request.id, -1) + 1
                self._held[request.id] = Held(draft, number, len(draft), spent, len(wanting))
                self.totals["drafts"] += 1
                self.totals["draft_tokens"] += len(draft)

    def _checked(self, drafts: list[Draft], rows: list[DraftRow]) -> list[Draft]:
        """The drafts, one for each row, if they can be computed at all."""
        for draft, row in zip(drafts, rows, strict=True):
            if not len(draft) == len(draft.probs) <= row.k:
                raise ValueError(f"{len(draft)} tokens with {len(draft.probs)} distributions, asked for {row.k}")
            if not all(type(token) is int and 0 <= token < self.vocab_size for token in draft.tokens):
                raise ValueError(f"draft {draft.tokens} holds what is no token id below {self.vocab_size}")
        return drafts

    def _row(self, sequence: Sequence, batch_size: int) -> DraftRow | None:
        request = sequence.request
        if request.draft or request.num_remaining != 1 or not request.num_output:
            return None
        if self._bonus_at.get(request.id) == len(request.tokens):
            return None
        if (reason := _obstacle(sequence)) is not None:
            self._refuse(request, reason, batch_size)
            return None
        # the last token of the output needs no draft: it is the bonus token at the latest
        k = min(self._length(request, batch_size), request.max_tokens - request.num_output - 1)
        if k < 1:
            return None
        params = request.params
        seeded = params.seed is not None and not params.greedy
        return DraftRow(
            request_id=request.id,
            tokens=request.tokens,
            k=k,
            rules=sequence.sample_input(),
            vocab_size=self.vocab_size,
            block_table=request.block_table,
            by_name=seeded and (self._adaptive is not None or not self.proposer.repeatable),
        )

    def _length(self, request: Request, batch_size: int) -> int:
        if self._adaptive is None:
            return self.k
        k, reason = self._adaptive.choose(request.id, batch_size)
        if reason is not None:
            self._tell(request.id, k, reason, self._adaptive.rate(request.id), batch_size)
        return k

    def _refuse(self, request: Request, reason: str, batch_size: int) -> None:
        if request.id not in self._silent:
            self._silent.add(request.id)
            self._tell(request.id, 0, reason, math.nan, batch_size)

    def _call(self, method: Callable[..., None], *args: Any) -> None:
        if self.error is not None:
            return
        try:
            method(*args)
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self.error = error
        reason = f"{self.proposer.name} failed: {type(error).__name__}: {error}"
        warnings.warn(f"speculation is off from now on: {reason}", RuntimeWarning, stacklevel=2)
        self._tell(None, 0, reason, math.nan, 0)

    def _tell(self, request_id: str | None, k: int, reason: str, acceptance: float, batch_size: int) -> None:
        recorder = self.journal.recorder
        if recorder.enabled:
            recorder.emit(
                DraftPolicy(perf_counter_ns(), self.journal.step, request_id, k, reason, acceptance, batch_size)
            )

    # -- after the forward pass -----------------------------------------------------------------------------

    def observe(self, features: Iterable[tuple[ScheduledRow, Tensor]]) -> None:
        """Pass on the hidden states ``(num_tokens, width)`` of every row of the step."""
        rows = [Observed(row.request.id, row.start, row.token_ids, tensor) for row, tensor in features]
        self._call(self.proposer.observe, rows)

    def verify(self, row: ScheduledRow, sequence: Sequence, logits: Tensor) -> Round:
        """Judge a row's draft; ``logits`` ``(1 + num_draft, V)`` are those of its last positions."""
        start = perf_counter_ns()
        draft = self._held[row.request.id].draft
        verdict = verify(logits, sequence.sample_input(), draft, self._judge)
        return Round(row, verdict, len(row.request.tokens), perf_counter_ns() - start)

    def settle(self, round_: Round, stop: StopReason | None) -> None:
        """Count what became of a verdict, of which the request's tokens hold what was kept."""
        request = round_.row.request
        held = self._held[request.id]
        verdict, kept = round_.verdict, len(request.tokens) - round_.start
        accepted = sum(source == ACCEPTED for source in verdict.sources[:kept])
        request.num_accepted += accepted
        self.totals["accepted_tokens"] += accepted
        outcome = _outcome(verdict, kept, stop)
        rest = held.draft.after(len(verdict.judged)) if outcome == "held" else Draft()
        request.num_rejected += 0 if outcome == "held" else len(held.draft) - accepted
        self._record(round_, held, accepted, outcome)
        if self._adaptive is not None:
            self._adaptive.add(request.id, accepted, len(verdict.judged))
        request.draft = rest.tokens
        if rest.tokens:
            held.draft, held.draft_ns, held.num_proposed_for = rest, 0, 0
            return
        del self._held[request.id]
        if outcome == "held":
            self._bonus_at[request.id] = len(request.tokens)

    def _record(self, round_: Round, held: Held, accepted: int, outcome: str) -> None:
        recorder, verdict = self.journal.recorder, round_.verdict
        if not recorder.enabled:
            return
        judged: list[Judged] = verdict.judged
        recorder.emit(
            DraftRound(
                t_ns=perf_counter_ns(),
                step=self.journal.step,
                request_id=round_.row.request.id,
                proposer=self.proposer.name,
                rule=self.rule,
                number=held.number,
                num_drafted=held.num_drafted,
                start=round_.start,
                tokens=tuple(one.token_id for one in judged),
                p=tuple(one.p for one in judged),
                q=tuple(one.q for one in judged),
                u=tuple(one.u for one in judged),
                num_accepted=accepted,
                outcome=outcome,
                token_id=verdict.sampled[-1].token_id if outcome in ("recovered", "bonus") else -1,
                draft_ns=held.draft_ns,
                num_proposed_for=held.num_proposed_for,
                verify_ns=round_.verify_ns,
            )
        )

    # -- lives of requests ----------------------------------------------------------------------------------

    def fork(self, parent: Request, child: Request) -> None:
        """A sample begins with its parent's computed prompt."""
        self._call(self.proposer.fork, parent.id, child.id)

    def forget(self, request: Request) -> None:
        """The request ended: drop all that is kept about it."""
        request.draft = ()
        self._held.pop(request.id, None)
        self._numbers.pop(request.id, None)
        self._bonus_at.pop(request.id, None)
        self._silent.discard(request.id)
        self._call(self.proposer.forget, request.id)
        if self._adaptive is not None:
            self._adaptive.forget(request.id)


def _obstacle(sequence: Sequence) -> str | None:
    """Why a request is never drafted for."""
    if sequence.constraint is not None:
        return "its constraint must see every token before the next is chosen"
    if (probe := getattr(sequence.request, "probe", None)) is not None and probe.is_inside:
        return "its probes look at one new position a step"
    return None


def _outcome(verdict: Verdict, kept: int, stop: StopReason | None) -> str:
    if stop is StopReason.ERROR:
        return "error"
    if kept < len(verdict.sampled):
        return "stopped"
    last = verdict.sources[-1]
    if last == ACCEPTED:
        return "held" if stop is None else "stopped"
    return last
