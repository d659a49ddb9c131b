"""A request that is looked into decodes plainly, beside others that speculate."""

from __future__ import annotations

import numpy as np
import pytest
from looking import hidden_states, model_of
from tiny_models import as_loaded

from llmlab.engine.build import build_runner
from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.config import Speculation
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.probes import Ablate, Capture

REPEATING, LONG = [5, 6, 7, 8] * 5, SamplingParams(max_tokens=20, logprobs=0)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_captures_and_neighbours_are_right_while_drafts_are_verified(name):
    model = model_of(name)
    runner = build_runner(as_loaded(model), block_size=4, num_blocks=64)
    speculation = Speculation("ngram", adaptive=False)
    engine = Engine(runner, ByteTokenizer(), config=SchedulerConfig(64, 8), speculation=speculation)
    plain = engine.submit([1, *REPEATING], LONG).wait()
    others = [engine.submit([1, *REPEATING], LONG) for _ in range(2)]
    captured = engine.submit([2, *REPEATING], LONG, capture=Capture(hidden=True, lens=True))
    changed = engine.submit([3, *REPEATING], LONG, intervene=Ablate(layer=0, head=0))
    engine.run_until_idle()
    proposed = engine.trace.tokens[engine.trace.tokens.source.isin(["accepted", "bonus"])]
    assert set(proposed.request_id) <= {plain.id, *(run.id for run in others)}
    drafted = {event.request_id for event in engine.trace.events if type(event).__name__ == "DraftRound"}
    assert others[0].id in drafted
    assert not drafted & {captured.id, changed.id}
    assert all(run.token_ids == plain.token_ids for run in others)
    states = hidden_states(model, [2, *REPEATING, *captured.token_ids[:-1]])
    hidden = captured.captured.hidden
    assert hidden.labels["position"] == tuple(range(40))
    np.testing.assert_allclose(hidden.values[1], states[1], atol=5e-5, rtol=2e-5)
    assert captured.captured.lens.error.values.max() < 5e-5
    assert engine.trace.check() == []
