"""Consistent traces without a model: the real scheduler and block pool, random tokens, real clock."""

from __future__ import annotations

import random
from time import perf_counter_ns

from hypothesis import strategies as st

from llmlab.engine.blocks import BlockPool
from llmlab.engine.journal import Journal
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request, StopReason
from llmlab.engine.scheduler import Scheduler, SchedulerConfig
from llmlab.trace.events import (
    BlockEvent,
    Decision,
    EngineInfo,
    Event,
    RequestFinished,
    RequestSubmitted,
    Step,
    StepRow,
    TextEmitted,
    Token,
)
from llmlab.trace.recorder import Recorder

BLOCK_SIZE = 4


def make_info(t_ns: int, num_blocks: int, budget: int, slots: int) -> EngineInfo:
    return EngineInfo(
        t_ns=t_ns,
        wall_time=1.0e9,
        model="synthetic",
        device="none",
        dtype="none",
        num_layers=1,
        num_kv_heads=1,
        head_dim=1,
        vocab_size=1000,
        block_size=BLOCK_SIZE,
        num_blocks=num_blocks,
        kv_bytes_per_token=8,
        max_num_batched_tokens=budget,
        max_num_seqs=slots,
        max_model_len=1000,
        policy="continuous",
        prefix_cache="hash",
        versions={},
    )


class SyntheticEngine:
    """Steps the real scheduler; every token is random, every phase takes as long as it takes."""

    def __init__(self, num_blocks: int = 16, budget: int = 12, slots: int = 4, seed: int = 0) -> None:
        self.recorder = Recorder()
        self.recorder.emit(make_info(perf_counter_ns(), num_blocks, budget, slots))
        self.journal = Journal(self.recorder)
        self.pool = BlockPool(num_blocks, BLOCK_SIZE, journal=self.journal)
        self.scheduler = Scheduler(self.pool, SchedulerConfig(budget, slots), self.journal)
        self.random = random.Random(seed)
        self.open: dict[str, Request] = {}
        self.count = 0

    def submit(self, prompt: list[int], max_tokens: int = 4, n: int = 1) -> str:
        first = f"r{self.count}"
        with self.recorder.span("render template", first):
            pass
        with self.recorder.span("tokenize", first):
            pass
        group = [self._make(first, prompt, max_tokens, sample) for sample in range(n)]
        group[0].children = group[1:]
        for request in group:
            self._announce(request)
        self.scheduler.check_fits(group[0])
        self.scheduler.add(group[0])
        return first

    def _make(self, first: str, prompt: list[int], max_tokens: int, sample: int) -> Request:
        self.count += 1
        return Request(
            id=f"{first}.{sample}" if sample else first,
            prompt_token_ids=prompt,
            params=SamplingParams(),
            seed=0,
            max_tokens=max_tokens,
            arrival=self.count,
            sample=sample,
            parent_id=first if sample else None,
        )

    def _announce(self, request: Request) -> None:
        self.open[request.id] = request
        prompt = tuple(request.prompt_token_ids)
        self.recorder.emit(
            RequestSubmitted(perf_counter_ns(), request.id, request.parent_id, 0, "some text", prompt, {})
        )

    def step(self) -> None:
        start = perf_counter_ns()
        plan = self.scheduler.schedule(self.journal.step)
        pool = self.pool
        queues = len(self.scheduler.waiting), len(self.scheduler.running)
        counts = (*queues, pool.num_free, pool.num_cached, pool.num_used)
        marks = [start, perf_counter_ns(), perf_counter_ns(), perf_counter_ns()]
        sampling = []
        for row in plan.rows:
            self.scheduler.advance(row)
            if row.samples:
                sampling += [row.request, *self.scheduler.fork(row.request)]
        marks.append(perf_counter_ns())
        for request in sampling:
            self._choose(request)
        marks.append(perf_counter_ns())
        for request in sampling:
            self._emit(request)
        rows = tuple(
            StepRow(r.request.id, r.start, r.num_tokens, r.num_cached, r.is_prefill, r.samples) for r in plan.rows
        )
        self.recorder.emit(Step(*marks, perf_counter_ns(), plan.step, rows, *counts))
        self.journal.step += 1

    def _choose(self, request: Request) -> None:
        token = self.random.randrange(1000)
        self.recorder.emit(
            Token(perf_counter_ns(), self.journal.step, request.id, len(request.tokens), token, -1.5, "target")
        )
        request.tokens.append(token)

    def _emit(self, request: Request) -> None:
        self.recorder.emit(TextEmitted(perf_counter_ns(), self.journal.step, request.id, "x", request.num_output))
        if request.num_output >= request.max_tokens:
            self.end(request.id, StopReason.LENGTH)

    def end(self, request_id: str, reason: StopReason) -> None:
        request = self.open.pop(request_id)
        self.scheduler.finish(request, reason)
        for child in request.children:
            self.end(child.id, reason)
        self.recorder.emit(
            RequestFinished(perf_counter_ns(), self.journal.step, request.id, str(reason), None, request.usage())
        )

    def run(self) -> list[Event]:
        while self.scheduler.has_work:
            self.step()
        return self.recorder.snapshot()


