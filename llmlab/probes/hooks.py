"""Hooks that feed a step's probe where the model's own modules run. Lean models call the probe themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from llmlab.probes.step_probe import StepProbe


@contextmanager
def watching(probe: StepProbe) -> Iterator[None]:
    """Our hooks on layers and routers while the body runs, gone on every way out; those of others are left alone."""
    layers, routers = probe.anatomy.layers, probe.anatomy.routers
    with ExitStack() as stack:
        stack.callback(layers[0].register_forward_pre_hook(_input_hook(probe), with_kwargs=True).remove)
        for i, layer in enumerate(layers):
            stack.callback(layer.register_forward_hook(_layer_hook(probe, i), with_kwargs=True).remove)
        for i, router in routers.items():
            stack.callback(router.register_forward_hook(_router_hook(probe, i)).remove)
        yield


def _input_hook(probe: StepProbe) -> Callable:
    def hook(module: Any, args: tuple, kwargs: dict) -> tuple | None:
        hidden = _input(args, kwargs)
        new = probe.before_layers(hidden[0])
        if _is_same(new, hidden):
            return None
        return ((new[None], *args[1:]), kwargs) if args else (args, kwargs | {"hidden_states": new[None]})

    return hook


def _layer_hook(probe: StepProbe, layer: int) -> Callable:
    def hook(module: Any, args: tuple, kwargs: dict, output: Any) -> Any:
        hidden = output[0] if isinstance(output, tuple) else output
        new = probe.after_layer(layer, _input(args, kwargs)[0], hidden[0])
        if _is_same(new, hidden):
            return None
        return (new[None], *output[1:]) if isinstance(output, tuple) else new[None]

    return hook


def _router_hook(probe: StepProbe, layer: int) -> Callable:
    def hook(module: Any, args: tuple, output: tuple) -> None:
        probe.routed(layer, output)

    return hook


def _input(args: tuple, kwargs: dict) -> torch.Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _is_same(new: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether the probe handed back what it was given: then the module's own output goes on untouched."""
    return new.data_ptr() == old.data_ptr()
