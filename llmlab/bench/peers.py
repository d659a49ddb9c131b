"""transformers as a contender: its ``generate`` in static batches, and its continuous batching."""

from __future__ import annotations

import copy
from time import perf_counter

import torch
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig
from transformers.generation.streamers import BaseStreamer

from llmlab.bench.job import Job, Served, Settings
from llmlab.models.load import load

BATCH = 8
NO_EOS = -1
PAGE_SIZE = 16
CACHE_TOKENS = 16_384
STEP_TOKENS = 512


class _FirstToken(BaseStreamer):
    """Notes when the first generated token arrives; ``generate`` hands over the prompt before it."""

    def __init__(self) -> None:
        self.calls: list[float] = []

    def put(self, value: torch.Tensor) -> None:
        self.calls.append(perf_counter())

    def end(self) -> None:
        pass


class Generate:
    """``model.generate``, greedy, in static batches of 8 that are padded on the left.

    A prefix is reused by hand, as its documentation shows: computed once, copied, repeated for the batch.
    """

    def __init__(self, settings: Settings) -> None:
        self.model = load(settings.model, device=settings.device, dtype=settings.dtype).model
        # no EOS is what "exactly n tokens" means, and cheaper for it than forbidding EOS at every step
        self.model.generation_config.eos_token_id = None
        self.vocab_size = self.model.config.get_text_config().vocab_size
        self.prefix: tuple[str, DynamicCache] | None = None

    @torch.inference_mode()
    def serve(self, job: Job) -> Served:
        """Batches of 8 in the order of submission, one after the other."""
        streamer = _FirstToken() if len(job.prompts) == 1 else None
        start = perf_counter()
        cache = self._prefix_cache(job)
        tokens = []
        for i in range(0, len(job.prompts), BATCH):
            tokens += self._generate(job.prompts[i : i + BATCH], job.new_tokens, cache, streamer)
        seconds = perf_counter() - start
        return Served(seconds, tokens, streamer.calls[1] - start if streamer else None)

    def close(self) -> None:
        """It has no threads."""

    def _generate(
        self, prompts: list[list[int]], new_tokens: int, cache: DynamicCache | None, streamer: _FirstToken | None
    ) -> list[list[int]]:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=self.model.device)
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=ids.device)
        extra = {}
        if cache is not None:
            extra["cache"] = copy.deepcopy(cache)
            extra["cache"].batch_repeat_interleave(len(prompts))
        output = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=streamer,
            **extra,
        )
        return output[:, longest:].tolist()

    def _prefix_cache(self, job: Job) -> DynamicCache | None:
        """K/V of the shared prefix, computed by the first job of its salt; ``None`` where nothing is shared."""
        if not (job.prefix_cache and job.shared_tokens):
            return None
        if self.prefix is None or self.prefix[0] != job.salt:
            cache = DynamicCache(config=self.model.config)
            prefix = torch.tensor([job.prompts[0][: job.shared_tokens]], device=self.model.device)
            self.model(prefix, cache=cache, logits_to_keep=1)
            self.prefix = (job.salt, cache)
        return self.prefix[1]


class ContinuousBatching:
    """The manager behind ``generate_batch``, kept running, with llmlab's own limits: 8 requests, 512 tokens per step.

    The number of blocks is stated, because by default the cache takes most of the free memory.
    """

    def __init__(self, settings: Settings) -> None:
        self.model = load(settings.model, device=settings.device, dtype=settings.dtype).model
        self.vocab_size = self.model.config.get_text_config().vocab_size
        self.manager = None
        self.served: tuple[bool, str] | None = None

    def serve(self, job: Job) -> Served:
        """All prompts are added at once. A new salt meets a new manager, whose start is not counted."""
        self._ready(job.prefix_cache, job.salt)
        start = perf_counter()
        results = self._run(job.prompts, job.new_tokens)
        seconds = perf_counter() - start
        first = results[0].timestamps[0] - start if len(results) == 1 else None
        return Served(seconds, [result.generated_tokens for result in results], first)

    def close(self) -> None:
        """Stop the manager's thread, which would keep the process alive."""
        if self.manager is not None:
            self.manager.stop(hard_stop=True)
            self.manager.destroy()

    def _ready(self, share_blocks: bool, salt: str) -> None:
        if self.served == (share_blocks, salt):
            return
        self.close()
        self.manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_EOS),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE_SIZE,
                num_blocks=CACHE_TOKENS // PAGE_SIZE,
                max_batch_tokens=STEP_TOKENS,
                max_requests_per_batch=BATCH,
                allow_block_sharing=share_blocks,
            ),
        )
        self.manager.start()
        self._run([[1, 2, 3]], 2)  # its cache is made by its thread, on the first request
        self.served = (share_blocks, salt)

    def _run(self, prompts: list[list[int]], new_tokens: int) -> list:
        """The finished results, in the order of the prompts."""
        ids = self.manager.add_requests(prompts, max_new_tokens=new_tokens, record_timestamps=True)
        done = {}
        while len(done) < len(ids):
            result = self.manager.get_result(timeout=1)
            if result is None and not self.manager.is_running():
                raise RuntimeError("transformers' generation thread ended before all requests were served")
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(f"generate_batch failed: {result.error}")
                done[result.request_id] = result
        return [done[request_id] for request_id in ids]
