"""What is refused before a request reaches the queue, each time with the numbers and what would work."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.engine.params import SamplingParams
from llmlab.engine.runner import Capacity
from llmlab.errors import ContextOverflow, EmptyPrompt, InvalidParameter, PoolTooSmall


def check_prompt(token_ids: Sequence[int], capacity: Capacity) -> list[int]:
    """The prompt as a list of valid ids; raises ``EmptyPrompt``, ``InvalidParameter`` or ``ContextOverflow``."""
    ids = list(token_ids)
    if not ids:
        raise EmptyPrompt("the prompt has no tokens: give at least one, for example the tokenizer's BOS token")
    for position, token in enumerate(ids):
        if type(token) is not int or not 0 <= token < capacity.vocab_size:
            raise InvalidParameter(
                f"prompt token {position} is {token!r}: ids are integers from 0 to {capacity.vocab_size - 1}"
            )
    if len(ids) >= capacity.max_model_len:
        raise ContextOverflow(
            f"the prompt has {len(ids)} tokens and the context {capacity.max_model_len}: at most "
            f"{capacity.max_model_len - 1} leave room for one output token"
        )
    return ids


def resolve_max_tokens(num_prompt: int, params: SamplingParams, capacity: Capacity) -> int:
    """Most output tokens of a request; ``max_tokens=None`` takes what context and pool leave.

    Raises ``ContextOverflow`` when an explicit value does not fit the context, ``PoolTooSmall`` when the prompt alone
    leaves the pool no room.
    """
    room = capacity.max_model_len - num_prompt
    if params.max_tokens is not None:
        if params.max_tokens > room:
            raise ContextOverflow(
                f"{num_prompt} prompt + max_tokens={params.max_tokens} exceed the context of "
                f"{capacity.max_model_len} tokens: use max_tokens of at most {room}"
            )
        return params.max_tokens
    pool_room = capacity.num_blocks * capacity.block_size + 1 - num_prompt
    if pool_room < 1:
        raise PoolTooSmall(
            f"the prompt has {num_prompt} tokens, the pool holds {capacity.num_blocks * capacity.block_size}: "
            f"shorten the prompt or use num_blocks >= {-(-num_prompt // capacity.block_size)}"
        )
    return min(room, pool_room)
