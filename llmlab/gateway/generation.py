"""A reply of the engine as events: one run, or a thinking run and an answering one, per sample."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from llmlab.api import ids
from llmlab.api.errors import ApiError
from llmlab.api.reply import Ended, ReplyEvent, SampleEnd, Started, Stop, TokenLogprob
from llmlab.api.usage import Usage
from llmlab.engine.constraint import Constraint
from llmlab.engine.params import SamplingParams
from llmlab.engine.run import Delta, Output, Run
from llmlab.errors import LabError
from llmlab.gateway.backend import Call
from llmlab.gateway.failures import to_api_error
from llmlab.gateway.merge import first_sample_first, merged
from llmlab.gateway.preparation import Prepared
from llmlab.gateway.prompt_cache import CachePlan
from llmlab.gateway.sample_stream import SampleStream
from llmlab.gateway.tool_calls import ToolCallParser
from llmlab.trace.events import WireLink

if TYPE_CHECKING:
    from llmlab.gateway.engine_backend import EngineBackend


@dataclass(slots=True)
class Work:
    """An admitted request: what was prepared for it, what it found in the prompt cache, and its output rules."""

    call: Call
    prepared: Prepared
    cache: CachePlan | None
    constraint: Callable[[], Constraint] | None
    thoughts: dict[int, int] = field(default_factory=dict)  # output tokens spent on thinking, by sample
    reported: dict[int, int] = field(default_factory=dict)  # tokens whose log-probabilities went out, by sample

    @property
    def parses_calls(self) -> bool:
        """Whether tool calls are looked for in the output."""
        conversation = self.prepared.conversation
        return bool(conversation.tools) and conversation.tool_choice.mode != "none"


class EngineGeneration:
    """A reply in the making; ``async for`` gives its events once. It holds its runs until the end or ``aclose``."""

    def __init__(self, backend: EngineBackend, work: Work, request_id: str) -> None:
        self._backend, self._work = backend, work
        self._runs: list[Run] = []
        self._usage: Usage | None = None
        thinking = work.prepared.thinking_budget is not None
        rendered = work.prepared.rendered
        self._first = self._submit(
            rendered.ids,
            work.prepared.thinking_params() if thinking else work.prepared.params,
            None if thinking else work.constraint,
            request_id=request_id,
            text=rendered.text,
        )
        self._samples = [self._stream(i) for i in range(work.prepared.params.n)]
        self._events = self._generate()

    def __aiter__(self) -> AsyncIterator[ReplyEvent]:
        return self._events

    async def aclose(self) -> None:
        """Abort what still runs, before the engine's next step."""
        self._leave()
        if not self._events.ag_running:
            await self._events.aclose()

    def _leave(self) -> None:
        for run in self._runs:
            if not run.finished:
                run.abort()
        self._backend.closed(self, self._runs)

    # -- runs -----------------------------------------------------------------------------------------------

    def _submit(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        constraint: Callable[[], Constraint] | None,
        request_id: str | None = None,
        text: str | None = None,
    ) -> Run:
        run = self._backend.engine.submit(
            prompt_ids,
            params,
            priority=self._work.call.priority,
            prompt=text,
            request_id=request_id,
            constraint=constraint,
        )
        self._runs.append(run)
        recorder = self._backend.recorder
        if recorder.enabled:
            for output in run.outputs:
                recorder.emit(WireLink(perf_counter_ns(), self._work.call.wire_id, "engine", output.request_id))
        return run

    def _stream(self, sample: int) -> SampleStream:
        conversation = self._work.prepared.conversation
        new_id = ids.tool_use_id if conversation.protocol == "anthropic" else ids.call_id
        parser = ToolCallParser() if self._work.parses_calls else None
        reports = conversation.return_token_ids or self._work.prepared.params.logprobs is not None
        return SampleStream(sample, new_id, parser, reports)

    # -- events ---------------------------------------------------------------------------------------------

    async def _generate(self) -> AsyncIterator[ReplyEvent]:
        try:
            async with aclosing(first_sample_first(self._phases())) as events:
                async for event in events:
                    yield event
        except ApiError:
            raise
        except LabError as error:
            raise to_api_error(error) from error
        finally:
            self._leave()

    async def _phases(self) -> AsyncIterator[ReplyEvent]:
        sources = [(0, self._first)]
        if self._work.prepared.thinking_budget is not None:
            async with aclosing(self._think()) as events:
                async for event in events:
                    yield event
            sources = list(self._answer_runs())
            answered = {sample for sample, _ in sources}
            for sample in (sample for sample in range(len(self._samples)) if sample not in answered):
                yield SampleEnd(sample, "context_window")
        async with aclosing(merged(sources)) as deltas:
            async for sample, run, delta in deltas:
                for event in self._answer(sample, run, delta):
                    yield event
        applied = self._work.prepared.edited.applied
        yield Ended(self._total(), applied, {"iterations": self._iterations()} | run_seconds(self._runs))

    def _answer(self, sample: int, run: Run, delta: Delta) -> Iterator[ReplyEvent]:
        yield from self._begin()
        stream, output = self._samples[sample], run.outputs[delta.sample]
        stream.note_tokens(delta.token_ids, self._logprobs(sample, output, delta))
        yield from stream.feed(delta.text)
        if delta.finished and _ended_by_itself(run, output):
            stop = self._stop(output)
            yield from stream.finish(cut=stop in ("max_tokens", "context_window"))
            if stop == "end_turn" and stream.called:
                stop = "tool_use"
            yield SampleEnd(sample, stop, str(output.stop_sequence) if stop == "stop_sequence" else None)

    def _logprobs(self, sample: int, output: Output, delta: Delta) -> tuple[TokenLogprob, ...]:
        """Those of a delta's tokens, an ending EOS left out; empty when they were not asked for."""
        if self._work.prepared.params.logprobs is None:
            return ()
        start = self._work.reported.get(sample, 0)
        self._work.reported[sample] = start + len(delta.token_ids)
        return self._backend.token_bytes.logprobs(output, start, delta.token_ids, self._backend.engine.eos_token_ids)

    def _stop(self, output: Output) -> Stop:
        if output.stop_reason == "stop_string":
            return "stop_sequence"
        if output.stop_reason == "context":
            return "context_window"
        if output.stop_reason == "length":
            return "context_window" if self._work.prepared.capped else "max_tokens"
        return "end_turn"

    def _begin(self) -> Iterator[ReplyEvent]:
        """``Started``, before everything else: the prompt's usage is known once its last position is computed."""
        if self._usage is None:
            self._usage = self._backend.begin(self._work, self._first)
            wanted = self._work.prepared.conversation.return_token_ids
            diagnostics = self._backend.diagnose(self._work)
            yield Started(self._usage, tuple(self._first.prompt_token_ids) if wanted else None, diagnostics)

    def _total(self) -> Usage:
        assert self._usage is not None, "a reply ends after it began"
        return replace(
            self._usage, output=sum(map(_num_output, self._runs)), thinking=sum(self._work.thoughts.values())
        )

    def _iterations(self) -> list[dict[str, Any]]:
        """Anthropic's token counts of each engine run; they add up to the whole reply's.

        The prompt is counted where it was computed, in the first: a run that answers goes on from its thinking.
        """
        assert self._usage is not None, "a reply ends after it began"
        prompts = [self._usage, *(Usage(0) for _ in self._runs[1:])]
        return [_iteration(prompt, run) for prompt, run in zip(prompts, self._runs, strict=True)]

    # -- thinking -------------------------------------------------------------------------------------------

    async def _think(self) -> AsyncIterator[ReplyEvent]:
        async with aclosing(merged([(0, self._first)])) as deltas:
            async for sample, run, delta in deltas:
                for event in self._begin():
                    yield event
                stream = self._samples[sample]
                stream.note_tokens(delta.token_ids)
                for event in stream.think(delta.text):
                    yield event
                if delta.finished and _ended_by_itself(run, run.outputs[sample]):
                    text = run.outputs[sample].text
                    for event in stream.end_thinking(lambda text=text: self._sign(text)):
                        yield event

    def _sign(self, text: str) -> str:
        conversation = self._work.prepared.conversation
        hidden = conversation.thinking is not None and conversation.thinking.display == "omitted"
        return self._backend.signer.sign(self._backend.name, text, embed=hidden)

    def _answer_runs(self) -> Iterator[tuple[int, Run]]:
        """One run per sample that goes on from its thinking; none where the context is full."""
        for sample, output in enumerate(self._first.outputs):
            self._work.thoughts[sample] = len(output.token_ids)
            prompt_ids = self._first.prompt_token_ids + self._backend.closed_thinking(output)
            room = self._backend.context - len(prompt_ids)
            if room > 0:
                params = self._work.prepared.answer_params(sample, len(output.token_ids), room)
                yield sample, self._submit(prompt_ids, params, self._work.constraint)


