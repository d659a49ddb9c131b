"""An engine on the mock model, and what it must answer: the oracle of the engine's tests."""

from __future__ import annotations

import torch

from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel, mock_next_token
from llmlab.engine.params import SamplingParams
from llmlab.engine.run import Run
from llmlab.engine.sampler import SampleInput, sample
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.trace import Recorder

EOS = ByteTokenizer.eos_token_id
VOCABULARY = ByteTokenizer.vocab_size


def mock_engine(
    *,
    num_blocks: int = 64,
    block_size: int = 4,
    budget: int = 64,
    slots: int = 8,
    policy: str = "continuous",
    prefix_cache: bool | str = True,
    record: bool = True,
    eos_every: int = 0,
    eos_token_ids: tuple[int, ...] = (EOS,),
    max_model_len: int = 4096,
    runner: MockModel | None = None,
    capacity: int = 200_000,
    host_blocks: int = 0,
    swap: str = "always",
) -> Engine:
    """A hand-stepped engine without a thread."""
    return Engine(
        runner or MockModel(num_blocks, block_size, max_model_len, eos_every),
        ByteTokenizer(),
        eos_token_ids=eos_token_ids,
        config=SchedulerConfig(budget, slots, policy),
        prefix_cache=prefix_cache,
        recorder=Recorder(capacity, enabled=record),
        host_blocks=host_blocks,
        swap=swap,
    )


def greedy(num_tokens: int, **params) -> SamplingParams:
    """Greedy parameters for ``num_tokens`` output tokens."""
    return SamplingParams(max_tokens=num_tokens, **params)


def prompt(length: int, start: int = 0) -> list[int]:
    """``length`` prompt tokens; prompts of one ``start`` are prefixes of each other, others differ at once."""
    return [(start * 31 + 7 * i + i * i) % 200 + 1 for i in range(length)]


def continuation(tokens: list[int], num_tokens: int, eos_every: int = 0) -> list[int]:
    """What the mock model prefers after ``tokens``, token by token, up to and including EOS."""
    tokens = list(tokens)
    output: list[int] = []
    while len(output) < num_tokens and (not output or output[-1] != EOS):
        output.append(mock_next_token([*tokens, *output], eos_every))
    return output


def sampled_continuation(tokens: list[int], params: SamplingParams, which: int = 0, eos_every: int = 0) -> list[int]:
    """What a seeded request must draw from the mock model, computed without an engine."""
    output: list[int] = []
    while len(output) < params.max_tokens:
        logits = torch.zeros(1, VOCABULARY)
        logits[0, mock_next_token([*tokens, *output], eos_every)] = 4.0
        place = len(tokens) + len(output)
        row = SampleInput(params, params.seed, which, place, tokens, output, len(output), (EOS,))
        output.append(sample(logits, [row])[0].token_id)
        if output[-1] == EOS:
            break
    return output


def assert_sound(engine: Engine) -> None:
    """No block leaked or doubly owned, and the recorded events agree with each other."""
    engine.check_integrity()
    assert engine.trace.check() == []


def assert_all_returned(engine: Engine) -> None:
    """The idle engine holds no block: free + cached = total."""
    assert not engine.scheduler.has_work
    assert engine.pool.num_used == 0
    assert engine.pool.num_free + engine.pool.num_cached == engine.pool.num_blocks
    assert_sound(engine)


def step_until(engine: Engine, condition, limit: int = 1000) -> None:
    """Step until ``condition()`` holds; fails when it never does."""
    for _ in range(limit):
        if condition():
            return
        assert engine.step(), "the engine is idle and the condition does not hold"
    raise AssertionError("the condition did not come true")


def streamed(run: Run, which: int = 0) -> tuple[list[int], str]:
    """Tokens and text of one sample as its stream of deltas gives them."""
    deltas = [delta for delta in run.deltas() if delta.sample == which]
    assert [delta.finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    return [i for delta in deltas for i in delta.token_ids], "".join(delta.text for delta in deltas)
