"""Pipeline parallel: every process has a run of consecutive layers, and hidden states go from stage to stage.

A step's batch is divided into micro-batches that follow each other through the stages, so that stages compute at the
same time (GPipe, arXiv 1811.06965). The first stage is rank 0: it embeds, and gets the logits from the last one.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from time import perf_counter_ns

import torch
from torch import nn

from llmlab.engine import seam
from llmlab.engine.build import speed_up
from llmlab.engine.kv_pool import KVPool
from llmlab.engine.model_runner import Batch, ModelRunner
from llmlab.errors import InvalidParameter, UnsupportedModel
from llmlab.models.load import LoadedModel
from llmlab.parallel.comm import Comm, Sent
from llmlab.parallel.sent_plan import SentPlan, micro_batches
from llmlab.parallel.share import DivideOptions, Share
from llmlab.parallel.tensor import part_of

PARTS = ("embed_tokens", "layers", "norm")
"""What transformers' plan for a pipeline (``base_model_pp_plan``) names in every family that is known here."""
LOGITS_TAG, HIDDEN_TAG = 1_000_000, 0


def check(model: nn.Module, size: int) -> None:
    """Raise ``InvalidParameter`` for more stages than layers, ``UnsupportedModel`` for families without a plan."""
    config = model.config.get_text_config()
    if set(getattr(config, "base_model_pp_plan", None) or ()) != set(PARTS):
        raise UnsupportedModel(
            f"an architecture of type {model.config.model_type!r} cannot be divided into stages: transformers has no "
            f"plan of {', '.join(PARTS)} for it. Llama, Mistral, Qwen and Gemma have one."
        )
    if size > config.num_hidden_layers:
        raise InvalidParameter(
            f"pipeline_parallel={size} is more than the model's {config.num_hidden_layers} layers: a stage has at "
            "least one"
        )


def divide(loaded: LoadedModel, comm: Comm, options: DivideOptions) -> Share:
    """Reduce the model in place to this process's stage."""
    part = part_of(len(options.shapes), comm.rank, comm.size)
    stage = _keep_stage(loaded.model, part, comm)
    if options.optimize:
        speed_up(loaded.model)
    shapes = options.shapes[part.start : part.stop]

    def make(pool: KVPool) -> StageRunner:
        return StageRunner(ModelRunner(loaded, pool), stage, comm, part, options.micro_batches)

    return Share(shapes, part.start, make)