def _ended_by_itself(run: Run, output: Output) -> bool:
    """Whether a finished output is complete. Raises ``ApiError`` for one that was aborted; an error is the run's."""
    if output.stop_reason not in ("error", "aborted"):
        return True
    if run.error is None:
        raise ApiError("api_error", "the request was aborted")
    return False


def _num_output(run: Run) -> int:
    return sum(len(output.token_ids) for output in run.outputs)


def _iteration(prompt: Usage, run: Run) -> dict[str, Any]:
    counts = replace(prompt, output=_num_output(run)).anthropic()
    del counts["output_tokens_details"]
    return {"type": "message"} | counts


def run_seconds(runs: Sequence[Run]) -> dict[str, float]:
    """Where the time of a reply went in the engine (s), as far as it got.

    ``queue_s``: from submission to its first step; ``prefill_s``: from there to the first token; ``decode_s``: from
    there to the last token. The way from thinking to answering is part of ``decode_s``.
    """
    first = runs[0].times
    last = max((run.times.last_token for run in runs if run.times.last_token is not None), default=None)
    marks = {
        "queue_s": (first.submitted, first.scheduled),
        "prefill_s": (first.scheduled, first.first_token),
        "decode_s": (first.first_token, last),
    }
    return {name: (end - start) / 1e9 for name, (start, end) in marks.items() if start is not None and end is not None}