def story() -> list[Event]:
    """Chunked prefill, a prefix hit, preemption, three samples of one prompt, an abort: all in 21 blocks."""
    engine = SyntheticEngine(num_blocks=13, budget=12, slots=4)
    shared = list(range(100, 116))
    engine.submit([*shared, 1, 2], max_tokens=12)
    engine.step()
    engine.step()
    engine.submit([*shared, 3], max_tokens=14)
    engine.submit(list(range(9)), max_tokens=10)
    engine.step()
    doomed = engine.submit([7] * 5, max_tokens=5)
    engine.step()
    engine.end(doomed, StopReason.ABORTED)
    engine.run()
    engine.submit(list(range(200, 210)), max_tokens=3, n=3)
    return engine.run()


MS = 1_000_000


def clockwork() -> list[Event]:
    """A hand-written trace with round times (ms): r0 runs in steps 0, 1 and 3; r1 waits, runs in 2, is
    preempted at 31 in step 3 and never resumes. Block size 4, four blocks."""

    def step(number: int, at: int, rows: list[StepRow], used: int) -> Step:
        marks = [(at + i) * MS for i in range(7)]
        return Step(*marks, number, tuple(rows), 1, len(rows), 4 - used, 0, used)

    def decision(at: float, number: int, who: str, action: str, reason: str, n: int = 0, by=None) -> Decision:
        return Decision(int(at * MS), number, who, action, reason, n, by)

    def block(at: float, number: int, block_id: int, action: str, who: str, index: int, ref: int) -> BlockEvent:
        return BlockEvent(int(at * MS), number, block_id, action, who, index, ref, "")

    usage = {"prompt_tokens": 5, "cached_tokens": 0, "output_tokens": 2, "recomputed_tokens": 0}
    return [
        make_info(0, num_blocks=4, budget=4, slots=4),
        RequestSubmitted(2 * MS, "r0", None, 0, "hello", (1, 2, 3, 4, 5), {"temperature": 0.0}),
        RequestSubmitted(3 * MS, "r1", None, 0, None, (6, 7), {}),
        decision(3, 0, "r1", "waited", "behind"),
        decision(4.5, 0, "r0", "admitted", "fits"),
        decision(4.5, 0, "r0", "ran", "chunk", 4),
        block(4.5, 0, 0, "allocate", "r0", 0, 1),
        step(0, 4, [StepRow("r0", 0, 4, 0, True, False)], used=1),
        block(10.5, 1, 1, "allocate", "r0", 1, 1),
        decision(10.5, 1, "r0", "ran", "prefill", 1),
        Token(14 * MS, 1, "r0", 5, 50, -0.5, "target", ((50, -0.5), (51, -2.0))),
        TextEmitted(15 * MS, 1, "r0", "a", 1),
        step(1, 10, [StepRow("r0", 4, 1, 0, True, True)], used=2),
        decision(20.5, 2, "r0", "waited", "budget"),
        decision(20.5, 2, "r1", "admitted", "fits"),
        decision(20.5, 2, "r1", "ran", "prefill", 1),
        block(20.5, 2, 2, "allocate", "r1", 0, 1),
        step(2, 20, [StepRow("r1", 0, 1, 0, True, False)], used=3),
        block(30.5, 3, 2, "free", "r1", 0, 0),
        decision(30.5, 3, "r1", "preempted", "blocks", by="r0"),
        decision(30.6, 3, "r0", "ran", "decode", 1),
        Token(34 * MS, 3, "r0", 6, 51, -1.0, "target"),
        block(35.2, 3, 1, "free", "r0", 1, 0),
        block(35.2, 3, 0, "free", "r0", 0, 0),
        decision(35.2, 3, "r0", "finished", "length"),
        TextEmitted(int(35.3 * MS), 3, "r0", "b", 2),
        RequestFinished(int(35.5 * MS), 3, "r0", "length", None, usage),
        step(3, 30, [StepRow("r0", 5, 1, 0, False, True)], used=2),
        step(4, 40, [], used=0),
    ]


@st.composite
def traces(draw) -> list[Event]:
    """Random workloads on a small pool: arrivals while others run, shared prefixes, groups, aborts."""
    engine = SyntheticEngine(
        num_blocks=draw(st.sampled_from([9, 10, 12, 24])),
        budget=draw(st.integers(3, 16)),
        slots=draw(st.integers(3, 5)),
        seed=draw(st.integers(0, 100)),
    )
    for _ in range(draw(st.integers(0, 7))):
        prefix = list(range(500, 512))[: draw(st.integers(0, 12))]
        tail = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
        request_id = engine.submit(prefix + tail, 16 - draw(st.integers(0, 15)), n=draw(st.integers(1, 3)))
        for _ in range(draw(st.integers(0, 3))):
            if engine.scheduler.has_work:
                engine.step()
        if draw(st.booleans()) and request_id in engine.open and draw(st.booleans()):
            engine.end(request_id, StopReason.ABORTED)
    return engine.run() if draw(st.booleans()) else engine.recorder.snapshot()
