"""The host tier and the clock: opening it, measuring copies, and recording those of a step."""

from __future__ import annotations

from llmlab.engine.host_tier import HostTier
from llmlab.engine.plan import StepPlan, Swap
from llmlab.engine.runner import Runner
from llmlab.engine.swap_policy import Swapping, SwapPolicy
from llmlab.errors import InvalidParameter
from llmlab.trace.recorder import Recorder
from llmlab.trace.split_events import BlockTransfer

PROBE_BLOCKS = 8


def check_swapping(host_blocks: int, swap: str) -> None:
    """Raise ``InvalidParameter`` for a number of blocks or a mode that cannot be."""
    if type(host_blocks) is not int or host_blocks < 0:
        raise InvalidParameter(f"host_blocks={host_blocks!r} must be an integer of at least 0 (0: no host pool)")
    SwapPolicy(swap)


def open_host(runner: Runner, num_blocks: int, swap: Swapping = "auto") -> HostTier | None:
    """The host tier of a runner, with a first measurement of its copies; ``None`` for 0 blocks.

    Raises ``InvalidParameter`` for a runner that cannot swap.
    """
    check_swapping(num_blocks, swap)
    if num_blocks == 0:
        return None
    if not hasattr(runner, "open_host"):
        raise InvalidParameter(f"host_blocks={num_blocks}: {type(runner).__name__} has no host pool; leave it out")
    runner.open_host(num_blocks)
    size = runner.capacity.block_size
    tier = HostTier(num_blocks, size, size * runner.capacity.kv_bytes_per_token, SwapPolicy(swap))
    _probe(runner, tier)
    return tier


def _probe(runner: Runner, tier: HostTier) -> None:
    """Copy a few blocks, empty still, out and back; the first time warms the memory up and does not count."""
    pairs = [(i, i) for i in range(min(PROBE_BLOCKS, tier.num_blocks, runner.capacity.num_blocks))]
    for is_warm in (False, True):
        swaps = [Swap("", is_out, pairs, 0, "probe") for is_out in (True, False)]
        runner.swap(swaps)
        if is_warm:
            for swap in swaps:
                tier.policy.note_copy(swap.nbytes, swap.end_ns - swap.t_ns)


def note_costs(policy: SwapPolicy, plan: StepPlan, forward_ns: int) -> None:
    """Measure the step that was just computed: its copies, and its tokens without them."""
    for swap in plan.swaps:
        policy.note_copy(swap.nbytes, swap.end_ns - swap.t_ns)
        forward_ns -= swap.end_ns - swap.t_ns
    num_prefill = sum(row.num_tokens for row in plan.rows if row.is_prefill)
    policy.note_step(num_prefill, plan.num_tokens, forward_ns)


def record_swaps(plan: StepPlan, recorder: Recorder) -> None:
    """Write those of the step's copies that were made into the trace, with the times the runner noted."""
    if recorder.enabled:
        for swap in plan.swaps:
            if swap.end_ns:
                recorder.emit(_transfer(swap, plan.step))


def _transfer(swap: Swap, step: int) -> BlockTransfer:
    action, source, target = ("swap_out", "device", "host") if swap.is_out else ("swap_in", "host", "device")
    blocks, host_blocks = zip(*swap.pairs, strict=True)
    return BlockTransfer(
        swap.t_ns,
        swap.end_ns,
        step,
        swap.request_id,
        action,
        source,
        target,
        "memory",
        blocks,
        swap.num_tokens,
        swap.nbytes,
        swap.reason,
        host_blocks,
    )