def _keep_stage(model: nn.Module, part: range, comm: Comm) -> nn.Module:
    """Drop what other stages compute; returns the model's decoder, which now runs this stage's layers."""
    seam.install(model)
    decoder = model.get_decoder()
    decoder.layers = nn.ModuleList(decoder.layers[part.start : part.stop])
    for i, layer in enumerate(decoder.layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = i  # the place in this process's pool
    decoder.config = _config_of(decoder.config, part)
    if comm.rank > 0:
        width = decoder.embed_tokens.weight.shape[1]
        decoder.embed_tokens = nn.Embedding(1, width).to(decoder.embed_tokens.weight)
    if comm.rank < comm.size - 1:
        decoder.norm, head = nn.Identity(), model.get_output_embeddings()
        model.set_output_embeddings(NoHead(head.in_features, head.out_features))
    return decoder


def _config_of(config, part: range):
    """The decoder looks up kinds of layers by their number."""
    config = copy(config)
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[part.start : part.stop]
    config.num_hidden_layers = len(part)
    return config


class NoHead(nn.Module):
    """Where the head is in another process."""

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A part of a step's batch, and its number."""

    number: int
    batch: Batch

    @property
    def num_tokens(self) -> int:
        """Packed tokens."""
        return self.batch.input_ids.shape[1]

    @property
    def num_logits(self) -> int:
        """Positions whose logits are wanted."""
        return len(self.batch.keep)


class StageRunner:
    """A :class:`~llmlab.parallel.share.PartRunner`: a run of layers on a pool of its own."""

    def __init__(self, runner: ModelRunner, stage: nn.Module, comm: Comm, part: range, count: int) -> None:
        self.inner, self._stage, self._comm, self._part, self._count = runner, stage, comm, part, count
        config = runner.loaded_model.config.get_text_config()
        self._width, self._vocabulary = config.hidden_size, config.vocab_size
        weight = next(runner.loaded_model.parameters())
        self._like = {"dtype": weight.dtype, "device": weight.device}
        self._argument = seam.cache_argument(stage)
        self._is_first, self._is_last = comm.rank == 0, comm.rank == comm.size - 1

    def build(self, plan: SentPlan) -> list[MicroBatch]:
        """The step's micro-batches, in the order in which they are computed."""
        batches = [batch for part in micro_batches(plan, self._count) for batch in self.inner.build(part)]
        return [MicroBatch(i, batch) for i, batch in enumerate(batches)]

    @torch.inference_mode()
    def forward(self, batches: list[MicroBatch]) -> torch.Tensor | None:
        """Send every micro-batch on as soon as it is computed; on rank 0, the logits that come back."""
        sent = [message for batch in batches if (message := self._compute(batch)) is not None]
        logits = [self._logits_of(batch) for batch in batches if batch.num_logits] if self._is_first else None
        for message in sent:
            message.wait()
        if logits is None:
            return None
        return torch.cat(logits) if logits else torch.empty(0, self._vocabulary, **self._like)

    def _compute(self, micro: MicroBatch) -> Sent | None:
        pool, batch = self.inner.pool, micro.batch
        hidden = None if self._is_first else self._receive_hidden(micro)
        start = perf_counter_ns()
        pool.copy_blocks(batch.copies)
        pool.clear(batch.fresh)
        output = self._run_last(batch, hidden) if self._is_last else self._run(batch, hidden)
        self._note("forward", start, micro)
        if not self._is_last:
            return self._send(output, self._comm.rank + 1, HIDDEN_TAG, micro)
        if micro.num_logits:
            return self._send(output, 0, LOGITS_TAG, micro)
        return None

    def _run(self, batch: Batch, hidden: torch.Tensor | None) -> torch.Tensor:
        """Hidden states ``(tokens, width)`` after this stage's layers."""
        given = {"input_ids": batch.input_ids} if hidden is None else {"inputs_embeds": hidden[None]}
        given[self._argument] = batch.view
        return self._stage(position_ids=batch.positions, use_cache=False, **given).last_hidden_state[0]

    def _run_last(self, batch: Batch, hidden: torch.Tensor) -> torch.Tensor:
        """Logits ``(num_logits, vocabulary)``."""
        keep = batch.keep if len(batch.keep) else batch.keep.new_zeros(1)  # not every kernel takes no rows
        model, argument = self.inner.loaded_model, seam.cache_argument(self.inner.loaded_model)
        given = {"inputs_embeds": hidden[None], argument: batch.view}
        output = model(position_ids=batch.positions, use_cache=False, logits_to_keep=keep, **given)
        return output.logits[0][: len(batch.keep)]

    # -- messages ---------------------------------------------------------------------------------------------

    def _send(self, tensor: torch.Tensor, to: int, tag: int, micro: MicroBatch) -> Sent:
        place = "head" if tag == LOGITS_TAG else "stage"
        layer = -1 if place == "head" else self._part[-1]
        return self._comm.send(tensor, to, layer, place, tag + micro.number)

    def _receive_hidden(self, micro: MicroBatch) -> torch.Tensor:
        hidden = torch.empty(micro.num_tokens, self._width, **self._like)
        return self._receive(hidden, self._comm.rank - 1, self._part.start - 1, "stage", HIDDEN_TAG, micro)

    def _logits_of(self, micro: MicroBatch) -> torch.Tensor:
        logits = torch.empty(micro.num_logits, self._vocabulary, **self._like)
        return self._receive(logits, self._comm.size - 1, -1, "head", LOGITS_TAG, micro)

    def _receive(
        self, tensor: torch.Tensor, source: int, layer: int, place: str, tag: int, micro: MicroBatch
    ) -> torch.Tensor:
        start = perf_counter_ns()
        self._comm.receive(tensor, source, layer, place, tag + micro.number)
        self._note("wait", start, micro)
        return tensor

    def _note(self, name: str, start: int, micro: MicroBatch) -> None:
        self._comm.note_work(name, start, micro.num_tokens, micro.number, self._part[0], self._part[-1])
