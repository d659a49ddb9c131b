"""From loaded weights to a runner: check the model against itself, speed it up, give it a K/V pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from llmlab.engine import seam
from llmlab.engine.kv_pool import KVPool, LayerShape
from llmlab.engine.lean import LeanModel, make_lean
from llmlab.engine.model_runner import ModelRunner
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request
from llmlab.engine.sizes import check_sizes
from llmlab.errors import UnsupportedModel
from llmlab.models.fuse import fuse_projections, pack_linears, packing_works
from llmlab.models.load import LoadedModel
from llmlab.models.quantize import check_kernels, pack_rounded, round_linears
from llmlab.models.quantized_format import Quantization

CHECK_LENGTH, CHECK_SPLIT = 12, 7
TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 6e-2, torch.float16: 2e-2}
POOL_SHARE = 0.3


@dataclass(frozen=True, slots=True)
class Reference:
    """What the untouched model answers: logits ``(CHECK_LENGTH, vocabulary)`` and what each layer stores."""

    logits: torch.Tensor
    shapes: list[LayerShape]


class _ShapeRecorder:
    """A cache that keeps nothing but the shapes of what it is given."""

    def __init__(self) -> None:
        self.shapes: dict[int, LayerShape] = {}

    def update(self, keys, values, layer_idx, *args, **kwargs):
        self.shapes[layer_idx] = LayerShape(keys.shape[1], keys.shape[-1], values.shape[-1], keys.device, keys.dtype)
        return keys, values

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length, layer_idx: int = 0) -> tuple[int, int]:
        return int(query_length if isinstance(query_length, int) else len(query_length)), 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def __len__(self) -> int:
        return 0


def build_runner(
    loaded: LoadedModel,
    *,
    block_size: int = 16,
    num_blocks: int | None = None,
    optimize: bool = True,
    reload: Callable[[], LoadedModel] | None = None,
    quantization: Quantization | None = None,
) -> ModelRunner:
    """A runner that passed the self-check.

    With ``optimize`` projections are fused, CPU weights packed and known decoder layers replaced; if the check fails
    then, ``reload`` gives fresh weights to try without. With ``quantization`` the untouched model is given the
    dequantized weights before it is asked, so the check compares integer kernels with their own weights. Raises
    ``UnsupportedModel`` when paged logits differ from plain ones, ``InvalidParameter`` for a block size or count that
    cannot work, ``QuantizationUnavailable``.
    """
    check_sizes(block_size, num_blocks)
    _check_layer_types(loaded)
    if quantization is not None:
        check_kernels(quantization, loaded.device)
        round_linears(loaded.model, quantization)
        loaded.quantized = str(quantization)
    reference = record_reference(loaded)
    lean = _prepare(loaded.model, optimize, quantization)
    try:
        use_varlen = passing_backend(loaded, reference, block_size, lean)
    except UnsupportedModel as error:
        if not optimize or reload is None:
            raise error if quantization is None else _differs(loaded, quantization) from error
        sizes = {"block_size": block_size, "num_blocks": num_blocks}
        return build_runner(reload(), optimize=False, quantization=quantization, **sizes)
    if num_blocks is None:
        num_blocks = default_num_blocks(reference.shapes, block_size, loaded.max_model_len)
    return ModelRunner(loaded, KVPool(reference.shapes, num_blocks, block_size), use_varlen, lean)


def _prepare(model: torch.nn.Module, optimize: bool, quantization: Quantization | None) -> LeanModel | None:
    if optimize:
        return speed_up(model, quantization)
    if quantization is not None:
        pack_rounded(model, quantization)
    return None


def passing_backend(loaded: LoadedModel, reference: Reference, block_size: int, lean: LeanModel | None = None) -> bool:
    """Whether to use the variable-length kernel: on CUDA, where the self-check passes with it.

    Raises ``UnsupportedModel`` when the check fails on gathered blocks too.
    """
    if loaded.device.type == "cuda":
        try:
            self_check(loaded, reference, block_size, lean, use_varlen=True)
            return True
        except (UnsupportedModel, ImportError, RuntimeError, TypeError, ValueError):
            pass  # this build or card lacks the kernel for these shapes: gathered blocks work everywhere
    self_check(loaded, reference, block_size, lean)
    return False


def _check_layer_types(loaded: LoadedModel) -> None:
    """The self-check's prompt is too short to tell a chunk or window of thousands of tokens."""
    kinds = set(getattr(loaded.model.config.get_text_config(), "layer_types", None) or ())
    if unknown := sorted(kinds - {"full_attention", "sliding_attention"}):
        raise _unsupported(loaded, f"it has layers of type {', '.join(unknown)}")


def speed_up(model: torch.nn.Module, quantization: Quantization | None = None) -> LeanModel | None:
    """Fuse projections, pack CPU weights where torch can, and use lean layers, or a lean model, where known.

    Layers that were rounded are packed as integers.

    A model spread over devices is left alone: what moves its activations is wrapped around its modules.
    """
    if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
        return None
    fuse_projections(model)
    if quantization is not None:
        pack_rounded(model, quantization)
    if packing_works(model.get_input_embeddings().weight.dtype):
        pack_linears(model)
    return make_lean(model)


