"""K/V bytes by step: what the blocks took, and what the formula gives for the tokens in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from llmlab.trace.events import EngineInfo
from llmlab.trace.index import Index
from llmlab.views.pool import pool_per_step

MLA_LATENT, MLA_ROPE = 512, 64  # values a token and layer of DeepSeek-V2 and V3


@dataclass(frozen=True, slots=True)
class Costs:
    """Bytes of one token over all layers, computed from the shape of the model.

    ``formula`` is 2 x layers x K/V heads x head dimension x bytes of a number; ``mha`` the same with one K/V head for
    each query head (0 when their number is not known); ``mla`` one compressed latent for each layer. ``pool`` is what
    the engine reserved: the same as ``formula`` where all layers have one shape.
    """

    pool: int
    number: float
    formula: float
    mha: float
    mla: float

    @property
    def is_uniform(self) -> bool:
        """Whether the formula describes the pool: every layer has the same heads, and keys are as wide as values."""
        return self.pool == self.formula


def costs(info: EngineInfo) -> Costs:
    """The costs for an engine; a number takes a whole number of bytes when the formula describes the pool."""
    per_number = 2 * info.num_layers * info.num_kv_heads * info.head_dim
    number = max(1, info.kv_bytes_per_token // per_number) if per_number else 1
    mha = 2 * info.num_layers * info.num_heads * info.head_dim * number
    mla = info.num_layers * (MLA_LATENT + MLA_ROPE) * number
    return Costs(info.kv_bytes_per_token, number, per_number * number, mha, mla)


@dataclass(frozen=True, slots=True)
class Growth:
    """For each step the blocks in use, and the tokens in them (-1 where the events do not account for the blocks)."""

    steps: np.ndarray
    blocks: np.ndarray
    tokens: np.ndarray

    @property
    def known(self) -> np.ndarray:
        """Steps whose tokens are known."""
        return self.tokens >= 0

    @property
    def peak(self) -> int:
        """Place of the step with most blocks, of those with known tokens if there is one."""
        weight = self.blocks + np.where(self.known, self.blocks.max(initial=0) + 1, 0)
        return int(weight.argmax())


def pool_growth(index: Index) -> Growth:
    """Of the whole pool; blocks are those each step recorded, tokens in shared blocks count once."""
    rows = []
    for step, pool in pool_per_step(index):
        agrees = pool.num_used == step.used and pool.num_tokens <= step.used * pool.block_size
        rows.append((step.step, step.used, pool.num_tokens if agrees else -1))
    return _growth(rows)


def request_growth(index: Index, request_id: str) -> Growth:
    """Of one request's block table, from the first to the last step in which it has one; shared blocks count
    wholly."""
    rows = []
    for step, pool in pool_per_step(index):
        blocks = len(pool.tables.get(request_id, ()))
        tokens = pool.reached.get(request_id, -1 if blocks else 0)
        rows.append((step.step, blocks, tokens if tokens <= blocks * pool.block_size else -1))
    growth = _growth(rows)
    held = np.flatnonzero(growth.blocks)
    span = slice(held[0], held[-1] + 1) if len(held) else slice(0)
    return Growth(growth.steps[span], growth.blocks[span], growth.tokens[span])


def _growth(rows: list[tuple[int, int, int]]) -> Growth:
    return Growth(*np.array(rows, dtype=np.int64).reshape(-1, 3).T)


def growth_frame(growth: Growth, info: EngineInfo, cost: Costs) -> pd.DataFrame:
    """One row a step; what is not known is ``<NA>``."""
    known = growth.known
    tokens = pd.array(growth.tokens, dtype="Int64")
    tokens[~known] = pd.NA
    frame = pd.DataFrame(
        {
            "step": growth.steps,
            "used_blocks": growth.blocks,
            "tokens": tokens,
            "unfilled_slots": growth.blocks * info.block_size - tokens,
            "measured_bytes": growth.blocks * (info.block_size * cost.pool),
        }
    )
    for name, per_token in (("formula", cost.formula), ("mha", cost.mha), ("mla", cost.mla)):
        frame[f"{name}_bytes"] = tokens * int(per_token) if per_token else pd.array([pd.NA] * len(frame), dtype="Int64")
    return frame


def size(num_bytes: float) -> str:
    """Bytes in the unit that suits them, in powers of 1,024."""
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = 0
    while num_bytes >= 1_024 and power < len(units) - 1:
        num_bytes, power = num_bytes / 1_024, power + 1
    places = 0 if power == 0 or num_bytes >= 100 else 1 if num_bytes >= 10 else 2
    shown = f"{num_bytes:,.{places}f}"
    return f"{shown.rstrip('0').rstrip('.') if places else shown} {units[power]}"
