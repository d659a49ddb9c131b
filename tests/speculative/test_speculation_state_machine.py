"""Random serving with speculation on: the engine's own state machine, where drafts are right, wrong, drawn or held."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

from guessing import Guesser, speculating_engine
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from mock_serving import continuation, sampled_continuation
from test_engine_state_machine import ENGINES, EOS_EVERY, LONGEST, Serving, _mixtures

from llmlab.engine.params import SamplingParams
from llmlab.engine.run import Run

# how often a guess is right, length of a draft, whether it is drawn, adaptive
SPECULATIONS = _mixtures(100, (0.0, 0.5, 0.9, 0.9, 1.0), (1, 2, 4, 8), (False, False, True), (False, False, True))


@cache
def _alone(right: float, k: int, tokens: tuple[int, ...], max_tokens: int, n: int, seed: int) -> list[list[int]]:
    """A seeded request's samples in an engine that has room for everything, with drawn drafts."""
    params = SamplingParams(max_tokens=max_tokens, n=n, temperature=1.0, seed=seed)
    with patch("llmlab.engine.info.versions", return_value={}):
        engine = speculating_engine(
            Guesser(right, EOS_EVERY, draws=True), k=k, eos_every=EOS_EVERY, record=False, prefix_cache=False
        )
    return [output.token_ids for output in engine.submit(list(tokens), params).wait().outputs]


class Speculating(Serving):
    """The rules and invariants of :class:`Serving`; every stream must still hold what the oracle knows."""

    @initialize(shape=st.sampled_from(ENGINES), speculation=st.sampled_from(SPECULATIONS))
    def open(self, shape, speculation):
        block_size, spare, budget, slots, policy, prefix_cache, record, host_blocks = shape
        self.right, self.k, self.draws, self.adaptive = speculation
        with patch("llmlab.engine.info.versions", return_value={}):
            self.engine = speculating_engine(
                Guesser(self.right, EOS_EVERY, self.draws),
                k=self.k,
                adaptive=self.adaptive,
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

    def expected(self, run: Run, which: int) -> list[int]:
        params = run.params
        if params.greedy:
            return continuation(run.prompt_token_ids, params.max_tokens, EOS_EVERY)
        if not self.draws or self.adaptive:  # named drafts change nothing
            return sampled_continuation(run.prompt_token_ids, params, which, EOS_EVERY)
        key = (self.right, self.k, tuple(run.prompt_token_ids), params.max_tokens, params.n, params.seed)
        return _alone(*key)[which]


TestSpeculating = Speculating.TestCase
TestSpeculating.settings = settings(settings.get_profile("engine"), max_examples=250, stateful_step_count=6)
