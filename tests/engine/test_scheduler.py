"""The scheduler by itself: integers in, rows out."""

from __future__ import annotations

import pytest

from llmlab.engine.blocks import BlockPool
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import StepPlan
from llmlab.engine.request import Request, Status, StopReason
from llmlab.engine.scheduler import Scheduler, SchedulerConfig
from llmlab.errors import InvalidParameter


class Harness:
    """A scheduler, and a forward pass that gives every sampling row the token 1."""

    def __init__(self, *, num_blocks: int = 16, block_size: int = 4, budget: int = 16, slots: int = 4, **config):
        self.scheduler = Scheduler(BlockPool(num_blocks, block_size), SchedulerConfig(budget, slots, **config))
        self.steps = 0

    def add(self, name: str, length: int, max_tokens: int = 8, priority: int = 0, n: int = 1) -> Request:
        requests = [
            Request(
                name if i == 0 else f"{name}.{i}",
                [ord(name[0])] * length,
                SamplingParams(n=n),
                seed=0,
                max_tokens=max_tokens,
                priority=priority,
                arrival=self._arrival(),
                sample=i,
                parent_id=name if i else None,
            )
            for i in range(n)
        ]
        requests[0].children = requests[1:]
        self.scheduler.check_fits(requests[0])
        self.scheduler.add(requests[0])
        return requests[0]

    def _arrival(self) -> int:
        self._arrivals = getattr(self, "_arrivals", -1) + 1
        return self._arrivals

    def step(self) -> StepPlan:
        plan = self.scheduler.schedule(self.steps)
        self.steps += 1
        for row in plan.rows:
            self.scheduler.advance(row)
            if row.samples:
                for request in (row.request, *self.scheduler.fork(row.request)):
                    request.tokens.append(1)
                    if request.num_output == request.max_tokens:
                        self.scheduler.finish(request, StopReason.LENGTH)
        self.scheduler.check_integrity()
        return plan

    def batch(self) -> list[tuple[str, int, int]]:
        return [(row.request.id, row.start, row.num_tokens) for row in self.step().rows]


def test_prefill_and_decode_share_a_step():
    serving = Harness()
    serving.add("a", 5)
    assert serving.batch() == [("a", 0, 5)]
    serving.add("b", 3)
    assert serving.batch() == [("a", 5, 1), ("b", 0, 3)]
    assert serving.batch() == [("a", 6, 1), ("b", 3, 1)]


def test_a_long_prompt_is_computed_in_chunks_of_the_budget():
    serving = Harness(budget=8)
    request = serving.add("a", 19)
    assert [serving.batch() for _ in range(4)] == [
        [("a", 0, 8)],
        [("a", 8, 8)],
        [("a", 16, 3)],
        [("a", 19, 1)],
    ]
    assert request.num_output == 2


def test_decoding_requests_come_before_a_chunk():
    serving = Harness(budget=4)
    serving.add("a", 2)
    serving.step()
    serving.add("b", 9)
    assert serving.batch() == [("a", 2, 1), ("b", 0, 3)]


def test_only_the_row_that_reaches_the_end_samples():
    serving = Harness(budget=4)
    serving.add("a", 6)
    first, second = serving.step().rows[0], serving.step().rows[0]
    assert (first.samples, first.num_logits, first.is_prefill) == (False, 0, True)
    assert (second.samples, second.num_logits, second.is_prefill) == (True, 1, True)
    third = serving.step().rows[0]
    assert (third.samples, third.is_prefill) == (True, False)


def test_prompt_logprobs_ask_for_logits_of_every_position():
    serving = Harness(budget=4)
    request = serving.add("a", 6)
    request.params = SamplingParams(prompt_logprobs=0)
    assert serving.step().rows[0].num_logits == 4


def test_the_step_never_exceeds_its_budget_or_its_slots():
    serving = Harness(num_blocks=64, budget=6, slots=3)
    for name in "abcdefgh":
        serving.add(name, 5, max_tokens=4)
    while serving.scheduler.has_work:
        plan = serving.step()
        assert plan.num_tokens <= 6
        assert len(plan.rows) <= 3


def test_a_request_is_admitted_only_with_room_for_all_its_tokens():
    serving = Harness(num_blocks=4, budget=4)
    serving.add("a", 5, max_tokens=3)
    serving.step()
    serving.add("b", 10, max_tokens=2)
    assert [name for name, *_ in serving.batch()] == ["a"]  # 3 blocks for b, 2 are left


