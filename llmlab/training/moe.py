"""A small mixture of experts that learns to continue text in about two minutes on one CPU thread."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from time import perf_counter

import torch
import torch.nn.functional as F
from transformers import MixtralForCausalLM

from llmlab.errors import InvalidParameter
from llmlab.training.corpus import topics_text
from llmlab.training.moe_model import MoeSize, random_moe, save_moe
from llmlab.training.moe_record import MoeRecord

BATCH, LENGTH = 8, 128
"""Sequences a batch, and their length in bytes."""
WARMUP, FINAL = 20, 0.1
"""Updates in which the learning rate rises, and the part of its peak that is left at the end."""
HELD_OUT = 0.05
"""The last part of the text, which is never learnt from."""
HELD_OUT_BATCHES = 4


@dataclass(frozen=True, slots=True)
class TrainedMoe:
    """A model after its training, in eval mode, and what was recorded on the way."""

    model: MixtralForCausalLM
    size: MoeSize
    records: tuple[MoeRecord, ...]

    def __repr__(self) -> str:
        last = self.records[-1]
        return f"<TrainedMoe after {last.step} updates: {last.held_out:.3f} nats per byte on held-out text>"

    def save(self, folder: str | Path) -> Path:
        """Write safetensors, config and tokenizer: ``llmlab.open(folder)`` serves the model."""
        return save_moe(self.model, folder)


@dataclass(frozen=True, slots=True)
class _Text:
    """Token ids (bytes) to learn from and to be asked about, both one after another in one dimension."""

    learnt: torch.Tensor
    held_out: torch.Tensor

    @classmethod
    def of(cls, text: str) -> _Text:
        ids = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8).long()
        cut = int(len(ids) * (1 - HELD_OUT))
        if len(ids) - cut <= (needed := HELD_OUT_BATCHES * BATCH * LENGTH):
            raise InvalidParameter(f"the text has {len(ids):,} bytes: {HELD_OUT:.0%} of it must be over {needed:,}")
        return cls(ids[:cut], ids[cut:])

    def batch(self, generator: torch.Generator) -> torch.Tensor:
        """``(BATCH, LENGTH + 1)`` from random places."""
        starts = torch.randint(len(self.learnt) - LENGTH, (BATCH,), generator=generator)
        return self.learnt[starts[:, None] + torch.arange(LENGTH + 1)]

    def questions(self) -> torch.Tensor:
        """The beginning of the held-out text, ``(batches, BATCH, LENGTH + 1)``."""
        rows = self.held_out.unfold(0, LENGTH + 1, LENGTH)
        return rows[: HELD_OUT_BATCHES * BATCH].unflatten(0, (HELD_OUT_BATCHES, BATCH))


def train_moe(
    seconds: float | None = 120,
    seed: int = 0,
    on_record: Callable[[MoeRecord], None] | None = None,
    *,
    steps: int | None = None,
    balance: float = 0.02,
    rate: float = 3e-3,
    size: MoeSize | None = None,
    every: int = 10,
    text: str | None = None,
) -> TrainedMoe:
    """Train a small Mixtral on the bytes of Python's built-in documentation (``pydoc_data.topics``), or of ``text``.

    ``seconds`` is the time it may take, ``steps`` the number of updates; the first to be reached ends it, and either
    may be ``None``. The same ``steps`` and ``seed`` give the same model on the same machine with the same number of
    threads; by the clock the number of updates differs. Minimised is the cross-entropy plus ``balance`` times the mean
    of :func:`balance_loss` over the layers; with ``balance=0`` nothing keeps the load of the experts even. ``rate`` is
    AdamW's peak. A record is written before the first update, after every ``every`` and after the last, and given to
    ``on_record`` at once; the first and the last have the loss on held-out text.

    Raises ``InvalidParameter`` when neither ``seconds`` nor ``steps`` ends it, for numbers that are not positive (a
    ``balance`` may be 0), and for a ``text`` of too few bytes.
    """
    _check(seconds=seconds, steps=steps, every=every, rate=rate)
    if isinstance(balance, bool) or not isinstance(balance, Real) or not balance >= 0:
        raise InvalidParameter(f"balance={balance!r} must be 0 or more")
    size, corpus = size or MoeSize(), _Text.of(distinct(topics_text()) if text is None else text)
    learning = _Learning(random_moe(size, seed), corpus, seed, balance, rate)
    records = []
    for record in learning.run(seconds or math.inf, steps or math.inf, every):
        records.append(record)
        if on_record:
            on_record(record)
    return TrainedMoe(learning.model.eval().requires_grad_(False), size, tuple(records))


def distinct(text: str) -> str:
    """Each paragraph once: chapters of the documentation repeat others', and held-out text must be new."""
    return "\n\n".join(dict.fromkeys(text.split("\n\n")))


