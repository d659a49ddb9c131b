"""Do the events of a trace agree? Every violation found is certain; lost events excuse a check."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from llmlab.trace.blocks import PoolReplay
from llmlab.trace.capture_check import capture_violations
from llmlab.trace.events import DraftRound, Gap, RequestFinished, RequestSubmitted, Step, StepRow, TextEmitted, Token
from llmlab.trace.index import Index
from llmlab.trace.split_check import split_violations
from llmlab.trace.swap_check import swap_violations
from llmlab.trace.wire_check import wire_violations

TOLERANCE = 1e-4  # a float32 log-softmax may exceed 0 by rounding


def check(index: Index) -> list[str]:
    """All violations, one sentence each; an empty list means that the trace is consistent."""
    found = [*_steps(index), *_limits(index), *_rows_and_decisions(index)]
    if index.info and not index.gaps and not index.only:
        found += _pool(index)
    found += split_violations(index)
    found += wire_violations(index)
    found += capture_violations(index)
    found += swap_violations(index)
    for history in _histories(index):
        found += [f"request {history.submitted.request_id}: {text}" for text in history.violations()]
    return found


# -- steps ---------------------------------------------------------------------------------------------------


def _steps(index: Index) -> Iterator[str]:
    for i, step in enumerate(index.steps):
        marks = index.marks[i].tolist()
        if marks != sorted(marks):
            yield f"step {step.step}: its phases are not in order: {marks}"
        if i and step.step == index.steps[i - 1].step:
            yield f"step {step.step}: recorded twice"
        elif i and step.t_ns < index.steps[i - 1].end_ns:
            yield f"step {step.step}: began before step {index.steps[i - 1].step} ended"


def _limits(index: Index) -> Iterator[str]:
    for step in index.steps:
        ids = [row.request_id for row in step.rows]
        if len(set(ids)) < len(ids):
            yield f"step {step.step}: a request has two rows"
        if index.info:
            yield from _engine_limits(index, step)


def _engine_limits(index: Index, step: Step) -> Iterator[str]:
    info = index.info
    num_tokens = sum(row.num_tokens for row in step.rows)
    if num_tokens > info.max_num_batched_tokens:
        yield f"step {step.step}: {num_tokens} tokens, the budget is {info.max_num_batched_tokens}"
    if len(step.rows) > info.max_num_seqs:
        yield f"step {step.step}: {len(step.rows)} rows, the batch has {info.max_num_seqs} slots"
    if min(step.free, step.cached, step.used) < 0 or step.free + step.cached + step.used != info.num_blocks:
        yield (
            f"step {step.step}: {step.free} free + {step.cached} cached + {step.used} used blocks are not "
            f"the pool's {info.num_blocks}"
        )
    longest = max((row.start + row.num_tokens for row in step.rows), default=0)
    if longest > step.used * info.block_size:
        yield f"step {step.step}: {longest} live tokens do not fit in {step.used} blocks of {info.block_size}"


def _rows_and_decisions(index: Index) -> Iterator[str]:
    """A recorded step has a row for every ``ran``, with the same number of tokens."""
    rows = {(step.step, row.request_id): row.num_tokens for step in index.steps for row in step.rows}
    recorded = {step.step for step in index.steps}
    for decision in index.decisions:
        computed = rows.get((decision.step, decision.request_id))
        if decision.action == "ran" and decision.step in recorded and computed != decision.num_tokens:
            yield (
                f"step {decision.step}: request {decision.request_id} was to compute {decision.num_tokens} "
                f"tokens, its row has {computed or 0}"
            )


# -- pool ----------------------------------------------------------------------------------------------------


def _pool(index: Index) -> Iterator[str]:
    """Replay every block change and compare with the counts and rows of the steps."""
    pool, done = PoolReplay(), 0
    for step in index.steps:
        # the counts were taken when the step had its blocks, before its batch was built
        until = bisect_right(index.blocks, step.build_ns, lo=done, key=lambda e: e.t_ns)
        yield from _apply(pool, index, done, until)
        done = until
        counts = pool.counts(index.info.num_blocks)
        if counts != (step.free, step.cached, step.used):
            yield (
                f"step {step.step}: its (free, cached, used) blocks are "
                f"{(step.free, step.cached, step.used)}, the block events say {counts}"
            )
        for row in step.rows:
            room = pool.held[row.request_id] * index.info.block_size
            if row.start + row.num_tokens > room:
                yield f"step {step.step}: request {row.request_id} has blocks for {room} tokens, too few"
    yield from _apply(pool, index, done, len(index.blocks))
    for request_id in index.finished:
        if pool.held[request_id]:
            yield f"request {request_id}: ended, but still holds {pool.held[request_id]} blocks"


def _apply(pool: PoolReplay, index: Index, begin: int, end: int) -> Iterator[str]:
    for event in index.blocks[begin:end]:
        block = pool.apply(event)
        if block.ref_count != len(block.owners):
            yield (
                f"step {event.step}: block {event.block_id} has ref_count {block.ref_count} after "
                f"{event.action}, {len(block.owners)} requests hold it"
            )


# -- requests ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _History:
    """Everything recorded about one request whose submission is in the trace, with nothing lost since."""

    submitted: RequestSubmitted
    finished: RequestFinished | None
    marks: dict[int, Step]
    rows: list[tuple[int, StepRow]] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
    texts: list[TextEmitted] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    rounds: list[DraftRound] = field(default_factory=list)
    num_recomputed: int = 0
    num_received: int = 0  # leading positions whose K/V another process computed and handed over

    @property
    def num_prompt(self) -> int:
        return len(self.submitted.prompt_token_ids)

    @property
    def _ready(self) -> int:
        """Positions that had arrived when its first row was made; a preemption before that drops them."""
        return 0 if any(step < number for step in self.preempted for number, _ in self.rows[:1]) else self.num_received

    def violations(self) -> Iterator[str]:
        yield from self._positions()
        yield from self._tokens()
        yield from self._probabilities()
        yield from self._texts()
        yield from self._drafts()
        if self.finished:
            yield from self._usage(self.finished)
            if self.finished.stop_reason not in ("aborted", "error"):
                yield from self._totals(self.finished)

    def _positions(self) -> Iterator[str]:
        """Every row goes on where the last one ended, or where the cache ended after an admission."""
        is_sample = self.submitted.parent_id is not None
        reached, last = self.num_prompt if is_sample else 0, -1
        for number, row in self.rows:
            admitted = any(last < p < number for p in self.preempted) or (last < 0 and not is_sample)
            expected = max(row.num_cached, self._ready if last < 0 else 0) if admitted else reached
            if row.start != expected or (row.num_cached and not admitted) or row.num_tokens < 1:
                yield (
                    f"step {number} computes {row.num_tokens} positions from {row.start} with "
                    f"{row.num_cached} cached; it should go on from {expected}"
                )
            if not 0 <= row.num_rejected <= row.num_draft < max(row.num_tokens, 1):
                yield (
                    f"step {number} computes {row.num_tokens} positions, {row.num_draft} of drafts, and rejects "
                    f"{row.num_rejected}"
                )
            reached, last = _reached(row), number

    def _tokens(self) -> Iterator[str]:
        positions = [token.position for token in self.tokens]
        expected = list(range(self.num_prompt, self.num_prompt + len(positions)))
        if positions != expected:
            yield f"tokens were chosen for positions {positions}, not once each from {self.num_prompt} on"
        chosen = {(token.step, token.position) for token in self.tokens}
        failed = self.finished.step if self.finished and self.finished.stop_reason == "error" else None
        for number, row in self.rows:
            end = _reached(row)
            if row.sampled and number != failed and (number, end) not in chosen:
                yield f"step {number} sampled position {end}, but no token was recorded"
        for token in self.tokens:
            step = self.marks.get(token.step)
            if step and not step.t_ns <= token.t_ns <= step.end_ns:
                yield f"the token at {token.position} was not chosen within its step {token.step}"

    def _probabilities(self) -> Iterator[str]:
        for token in self.tokens:
            values = [token.logprob, *(logprob for _, logprob in token.top)]
            if any(math.isnan(value) or value > TOLERANCE for value in values):
                yield f"the token at {token.position} has a log-probability that is not one: {values}"
            elif sum(math.exp(logprob) for _, logprob in token.top) > 1 + TOLERANCE:
                yield f"the alternatives at {token.position} have a total probability above 1"

    def _texts(self) -> Iterator[str]:
        before = 0
        for text in self.texts:
            if not before <= text.num_tokens <= len(self.tokens):
                yield (
                    f"text after {text.num_tokens} tokens follows text after {before}; {len(self.tokens)} "
                    f"tokens were chosen"
                )
            before = text.num_tokens

    def _usage(self, finished: RequestFinished) -> Iterator[str]:
        recorded = {
            "prompt_tokens": self.num_prompt,
            "output_tokens": len(self.tokens),
            "recomputed_tokens": self.num_recomputed,
            "preemptions": len(self.preempted),
            "accepted_draft_tokens": sum(round_.num_accepted for round_ in self.rounds),
        }
        if self.rows and self.submitted.parent_id is None:
            recorded["cached_tokens"] = self.rows[0][1].num_cached
        for name, value in recorded.items():
            if finished.usage.get(name, value) != value:
                yield f"usage says {finished.usage[name]} {name}, the events {value}"

    def _totals(self, finished: RequestFinished) -> Iterator[str]:
        """Every position but that of the last token chosen was computed or served, and again only after a
        preemption."""
        scheduled = sum(row.num_tokens - row.num_rejected for _, row in self.rows)
        length, served = self.num_prompt + len(self.tokens), self._num_served()
        pending = min(len(self.tokens), 1)
        if finished.step in self.marks and scheduled != length - pending - served + self.num_recomputed:
            yield (
                f"{scheduled} tokens were scheduled and not rejected, not prompt {self.num_prompt} + output "
                f"{len(self.tokens)} - {pending} - {served} served from blocks of others + "
                f"{self.num_recomputed} recomputed"
            )

    def _num_served(self) -> int:
        """Positions it never computed: a prefix hit of a resumption may reach further than it had come itself."""
        served = reached = self.num_prompt if self.submitted.parent_id else 0
        for i, (_, row) in enumerate(self.rows):
            served += max(max(row.num_cached, 0 if i else self._ready) - reached, 0)
            reached = max(reached, _reached(row))
        return served

    def _drafts(self) -> Iterator[str]:
        """Accepted and final tokens of a round are those that were chosen; probabilities are probabilities."""
        chosen = {token.position: token.token_id for token in self.tokens}
        for round_ in self.rounds:
            kept = [*round_.tokens[: round_.num_accepted], *([round_.token_id] if round_.token_id >= 0 else [])]
            found = [chosen.get(round_.start + i) for i in range(len(kept))]
            if kept != found:
                yield f"step {round_.step}: draft {round_.number} gave {kept}, the tokens there are {found}"
            if any(not -TOLERANCE <= value <= 1 + TOLERANCE for value in (*round_.p, *round_.q)):
                yield f"step {round_.step}: draft {round_.number} has probabilities {round_.p} and {round_.q}"


def _reached(row: StepRow) -> int:
    """First position after those that count."""
    return row.start + row.num_tokens - row.num_rejected


def _histories(index: Index) -> list[_History]:
    marks = {step.step: step for step in index.steps}
    histories: dict[str, _History] = {}
    for event in index.events:
        if isinstance(event, Gap):
            histories.clear()
        elif isinstance(event, RequestSubmitted):
            histories[event.request_id] = _History(event, index.finished.get(event.request_id), marks)
    nobody = _History(RequestSubmitted(0, "", None, 0, None, (), {}), None, marks)
    of = defaultdict(lambda: nobody, histories)
    for code, again in zip(index.rows.request.tolist(), index.rows.recomputed.tolist(), strict=True):
        of[index.request_ids[code]].num_recomputed += again
    for step in index.steps:
        for row in step.rows:
            of[row.request_id].rows.append((step.step, row))
    for transfer in index.transfers:
        if transfer.action == "send":
            of[transfer.request_id].num_received = transfer.num_tokens
    for token in index.tokens:
        of[token.request_id].tokens.append(token)
    for round_ in index.drafts:
        of[round_.request_id].rounds.append(round_)
    for text in index.texts:
        of[text.request_id].texts.append(text)
    for decision in index.decisions:
        if decision.action == "preempted":
            of[decision.request_id].preempted.append(decision.step)
    return list(histories.values())
