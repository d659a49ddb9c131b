"""A loaded model's linear layers on integers: rounded first, packed once the rounded model has said what it answers."""

from __future__ import annotations

import torch
from torch import nn

from llmlab.errors import QuantizationUnavailable, UnsupportedModel
from llmlab.models.fuse import PackedLinear, replace_linears
from llmlab.models.quantized_format import Quantization
from llmlab.models.quantized_kernels import block4, kernels_work
from llmlab.models.quantized_linear import QuantizedLinear, RoundedLinear, packed_layer
from llmlab.models.quantized_weight import can_round, round_weight


def check_kernels(quantization: Quantization, device: torch.device) -> None:
    """Raise ``QuantizationUnavailable`` where the packed form cannot be computed with."""
    if device.type != "cpu":
        raise QuantizationUnavailable(
            f"quantize={quantization.format!r} uses torch's kernels for CPUs, and the device is {device}: give "
            "device='cpu', or leave quantize out"
        )
    if not kernels_work(quantization.format):
        raise QuantizationUnavailable(
            f"torch {torch.__version__} has no working {quantization.format} kernel for this CPU: leave quantize out"
        )


def round_linears(model: nn.Module, quantization: Quantization) -> int:
    """Replace linear layers by ones that compute with dequantized weights; returns how many.

    That is every linear layer, the output head only with ``quantization.head``; a head that shared the embedding's
    weights gets its own, so the embedding stays as it was. A layer whose width does not divide into groups stays too.
    Weights that are not linear layers (embedding, norms, experts kept in one tensor) are never rounded.

    Raises ``UnsupportedModel`` when there is nothing to round.
    """
    head = model.get_output_embeddings()

    def rounded(layer: nn.Linear) -> RoundedLinear | None:
        if (layer is head and not quantization.head) or not can_round(layer.weight, quantization):
            return None
        return RoundedLinear(round_weight(layer.weight, quantization), layer.bias, layer.weight.dtype)

    count = replace_linears(model, nn.Linear, rounded)
    if not count:
        raise UnsupportedModel(
            f"{type(model).__name__} has no linear layer that {quantization.format} fits: leave quantize out"
        )
    return count


def pack_rounded(model: nn.Module, quantization: Quantization) -> int:
    """Replace the layers that :func:`round_linears` made by packed ones, in place; returns how many."""
    block = block4() if quantization.format == "int4" else None
    return replace_linears(model, RoundedLinear, lambda layer: packed_layer(layer, quantization.dequantize_from, block))


def quantized_layers(model: nn.Module) -> dict[str, QuantizedLinear]:
    """The packed layers by their module names."""
    return {name: module for name, module in model.named_modules() if isinstance(module, QuantizedLinear)}


def resident_bytes(model: nn.Module) -> int:
    """Bytes of all weights as they are in memory now, each tensor once, packed ones included."""
    return sum(_tensor_bytes(model).values())


def linear_bytes(model: nn.Module) -> int:
    """Bytes of the linear layers alone, as they are in memory now, without the output head."""
    head, kinds = model.get_output_embeddings(), (nn.Linear, PackedLinear, QuantizedLinear)
    layers = [module for module in model.modules() if isinstance(module, kinds) and module is not head]
    return sum({key: size for layer in layers for key, size in _tensor_bytes(layer).items()}.values())


def _tensor_bytes(module: nn.Module) -> dict[object, int]:
    """Bytes of every tensor with memory of its own, under something that two names of one tensor share."""
    tensors = [t for t in module.state_dict().values() if t.device.type != "meta"]
    packed = [layer for layer in module.modules() if isinstance(layer, PackedLinear | QuantizedLinear)]
    own = {id(layer): _packed_bytes(layer) for layer in packed}
    return {(t.data_ptr(), t.nbytes): t.nbytes for t in tensors} | own


def _packed_bytes(layer: PackedLinear | QuantizedLinear) -> int:
    if isinstance(layer, QuantizedLinear):
        return layer.nbytes
    return layer.packed.numel() * layer.packed.element_size()
