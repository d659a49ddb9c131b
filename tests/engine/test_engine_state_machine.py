"""Random serving: requests come, run, are aborted and finish on random pools, and nothing is ever lost."""

from __future__ import annotations

from random import Random
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from mock_serving import EOS, assert_all_returned, continuation, mock_engine, prompt, sampled_continuation, streamed

from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Status
from llmlab.engine.run import Run

EOS_EVERY = 41


def _mixtures(count: int, *columns: tuple) -> list[tuple]:
    """Rows with a random entry of each column: drawing a whole row is far cheaper than drawing every entry."""
    dice = Random(0)
    return [tuple(map(dice.choice, columns)) for _ in range(count)]


LONGEST = 8 + 10 - 1
# block_size, blocks beyond what the longest request needs, token budget, slots, policy, prefix cache, recorded, blocks
# of the host pool
ENGINES = _mixtures(
    300,
    (2, 2, 3, 4),
    (0, 0, 1, 3),
    (2, 5, 8, 32, 32),
    (2, 3, 4, 4, 1),
    ("continuous", "continuous", "static"),
    ("hash", "radix", "hash", "radix", "off"),
    (True, *[False] * 9),
    (0, 0, 2, 5, 12),
)
# salt, family of prompts, prompt length, max_tokens, n, priority, kind of request
REQUESTS = _mixtures(
    400,
    ("", "", "", "other"),
    (0, 0, 1),
    tuple(range(1, 9)),
    (1, 2, 4, 7, 10),
    (1, 1, 1, 2, 3),
    (0, 0, 1),
    ("greedy", "greedy", "greedy", "seeded", "scored"),
)
BURSTS = [REQUESTS[i : i + 1 + i % 3] for i in range(398)]


class Serving(RuleBasedStateMachine):
    """Submits, steps, aborts and waits at random; the oracle knows what every stream must hold."""

    @initialize(shape=st.sampled_from(ENGINES))
    def open(self, shape):
        block_size, spare, budget, slots, policy, prefix_cache, record, host_blocks = shape
        # looking up package versions takes most of an engine's construction
        with patch("llmlab.engine.info.versions", return_value={}):
            self.engine = mock_engine(
                num_blocks=-(-LONGEST // block_size) + spare,
                block_size=block_size,
                budget=budget,
                slots=slots,
                policy=policy,
                prefix_cache=prefix_cache,
                record=record,
                eos_every=EOS_EVERY,
                host_blocks=host_blocks,
            )
        self.open_runs: list[Run] = []
        self.ended: list[Run] = []
        self.aborted: set[str] = set()

    @rule(burst=st.sampled_from(BURSTS))
    def submit(self, burst):
        for request in burst:
            self._submit(*request)

    def _submit(self, salt, family, length, max_tokens, n, priority, kind):
        params = SamplingParams(
            max_tokens=max_tokens,
            n=min(n, self.engine.scheduler.config.max_num_seqs),
            temperature=1.0 if kind == "seeded" else 0.0,
            seed=family * 7 + length if kind == "seeded" else None,
            prompt_logprobs=0 if kind == "scored" else None,
            cache_salt=salt,
        )
        self.open_runs.append(self.engine.submit(prompt(length, family), params, priority=priority))

    @rule(times=st.sampled_from((1, 2, 4)))
    def step(self, times):
        for _ in range(times):
            self._step()

    def _step(self) -> None:
        scheduler = self.engine.scheduler
        before = {request.id for request in scheduler.running}
        worked = self.engine.step()
        assert worked or not scheduler.has_work
        self._nobody_overtook(before)

    def _nobody_overtook(self, before: set[str]) -> None:
        """Nobody was admitted while an earlier request kept waiting."""
        scheduler = self.engine.scheduler
        admitted = [r.order for r in scheduler.running if r.id not in before and r.parent_id is None]
        if admitted and scheduler.waiting:
            assert max(admitted) < scheduler.waiting[0].order

    @precondition(lambda self: self.open_runs)
    @rule(which=st.integers(0, 7))
    def abort(self, which):
        run = self.open_runs[which % len(self.open_runs)]
        if not run.finished:
            self.aborted.add(run.id)
        run.abort()

    @precondition(lambda self: self.open_runs)
    @rule(which=st.integers(0, 7))
    def finish(self, which):
        self.open_runs[which % len(self.open_runs)].wait()

    @invariant()
    def blocks_have_owners_and_streams_are_right(self):
        self.engine.check_integrity()
        for run in [run for run in self.open_runs if run.finished]:
            self.open_runs.remove(run)
            self.ended.append(run)
            self._check_run(run)

    def _check_run(self, run: Run) -> None:
        assert run.error is None
        for which, output in enumerate(run.outputs):
            tokens, text = streamed(run, which)
            assert (tokens, text) == (output.token_ids, output.text)
            expected = self.expected(run, which)
            if output.stop_reason == "aborted":
                assert run.id in self.aborted
                assert tokens == expected[: len(tokens)]
            else:
                assert tokens == expected
                assert output.stop_reason == ("eos" if tokens[-1] == EOS else "length")
        if run.params.prompt_logprobs is not None and run.id not in self.aborted:
            assert len(run.prompt_logprobs) == len(run.prompt_token_ids) - 1

    def expected(self, run: Run, which: int) -> list[int]:
        if run.params.greedy:
            return continuation(run.prompt_token_ids, run.params.max_tokens, EOS_EVERY)
        return sampled_continuation(run.prompt_token_ids, run.params, which, EOS_EVERY)

    def teardown(self):
        if not hasattr(self, "engine"):
            return
        live = [r for r in self.engine._sequences.values() if r.request.status is not Status.FINISHED]
        bound = 1 + sum(len(run.prompt_token_ids) + run.params.max_tokens for run in self.open_runs) * (
            1 + 3 * len(self.open_runs)
        )
        assert self.engine.run_until_idle() <= bound, f"starved: {live}"
        self.blocks_have_owners_and_streams_are_right()
        assert self.open_runs == []
        assert_all_returned(self.engine)


TestServing = Serving.TestCase
TestServing.settings = settings(settings.get_profile("engine"), max_examples=2000, stateful_step_count=6)
