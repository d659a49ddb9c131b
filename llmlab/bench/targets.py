"""What llmlab promises about its speed, each promise a ratio measured within one round."""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.bench.workloads import GENERATE, GENERATE_BATCH, LLMLAB


@dataclass(frozen=True, slots=True)
class Target:
    """``figure`` over ``base`` must be at least or at most ``bound``; both are ``(contender, metric)``.

    Without ``base`` the figure itself is judged.
    """

    workload: str
    dtype: str
    label: str
    figure: tuple[str, str]
    base: tuple[str, str] | None
    bound: float
    at_least: bool

    def met(self, value: float) -> bool:
        """Whether ``value`` keeps the promise."""
        return value >= self.bound if self.at_least else value <= self.bound


def _against(workload: str, dtype: str, metric: str, peer: str, bound: float) -> Target:
    label = f"{workload} {metric}: llmlab / {peer}"
    return Target(workload, dtype, label, (LLMLAB, metric), (peer, metric), bound, at_least=True)


def _own(workload: str, dtype: str, label: str, figure: str, base: str | None, bound: float, at_least: bool):
    divisor = None if base is None else (LLMLAB, base)
    return Target(workload, dtype, label, (LLMLAB, figure), divisor, bound, at_least)


def _for_both(dtype: str) -> tuple[Target, ...]:
    return (
        _own("prefix_ttft", dtype, "TTFT: first / cached", "first_ttft_ms", "cached_ttft_ms", 5.0, True),
        _own("overhead", dtype, "step time outside forward", "outside_forward", None, 0.05, False),
        _own("tracing", dtype, "W3 seconds: recorded / not", "recorded_s", "unrecorded_s", 1.02, False),
    )


TARGETS = (
    _against("W1", "bf16", "tokens_per_s", GENERATE, 1.8),
    _against("W2", "bf16", "prompt_tokens_per_s", GENERATE, 2.0),
    _against("W3", "bf16", "output_tokens_per_s", GENERATE_BATCH, 2.5),
    _own("W4", "bf16", "W4 seconds: warm / no cache", "warm_s", "no_cache_s", 0.5, False),
    *_for_both("bf16"),
    _against("W1", "fp32", "tokens_per_s", GENERATE, 1.2),
    _against("W3", "fp32", "output_tokens_per_s", GENERATE_BATCH, 2.0),
    *_for_both("fp32"),
)