def balance_loss(router_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """How uneven one layer's routing is: E sum over experts of (share of tokens sent there) x (mean probability).

    ``router_logits`` is ``(tokens, experts)``. ``top_k`` where both are even, ``experts`` where every token is sure
    of the same one; the gradient goes through the probabilities. Switch Transformer (arXiv 2101.03961), equations 4-6,
    for each layer by itself: pooled over layers, one layer's favourite could make up for another's.
    """
    probabilities = router_logits.softmax(-1)
    load = _load(router_logits, top_k).to(probabilities.dtype) / len(router_logits)
    return router_logits.shape[-1] * (load * probabilities.mean(0)).sum()


def _load(router_logits: torch.Tensor, top_k: int) -> torch.Tensor:
    """Tokens sent to each expert, ``(experts,)``."""
    chosen = router_logits.detach().topk(top_k, dim=-1).indices
    return torch.bincount(chosen.flatten(), minlength=router_logits.shape[-1])


class _Learning:
    """The model, its optimizer and the text, while it learns."""

    def __init__(self, model: MixtralForCausalLM, corpus: _Text, seed: int, balance: float, rate: float) -> None:
        self.model, self.corpus, self.balance, self.rate = model.train(), corpus, balance, rate
        self.top_k = model.config.num_experts_per_tok
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
        self.generator = torch.Generator().manual_seed(seed)

    def run(self, seconds: float, steps: float, every: int) -> Iterator[MoeRecord]:
        """Learn until time or updates are used up; the batch of the last record is not learnt from."""
        began, step = perf_counter(), 0
        while True:
            batch, elapsed = self.corpus.batch(self.generator), perf_counter() - began
            progress = max(step / steps, elapsed / seconds)
            loss, logits = self.loss(batch)
            balance = torch.stack([balance_loss(layer, self.top_k) for layer in logits]).mean()
            if step % every == 0 or progress >= 1:
                held_out = self.held_out_loss() if step == 0 or progress >= 1 else None
                load = tuple(tuple(_load(layer, self.top_k).tolist()) for layer in logits)
                yield MoeRecord(step, elapsed, len(logits[0]), loss.item(), balance.item(), held_out, load)
            if progress >= 1:
                return
            self._update(loss + self.balance * balance, step, progress)
            step += 1

    def loss(self, batch: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Cross-entropy (nats) of ``(sequences, length + 1)`` bytes, router logits ``(tokens, experts)`` by layer."""
        output = self.model(input_ids=batch[:, :-1], output_router_logits=True, use_cache=False)
        return F.cross_entropy(output.logits.flatten(0, 1), batch[:, 1:].flatten()), output.router_logits

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Cross-entropy (nats per byte) of text that is not learnt from."""
        losses = [self.loss(batch)[0] for batch in self.corpus.questions()]
        return torch.stack(losses).mean().item()

    def _update(self, loss: torch.Tensor, step: int, progress: float) -> None:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * min(1, (step + 1) / WARMUP) * (1 - (1 - FINAL) * progress)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _check(**given: float | None) -> None:
    if given["seconds"] is None and given["steps"] is None:
        raise InvalidParameter("seconds=None and steps=None: one of them must say when the training ends")
    for name, value in given.items():
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or not value > 0):
            raise InvalidParameter(f"{name}={value!r} must be a number of more than 0")
