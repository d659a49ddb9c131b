"""llmlab as a contender, through its public calls, and the choice of a contender by name."""

from __future__ import annotations

import statistics
from time import perf_counter
from typing import Protocol

from llmlab.bench.job import Job, Served, Settings
from llmlab.bench.workloads import GENERATE, GENERATE_BATCH, LLMLAB
from llmlab.errors import InvalidParameter
from llmlab.lab import Lab


class Contender(Protocol):
    """Something that can be given jobs."""

    vocab_size: int

    def serve(self, job: Job) -> Served:
        """Do the job and say how long it took; preparation that a user pays once is not counted."""
        ...

    def close(self) -> None:
        """End its threads."""
        ...


class LlmlabContender:
    """Labs with the default settings, one with the prefix cache and one without, opened when first needed."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.labs: dict[bool, Lab] = {}
        self.vocab_size = self._lab(True).engine.capacity.vocab_size

    def serve(self, job: Job) -> Served:
        """All prompts are submitted at once; the engine's thread serves them."""
        lab = self._lab(job.prefix_cache)
        lab.engine.recorder.enabled = job.record
        params = {"max_tokens": job.new_tokens, "ignore_eos": True, "cache_salt": job.salt}
        start = perf_counter()
        runs = [lab.submit(prompt, **params) for prompt in job.prompts]
        first = _wait_for_first(runs[0], start) if len(runs) == 1 else None
        for run in runs:
            run.wait()
        seconds = perf_counter() - start
        return Served(
            seconds=seconds,
            token_ids=[run.token_ids for run in runs],
            first_token_s=first,
            cached_tokens=sum(run.usage["cached_tokens"] for run in runs),
            outside_forward=outside_forward(lab, [run.id for run in runs]) if job.phases else None,
        )

    def close(self) -> None:
        """Close the labs."""
        for lab in self.labs.values():
            lab.close()

    def _lab(self, prefix_cache: bool) -> Lab:
        import llmlab

        if prefix_cache not in self.labs:
            self.labs[prefix_cache] = llmlab.open(
                self.settings.model,
                device=self.settings.device,
                dtype=self.settings.dtype,
                threads=self.settings.threads,
                prefix_cache="hash" if prefix_cache else "off",
            )
        return self.labs[prefix_cache]


def _wait_for_first(run, start: float) -> float:
    """Seconds from ``start`` to the first delta that brings a token."""
    for delta in run.deltas():
        if delta.token_ids:
            return perf_counter() - start
    raise RuntimeError(f"run {run.id} ended without a token")


def outside_forward(lab: Lab, request_ids: list[str]) -> float:
    """Median of (step - forward) / step over the steps that decode the largest batch and prefill nothing."""
    steps = lab.trace.for_request(*request_ids).steps
    decoding = steps[(steps.num_prefill_tokens == 0) & (steps.num_rows == steps.num_rows.max())]
    return statistics.median((1 - decoding.forward_ms / decoding.total_ms).tolist())


def make_contender(settings: Settings) -> Contender:
    """The contender that ``settings`` names."""
    if settings.contender == LLMLAB:
        return LlmlabContender(settings)
    from llmlab.bench.peers import ContinuousBatching, Generate

    peers = {GENERATE: Generate, GENERATE_BATCH: ContinuousBatching}
    if settings.contender not in peers:
        raise InvalidParameter(f"there is no contender {settings.contender!r}: {LLMLAB}, {', '.join(peers)}")
    return peers[settings.contender](settings)