def test_the_head_of_the_queue_is_never_overtaken():
    serving = Harness(num_blocks=4)
    serving.add("a", 5, max_tokens=4)
    serving.step()
    serving.add("b", 10, max_tokens=2)
    serving.add("c", 1, max_tokens=1)
    while serving.scheduler.waiting and serving.scheduler.waiting[0].id == "b":
        assert [name for name, *_ in serving.batch()][:1] != ["c"]
    order = [request.id for request in serving.scheduler.running]
    assert order[0] == "b"


def test_a_preempted_request_keeps_tokens_and_place_and_gives_up_its_blocks():
    serving = Harness(num_blocks=4, block_size=2)
    serving.add("a", 3, max_tokens=5)
    victim = serving.add("b", 3, max_tokens=5)
    later = serving.add("c", 2, max_tokens=1)
    while victim.status is not Status.PREEMPTED:
        serving.step()
    assert (victim.block_table, victim.num_computed) == ([], 0)
    assert victim.num_output >= 1
    assert [request.id for request in serving.scheduler.waiting] == ["b", "c"]
    assert victim.lost == victim.num_prompt + victim.num_output - 1
    while serving.scheduler.has_work:
        serving.step()
    assert victim.num_output == 5
    assert later.num_output == 1


def test_nobody_is_admitted_in_the_step_of_a_preemption():
    serving = Harness(num_blocks=6, block_size=2)
    for name in "abc":
        serving.add(name, 3, max_tokens=6)
    seen = 0
    while serving.scheduler.has_work:
        waiting = {request.id for request in serving.scheduler.waiting}
        before = {request.id: request.num_preemptions for request in serving.scheduler.running}
        running = [*serving.scheduler.running]
        names = {name for name, *_ in serving.batch()}
        if any(request.num_preemptions > before[request.id] for request in running):
            assert not names & waiting
            seen += 1
    assert seen


def test_the_first_running_request_is_never_preempted():
    serving = Harness(num_blocks=6, block_size=2)
    requests = [serving.add(name, 3, max_tokens=8) for name in "abcd"]
    while serving.scheduler.has_work:
        first = serving.scheduler.running[0] if serving.scheduler.running else None
        serving.step()
        assert first is None or first.status is not Status.PREEMPTED
    assert sum(request.num_preemptions for request in requests) > 0


def test_a_group_needs_all_its_slots_before_its_prompt_begins():
    serving = Harness(slots=3)
    serving.add("a", 2, max_tokens=3)
    serving.step()
    serving.add("g", 2, n=3, max_tokens=1)
    assert [name for name, *_ in serving.batch()] == ["a"]
    serving.step()
    assert [name for name, *_ in serving.batch()] == ["g"]


def test_forked_samples_share_blocks_and_copy_before_they_write():
    serving = Harness()
    parent = serving.add("g", 6, n=3)
    serving.step()
    tables = [request.block_table for request in serving.scheduler.running]
    assert tables[0] == tables[1] == tables[2]
    plan = serving.step()
    assert [row.request.id for row in plan.rows] == ["g", "g.1", "g.2"]
    assert [source for source, _ in plan.copies] == [tables[2][1]] * 2  # the last one keeps the original
    firsts = {request.block_table[0] for request in serving.scheduler.running}
    lasts = {request.block_table[1] for request in serving.scheduler.running}
    assert (len(firsts), len(lasts)) == (1, 3)
    assert parent.children == []


@pytest.mark.parametrize("status", ["waiting", "running", "preempted", "pending child"])
def test_finish_frees_a_request_in_every_state(status):
    serving = Harness(num_blocks=5, block_size=2)
    serving.add("a", 3, max_tokens=7)
    request = serving.add("b", 3, max_tokens=7, n=2 if status == "pending child" else 1)
    if status == "pending child":
        request = request.children[0]
    elif status == "running":
        serving.step()
    elif status == "preempted":
        while request.status is not Status.PREEMPTED:
            serving.step()
    serving.scheduler.finish(request, StopReason.ABORTED)
    assert (request.status, request.block_table) == (Status.FINISHED, [])
    assert request not in [*serving.scheduler.waiting, *serving.scheduler.running]
    serving.scheduler.check_integrity()


def test_a_second_finish_does_nothing():
    serving = Harness()
    request = serving.add("a", 3)
    serving.scheduler.finish(request, StopReason.ABORTED)
    serving.scheduler.finish(request, StopReason.LENGTH)
    assert request.stop_reason is StopReason.ABORTED


@pytest.mark.parametrize("bad", [{"budget": 0}, {"slots": 0}, {"budget": 2.5}, {"policy": "greedy"}])
def test_a_config_that_cannot_work_is_refused(bad):
    with pytest.raises(InvalidParameter):
        Harness(**bad)
