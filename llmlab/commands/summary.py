"""What one finished run amounts to, read from its trace: a few rows to show, or one JSON object."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from llmlab.engine.run import Run
    from llmlab.trace.trace import Trace


def as_object(run: Run, trace: Trace) -> dict[str, Any]:
    """The run as JSON types. ``spans`` are those of its first sample, in seconds since the first of them."""
    spans = _own_spans(run, trace)
    zero = spans.start_s.min()
    return {
        "text": run.text,
        "prompt_token_ids": list(run.prompt_token_ids),
        "token_ids": list(run.token_ids),
        "stop_reason": run.stop_reason,
        "usage": run.usage,
        "spans": [
            {"name": name, "start_s": start - zero, "end_s": end - zero}
            for name, start, end in zip(spans.name, spans.start_s, spans.end_s, strict=True)
        ],
        "model": trace.info.model,
        "device": trace.info.device,
        "dtype": trace.info.dtype,
    }


def as_rows(run: Run, trace: Trace) -> dict[str, str]:
    """Names and values to show after an answer; K/V bytes are blocks in use times their size, at the most."""
    import torch

    request = trace.requests.set_index("request_id").loc[run.id]
    steps, info = trace.steps, trace.info
    outside = 1 - steps.forward_ms.sum() / steps.total_ms.sum()
    cached, prompt = request.num_cached_tokens, request.num_prompt_tokens
    return {
        "prompt": f"{prompt} tokens, {cached} cached (prefix hit {cached / prompt:.0%})",
        "output": f"{request.num_output_tokens} tokens, ended by {run.stop_reason}",
        "TTFT": f"{request.ttft_ms:.1f} ms",
        "prefill": f"{_milliseconds(run, trace, 'prefill'):.1f} ms",
        "decode": f"{_milliseconds(run, trace, 'decode'):.1f} ms",
        "decode speed": _speed(request.tokens_per_s),
        "K/V": f"{steps.kv_bytes_used.max():,} bytes in {steps.used.max()} blocks of {info.block_size} tokens",
        "largest batch": f"{steps.num_rows.max()} of at most {info.max_num_seqs} requests",
        "outside forward": f"{outside:.1%} of the steps' time",
        "ran on": f"{info.model}, {info.device}, {info.dtype}, threads: {torch.get_num_threads()}",
    }


def _speed(tokens_per_s: float) -> str:
    return "one token, so no rate" if math.isnan(tokens_per_s) else f"{tokens_per_s:.1f} tokens/s"


def _milliseconds(run: Run, trace: Trace, name: str) -> float:
    spans = _own_spans(run, trace)
    return spans.duration_ms[spans.name == name].sum()


def _own_spans(run: Run, trace: Trace) -> pd.DataFrame:
    return trace.spans[trace.spans.request_id == run.id]
