"""One engine step: schedule, build batch, forward, sample, detokenize, emit, each phase on the clock."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from llmlab.engine.host_copies import note_costs, record_swaps
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request, StopReason
from llmlab.engine.sampler import Sampled, prompt_logprobs, sample
from llmlab.engine.sequence import Sequence
from llmlab.errors import ConstraintError, LabError, RankFailed
from llmlab.trace.events import PromptLogprobs, Step, TextEmitted, Token

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine
    from llmlab.engine.speculative.speculator import Round


class StepExecutor:
    """Runs the phases of a step for an engine and records them as they happen."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.recorder = engine.recorder
        self.journal = engine.journal
        self.speculator = engine.speculator

    def run(self, start_ns: int) -> None:
        """Run one step that began (draining the inbox) at ``start_ns``."""
        if self.speculator is not None:
            self._draft()
        plan = self.engine.scheduler.schedule(self.journal.step)
        assert plan.rows, "work is queued but nothing could be scheduled"
        self._tell_scheduled(plan)
        try:
            self._serve(plan, [start_ns, perf_counter_ns()])
        except RankFailed as error:  # a share of the model is gone, so every later step would fail too
            self.engine.fail(error)
        except Exception as error:  # one failing step must not end the engine: its requests fail, others go on
            self._fail(plan, error)
        except BaseException as error:  # an interrupt is the caller's, but a half-made step must not be continued
            self._fail(plan, error)
            raise
        finally:
            self.journal.step += 1

    def _serve(self, plan: StepPlan, marks: list[int]) -> None:
        counts, runner = self._counts(), self.engine.runner
        batch = runner.build(plan)
        marks.append(perf_counter_ns())
        try:
            logits = runner.forward(batch)
        finally:  # copies that were made stay made when the pass after them fails
            record_swaps(plan, self.recorder)
        self._record_captures(plan)
        if self.speculator is not None and self.speculator.proposer.needs_features:
            self.speculator.observe(runner.take_features())
        marks.append(perf_counter_ns())
        if self.engine.pool.host is not None:
            note_costs(self.engine.pool.host.policy, plan, marks[-1] - marks[-2])
        chosen = self._sample(plan, logits)
        marks.append(perf_counter_ns())
        stops = [self._detokenize(sequence, sampled) for sequence, sampled in chosen]
        marks.append(perf_counter_ns())
        for (sequence, _), stop in zip(chosen, stops, strict=True):
            self._emit(sequence, stop)
        self._end_prewarmed(plan)
        if self.recorder.enabled:
            self._record_step(plan, marks, counts)

    def _draft(self) -> None:
        """Let the running requests that decode have drafts before the step is planned: they count in its budget."""
        engine = self.engine
        running = engine.scheduler.running
        self.speculator.draft([engine.sequence(request) for request in running], len(running))

    def _tell_scheduled(self, plan: StepPlan) -> None:
        """Before anything of a run is visible: that it was scheduled, and what the prefix cache held of its prompt."""
        for row in plan.rows:
            if row.is_prefill:
                self.engine.sequence(row.request).run.note_scheduled(row.request.num_cached)

    def _record_captures(self, plan: StepPlan) -> None:
        """What probes saw in this step; before a request's end can be recorded."""
        for row in plan.rows:
            if row.request.probe is not None:
                for event in row.request.probe.store.take_news():
                    self.recorder.emit(event)

    def _end_prewarmed(self, plan: StepPlan) -> None:
        """With ``max_tokens=0`` a request is done as soon as its prompt is computed."""
        for row in plan.rows:
            if row.request.is_prewarm and row.end == row.request.num_prompt:
                self.engine.end(self.engine.sequence(row.request), StopReason.LENGTH)

    def _counts(self) -> tuple[int, int, int, int, int]:
        scheduler, pool = self.engine.scheduler, self.engine.pool
        return len(scheduler.waiting), len(scheduler.running), pool.num_free, pool.num_cached, pool.num_used

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        self.engine.scheduler.drop_copies(plan)
        runs = [self.engine.sequence(row.request).run for row in plan.rows if self.engine.is_live(row.request)]
        for run in dict.fromkeys(runs):
            failure = LabError(f"step {plan.step} failed for run {run.id}: {type(error).__name__}: {error}")
            failure.__cause__ = error
            self.engine.end_run(run, StopReason.ERROR, failure)

    # -- sample ---------------------------------------------------------------------------------------------

    def _sample(self, plan: StepPlan, logits: torch.Tensor) -> list[tuple[Sequence, Sampled | Round]]:
        """Choose a token for every row that reached its end, and for the samples forking from it; judge drafts."""
        sequences, picks, rounds, offset = [], [], [], 0
        for row in plan.rows:
            self.engine.scheduler.advance(row)
            if row.request.wants_prompt_logprobs:
                self._score_prompt(row, logits[offset : offset + row.num_logits])
            offset += row.num_logits
            if row.samples and row.request.draft:
                rounds.append(self._judge(row, logits[offset - 1 - row.num_draft : offset]))
            elif row.samples:
                group = [row.request, *self._fork(row.request)]
                sequences += [self.engine.sequence(request) for request in group]
                picks += [offset - 1] * len(group)
        if not sequences:
            return rounds
        if picks != list(range(len(logits))):
            logits = logits[torch.tensor(picks, device=logits.device)]
        sampled = sample(logits, [sequence.sample_input() for sequence in sequences])
        return [*zip(sequences, sampled, strict=True), *rounds]

    def _fork(self, parent: Request) -> list[Request]:
        children = self.engine.scheduler.fork(parent)
        if self.speculator is not None:
            for child in children:
                self.speculator.fork(parent, child)
        return children

    def _judge(self, row: ScheduledRow, logits: torch.Tensor) -> tuple[Sequence, Round]:
        sequence = self.engine.sequence(row.request)
        return sequence, self.speculator.verify(row, sequence, logits)

    def _score_prompt(self, row: ScheduledRow, logits: torch.Tensor) -> None:
        """Log-probabilities of the prompt tokens that follow the row's positions, each kept once."""
        request = row.request
        first = 1 + len(request.prompt_logprobs)
        end = min(row.end + 1, request.num_prompt)
        if first >= end:
            return
        next_ids = torch.tensor(request.prompt_token_ids[first:end], device=logits.device)
        rows = logits[first - 1 - row.start : end - 1 - row.start]
        scored = prompt_logprobs(rows, next_ids, request.params.prompt_logprobs)
        request.prompt_logprobs += scored
        self.engine.sequence(request).run.prompt_logprobs = request.prompt_logprobs
        if self.recorder.enabled:
            values, top = zip(*scored, strict=True)
            self.recorder.emit(PromptLogprobs(perf_counter_ns(), self.journal.step, request.id, first, values, top))

    # -- detokenize and emit --------------------------------------------------------------------------------

    def _detokenize(self, sequence: Sequence, chosen: Sampled | Round) -> StopReason | None:
        if type(chosen) is Sampled:
            return self._take(sequence, chosen, "target")
        stop = None
        for sampled, source in zip(chosen.verdict.sampled, chosen.verdict.sources, strict=True):
            stop = self._take(sequence, sampled, source)
            if stop is not None:  # what was accepted beyond the end is no output
                break
        self.engine.scheduler.settle(chosen.row)
        self.speculator.settle(chosen, stop)
        return stop

    def _take(self, sequence: Sequence, sampled: Sampled, source: str) -> StopReason | None:
        if sampled.error is not None:
            return self._fail_one(sequence, sampled.error_type, sampled.error)
        if self.recorder.enabled:
            self.recorder.emit(
                Token(
                    perf_counter_ns(),
                    self.journal.step,
                    sequence.request.id,
                    len(sequence.request.tokens),
                    sampled.token_id,
                    sampled.logprob,
                    source,
                    sampled.top,
                )
            )
        if sequence.request.probe is not None:
            self._record_choice(sequence.request)
        sequence.accept(sampled)
        if problem := sequence.constrain(sampled.token_id):
            return self._fail_one(sequence, ConstraintError, problem)
        return sequence.detokenize(sampled.token_id)

    def _record_choice(self, request: Request) -> None:
        """How the token about to be accepted was chosen, where that is recorded."""
        request.probe.keep_choice(self.journal.step, len(request.tokens), request.num_cached)
        for event in request.probe.store.take_news():
            self.recorder.emit(event)

    def _fail_one(self, sequence: Sequence, error_type: type[LabError], problem: str) -> StopReason:
        sequence.run.fail(error_type(f"run {sequence.run.id}: {problem}"))
        return StopReason.ERROR

    def _emit(self, sequence: Sequence, stop: StopReason | None) -> None:
        if stop is not None:
            self.engine.end(sequence, stop)
            return
        delta, _ = sequence.take_delta(None)
        self.record_text(sequence, delta.text)
        sequence.run.add(delta)

    def record_text(self, sequence: Sequence, text: str) -> None:
        """Record text that became safe to show."""
        if text and self.recorder.enabled:
            request = sequence.request
            self.recorder.emit(TextEmitted(perf_counter_ns(), self.journal.step, request.id, text, request.num_output))

    def _record_step(self, plan: StepPlan, marks: list[int], counts: tuple[int, int, int, int, int]) -> None:
        rows = tuple(row.record() for row in plan.rows)
        self.recorder.emit(Step(*marks, perf_counter_ns(), plan.step, rows, *counts))
