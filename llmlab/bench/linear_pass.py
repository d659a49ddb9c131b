"""One pass through a model's linear layers with a given number of rows: where integers win and where they lose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KERNEL, EXPANDED = "kernel", "expanded"


def linear_layers(model: nn.Module) -> list[nn.Module]:
    """The packed linear layers of the decoder, fused ones once; not the head, which sees few rows of a pass."""
    from llmlab.models.fuse import PackedLinear
    from llmlab.models.quantized_linear import QuantizedLinear

    head = model.get_output_embeddings()
    found = [module for module in model.modules() if isinstance(module, PackedLinear | QuantizedLinear)]
    return [layer for layer in found if layer is not head]


def ways(model: nn.Module) -> dict[str, list[Callable[[torch.Tensor], torch.Tensor]]]:
    """The functions that make up a pass, for each way there is: a packed model has one, a quantized one two.

    ``kernel`` multiplies integers, ``expanded`` makes ordinary weights of them first and throws those away.
    """
    from llmlab.models.quantized_linear import QuantizedLinear

    layers = linear_layers(model)
    if not isinstance(layers[0], QuantizedLinear):
        return {"packed": [layer.forward for layer in layers]}
    return {KERNEL: [layer.by_kernel for layer in layers], EXPANDED: [layer.by_expanding for layer in layers]}


def passes_ms(models: dict[str, nn.Module], rows: Iterable[int] = ROWS, rounds: int = 3) -> dict[int, dict[str, float]]:
    """Milliseconds of a pass: by rows, then by name and way (``int4, kernel``); medians of ``rounds`` turns.

    A round times all of them one after the other, so that they can be compared.
    """
    import torch

    contenders = {
        name if way == "packed" else f"{name}, {way}": (linear_layers(model), calls)
        for name, model in models.items()
        for way, calls in ways(model).items()
    }
    times: dict[int, dict[str, float]] = {}
    with torch.inference_mode():
        for count in rows:
            taken: dict[str, list[float]] = {name: [] for name in contenders}
            for number in range(rounds + 1):
                for name, (layers, calls) in contenders.items():
                    seconds = _time_pass(layers, calls, count)
                    if number:
                        taken[name].append(seconds)
            times[count] = {name: 1e3 * median(values) for name, values in taken.items()}
    return times


def _time_pass(layers: Sequence[nn.Module], calls: Sequence[Callable], rows: int) -> float:
    import torch

    dtype = torch.bfloat16
    inputs = {layer.in_features: torch.ones(rows, layer.in_features, dtype=dtype) for layer in layers}
    start = perf_counter()
    for layer, call in zip(layers, calls, strict=True):
        call(inputs[layer.in_features])
    return perf_counter() - start