def default_num_blocks(shapes: list[LayerShape], block_size: int, max_model_len: int) -> int:
    """Room for 16,384 tokens or two full contexts, whichever is more, within a share of the free memory."""
    bytes_per_block = block_size * sum(shape.bytes_per_token for shape in shapes)
    wanted = max(16_384, 2 * max_model_len) // block_size
    return max(1, min(wanted, int(POOL_SHARE * _free_bytes(shapes[0].device)) // bytes_per_block))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    import psutil

    return psutil.virtual_memory().available


# -- the self-check -------------------------------------------------------------------------------------------


def _check_tokens(model: torch.nn.Module) -> list[int]:
    vocabulary = model.config.get_text_config().vocab_size
    return [(7919 * (i + 1)) % vocabulary for i in range(CHECK_LENGTH)]


@torch.inference_mode()
def record_reference(loaded: LoadedModel) -> Reference:
    """Ask the untouched model once without any cache, and once to see the shape of every layer's K/V."""
    model, recorder = loaded.model, _ShapeRecorder()
    device = model.get_input_embeddings().weight.device
    ids = torch.tensor([_check_tokens(model)], device=device)
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    shorter = model(input_ids=ids[:, :CHECK_SPLIT], use_cache=False).logits[0].float()
    if not _close(shorter, logits[:CHECK_SPLIT], loaded.dtype):
        raise _unsupported(loaded, "its tokens attend to later ones, so it is an encoder and not a causal decoder")
    position = torch.zeros(1, 1, dtype=torch.long, device=device)
    keep = torch.zeros(1, dtype=torch.long, device=device)
    try:
        seam.call(model, seam.cache_argument(model), ids[:, :1], position, recorder, keep)
    except (AttributeError, TypeError, ValueError) as error:
        raise _unsupported(loaded, f"its layers do not take our cache ({error})") from error
    layers = loaded.model.config.get_text_config().num_hidden_layers
    if sorted(recorder.shapes) != list(range(layers)):
        raise _unsupported(loaded, f"{len(recorder.shapes)} of its {layers} layers store keys and values")
    return Reference(logits, [recorder.shapes[i] for i in range(layers)])


def self_check(
    loaded: LoadedModel,
    reference: Reference,
    block_size: int,
    lean: LeanModel | None = None,
    use_varlen: bool = False,
) -> None:
    """Run a prompt through scattered blocks in two chunks and compare with the plain forward pass.

    Also counts attention calls, because some model families silently ignore a registered attention function.
    """
    seam.install(loaded.model)
    num_blocks = -(-CHECK_LENGTH // block_size)
    runner = ModelRunner(loaded, KVPool(reference.shapes, num_blocks, block_size), use_varlen, lean)
    logits, calls = [], 0
    for plan in check_plans(loaded.model, num_blocks):
        batches = runner.build(plan)
        try:
            logits.append(runner.forward(batches))
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise _unsupported(loaded, f"its attention does not work with ours ({error})") from error
        calls += sum(batch.view.attention_calls for batch in batches)
    if calls != 3 * len(reference.shapes):
        raise _unsupported(loaded, f"{calls} attention calls instead of {3 * len(reference.shapes)}")
    check_logits(loaded, reference, torch.cat(logits))


def check_plans(model: torch.nn.Module, num_blocks: int) -> Iterator[StepPlan]:
    """Steps that compute the self-check's prompt in chunks, through scattered blocks."""
    request = Request("check", _check_tokens(model), SamplingParams(), seed=0, max_tokens=1)
    request.block_table = list(reversed(range(num_blocks)))
    for start, end in ((0, CHECK_SPLIT), (CHECK_SPLIT, CHECK_LENGTH - 1), (CHECK_LENGTH - 1, CHECK_LENGTH)):
        count = end - start
        yield StepPlan(0, [ScheduledRow(request, start, count, 0, count > 1, False, num_logits=count)])


def check_logits(loaded: LoadedModel, reference: Reference, logits: torch.Tensor) -> None:
    """Raise ``UnsupportedModel`` unless paged logits ``(CHECK_LENGTH, vocabulary)`` are those of the plain model."""
    worst = (logits.float() - reference.logits).abs().max() / reference.logits.abs().max()
    if not _close(logits.float(), reference.logits, loaded.dtype):
        raise _unsupported(loaded, f"paged and plain logits differ by {worst:.1%} of the largest")


def _close(actual: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether logits differ by no more than rounding in ``dtype`` explains; NaN never is close."""
    return bool((actual - expected).abs().max() <= TOLERANCE[dtype] * expected.abs().max())


def _differs(loaded: LoadedModel, quantization: Quantization) -> UnsupportedModel:
    return UnsupportedModel(
        f"{loaded.name!r} with weights rounded to {quantization} does not answer as its own dequantized weights do: "
        "give dtype='float32', which rounds nothing else, finer scales, or leave quantize out"
    )


def _unsupported(loaded: LoadedModel, reason: str) -> UnsupportedModel:
    kind = loaded.model.config.model_type
    return UnsupportedModel(
        f"{loaded.name!r} (architecture {kind!r}) cannot be served from paged blocks: {reason}. "
        "Families that work include Llama, Mistral, Qwen, Gemma, Phi-3, OLMo 2, SmolLM3 and GPT-2."
    )
