"""What a simulated fleet is made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llmlab.engine.scheduler import Policy, SchedulerConfig
from llmlab.errors import InvalidParameter
from llmlab.gateway.balancing import ROUTINGS
from llmlab.planner.fleet.drafts import Speculating
from llmlab.planner.links import Link, link
from llmlab.planner.step_time import StepModel
from llmlab.trace.events import EngineInfo


@dataclass(frozen=True, slots=True)
class Fleet:
    """Equal replicas, each one scheduler and one block pool, whose steps take as long as ``times`` says.

    ``reserve``: the share of ``max_tokens`` that admission keeps blocks for. ``prefill_replicas``: so many more
    replicas compute prompts only and hand their K/V (``kv_bytes_per_token``) over ``link`` to the others, which decode;
    each has a link of its own (a name, or a ``Link``), which carries one prompt after the other.
    Raises ``InvalidParameter`` for a combination that cannot be.
    """

    times: StepModel
    replicas: int = 1
    num_blocks: int = 512
    block_size: int = 16
    max_num_batched_tokens: int = 512
    max_num_seqs: int = 8
    policy: Policy = "continuous"
    prefix_cache: bool = True
    routing: str = "least_loaded"
    reserve: float = 0.0
    speculation: Speculating | None = None
    prefill_replicas: int = 0
    link: str | Link | None = None
    kv_bytes_per_token: int = 0
    model: str = "a model"

    def __post_init__(self) -> None:
        if self.routing not in ROUTINGS:
            raise InvalidParameter(f"routing={self.routing!r} is none: choose one of {', '.join(ROUTINGS)}")
        for name, least in (("replicas", 1), ("prefill_replicas", 0), ("num_blocks", 1), ("block_size", 1)):
            if type(value := getattr(self, name)) is not int or value < least:
                raise InvalidParameter(f"{name}={value!r} must be a whole number of at least {least}")
        if self.link is not None:
            object.__setattr__(self, "link", link(self.link))
        if self.prefill_replicas and (self.link is None or self.kv_bytes_per_token < 1):
            raise InvalidParameter(
                "prefill_replicas need a link= (its name, or a Link) and kv_bytes_per_token=: what is sent, on what"
            )
        if self.prefill_replicas and self.reserve:
            raise InvalidParameter("reserve= and prefill_replicas= cannot be combined: leave one of them out")
        SchedulerConfig(self.max_num_batched_tokens, self.max_num_seqs, self.policy)

    def with_(self, **changes: Any) -> Fleet:
        """The same fleet with some settings changed."""
        return replace(self, **changes)

    @classmethod
    def like(cls, info: EngineInfo, times: StepModel, **changes: Any) -> Fleet:
        """Replicas with the sizes of a recorded engine."""
        sizes = {
            "num_blocks": info.num_blocks,
            "block_size": info.block_size,
            "max_num_batched_tokens": info.max_num_batched_tokens,
            "max_num_seqs": info.max_num_seqs,
            "policy": info.policy,
            "prefix_cache": info.prefix_cache != "off",
            "kv_bytes_per_token": info.kv_bytes_per_token,
            "model": info.model,
        }
        return cls(times, **(sizes | changes))

    @property
    def config(self) -> SchedulerConfig:
        """The limits of a step."""
        return SchedulerConfig(self.max_num_batched_tokens, self.max_num_seqs, self.policy)

    def info(self) -> EngineInfo:
        """The head of a replica's trace."""
        return EngineInfo(
            t_ns=0,
            wall_time=0.0,
            model=self.model,
            device="simulated",
            dtype="none",
            num_layers=0,
            num_kv_heads=0,
            head_dim=0,
            vocab_size=0,
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            kv_bytes_per_token=self.kv_bytes_per_token,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.num_blocks * self.block_size,
            policy=self.policy,
            prefix_cache="hash" if self.prefix_cache else "off",
            versions={},
            speculative="off" if self.speculation is None else str(self.speculation),
            simulated=self.times.source,
        )
