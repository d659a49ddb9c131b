"""A capture and its interventions, resolved for one model and one request: numbers instead of filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from llmlab.engine.kv_pool import LayerShape
from llmlab.errors import CaptureTooLarge, InvalidParameter
from llmlab.probes.anatomy import Anatomy
from llmlab.probes.capture import ALIASES, NAMED_POSITIONS, PER_LAYER, Capture
from llmlab.probes.filters import Filter, choose
from llmlab.probes.intervene import Ablate, Intervention, Patch
from llmlab.probes.store import CaptureStore


@dataclass(frozen=True, slots=True)
class Length:
    """How long a request can get: ``prompt`` tokens and ``total`` positions that may be computed.

    ``is_open``: the request has no ``max_tokens``, so ``total`` is only a limit of context or pool.
    """

    prompt: int
    total: int
    is_open: bool


@dataclass(frozen=True, slots=True, eq=False)
class Change:
    """One intervention: ``where`` is ``input``, ``layer`` or ``head``; ``value`` replaces what is there (``None``: 0,
    or for a layer what went into it)."""

    where: str
    layers: frozenset[int]
    heads: tuple[int, ...]
    positions: frozenset[int]
    value: torch.Tensor | None
    action: str = "ablate"

    def __str__(self) -> str:
        parts = [f"layer {_listed(self.layers)}"] if self.layers else ["input of the first layer"]
        return ", ".join(parts + ([f"head {_listed(self.heads)}"] if self.heads else []))


def _listed(numbers: Sequence[int] | frozenset[int]) -> str:
    return " ".join(map(str, sorted(numbers)))


@dataclass(slots=True, eq=False)
class RequestProbe:
    """What is recorded and changed for one request.

    ``layers`` maps each kind to its layers; ``positions`` are those asked for, ascending; ``targets`` token ids.
    ``seen`` are positions already kept per kind and layer; ``upto`` the same for what needs no computing: all below.
    """

    store: CaptureStore
    layers: dict[str, frozenset[int]]
    heads: tuple[int, ...]
    positions: tuple[int, ...]
    targets: tuple[int, ...]
    top: int
    num_neighbours: int
    embed: bool
    changes: tuple[Change, ...] = ()
    use_cache: bool = True
    has_started: bool = False
    seen: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    upto: dict[tuple[str, int], int] = field(default_factory=dict)
    wanted: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.wanted = frozenset(self.positions)

    @property
    def is_private(self) -> bool:
        """Whether the request's K/V is not the model's own, so that it must not be shared."""
        return bool(self.changes)

    @property
    def bypasses_cache(self) -> bool:
        """Whether the prefix cache is not to be read."""
        return self.is_private or not self.use_cache

    @property
    def looks(self) -> bool:
        """Whether anything is to be recorded at all."""
        return bool(self.layers) or self.embed

    @property
    def is_looking(self) -> bool:
        """Whether anything is still to be kept."""
        return self.looks and not self.store.is_stopped

    def wants(self, kind: str, layer: int) -> bool:
        """Whether a kind is recorded in a layer."""
        return self.is_looking and layer in self.layers.get(kind, ())

    def take(self, kind: str, layer: int, start: int, end: int) -> list[int]:
        """Asked positions from ``start`` to ``end - 1`` that were not taken before; they are now."""
        seen = self.seen.setdefault((kind, layer), set())
        fresh = [p for p in range(start, end) if p in self.wanted and p not in seen]
        seen.update(fresh)
        return fresh

    def take_below(self, kind: str, layer: int, end: int) -> list[int]:
        """Like :meth:`take` for what is known of every position, computed or not."""
        start = self.upto.get((kind, layer), 0)
        self.upto[kind, layer] = max(end, start)
        return [p for p in range(start, end) if p in self.wanted]


def resolve_probe(
    request_id: str,
    anatomy: Anatomy,
    shapes: Sequence[LayerShape],
    capture: Capture | None,
    interventions: Sequence[Intervention],
    length: Length,
    token_id: Callable[[str], list[int]],
) -> RequestProbe:
    """Resolve filters against a model whose layers keep K/V of ``shapes``.

    Raises ``InvalidParameter`` for what the model does not have, ``CaptureTooLarge`` beyond the byte budget.
    """
    changes = tuple(_change(anatomy, shapes, change, length) for change in interventions)
    if capture is None:
        return RequestProbe(CaptureStore(request_id, 0), {}, (), (), (), 1, 1, False, changes)
    layers = {kind: frozenset(_layers(anatomy, capture, kind)) for kind in PER_LAYER if capture.wants(kind)}
    _check_router(anatomy, layers)
    probe = RequestProbe(
        CaptureStore(request_id, capture.max_bytes, capture.dtype),
        layers,
        choose("heads", capture.heads, anatomy.num_heads),
        choose_positions(capture.positions, length),
        tuple(_target(target, anatomy, token_id) for target in capture.targets),
        min(capture.top, _vocabulary(anatomy)),
        min(capture.neighbours, _vocabulary(anatomy) - 1),
        capture.embed,
        changes,
        capture.use_cache,
    )
    _check_not_empty(probe)
    _check_budget(probe, anatomy, shapes, capture, length)
    return probe


def _check_not_empty(probe: RequestProbe) -> None:
    empty = [kind for kind, layers in probe.layers.items() if not layers]
    empty += [name for name in ("heads", "positions") if not getattr(probe, name)]
    if empty:
        raise InvalidParameter(f"{empty[0]}=... chooses none, so nothing would be recorded: choose at least one")


def choose_positions(wanted: Filter, length: Length) -> tuple[int, ...]:
    """Positions of a filter; negative ones count from the end of the prompt, ``prompt`` and ``output`` are names."""
    if isinstance(wanted, str):
        if wanted not in NAMED_POSITIONS:
            raise InvalidParameter(f"positions={wanted!r} must be numbers, a function, 'prompt' or 'output'")
        cut = length.prompt
        return tuple(range(cut) if wanted == "prompt" else range(cut, length.total))
    return choose("positions", wanted, length.total, end=length.prompt)


def _layers(anatomy: Anatomy, capture: Capture, kind: str) -> tuple[int, ...]:
    wanted = getattr(capture, kind)
    field_name = "layers" if wanted is True else kind
    wanted = capture.layers if wanted is True else wanted
    return choose(field_name, wanted, len(anatomy.layers), names=_names(anatomy, field_name))


def _names(anatomy: Anatomy, kind: str) -> Callable[[int], list[str]]:
    return lambda i: [alias.format(hf=anatomy.layer_names[i], i=i) for alias in ALIASES[kind]]


def _check_router(anatomy: Anatomy, layers: dict[str, frozenset[int]]) -> None:
    if "router" not in layers:
        return
    layers["router"] &= anatomy.routers.keys()
    if not layers["router"]:
        raise InvalidParameter("router=...: none of these layers has a router; this records experts of a mixture only")


def _vocabulary(anatomy: Anatomy) -> int:
    return anatomy.model.config.get_text_config().vocab_size


def _target(target: int | str, anatomy: Anatomy, token_id: Callable[[str], list[int]]) -> int:
    ids = token_id(target) if isinstance(target, str) else [target]
    if len(ids) != 1:
        raise InvalidParameter(f"target {target!r} is {len(ids)} tokens: give one token, as text or as an id")
    if not 0 <= ids[0] < _vocabulary(anatomy):
        raise InvalidParameter(f"target {target!r} is not an id from 0 to {_vocabulary(anatomy) - 1}")
    return ids[0]


# -- interventions --------------------------------------------------------------------------------------------


def _change(anatomy: Anatomy, shapes: Sequence[LayerShape], change: Intervention, length: Length) -> Change:
    if not isinstance(change, Ablate | Patch):
        raise InvalidParameter(f"intervene={change!r} must be an Ablate or a Patch, or a list of them")
    positions = frozenset(choose_positions(change.positions, length))
    if isinstance(change, Patch):
        return _patch(anatomy, shapes, change, positions)
    if change.layer is None:
        return Change("input", frozenset(), (), positions, None)
    layers = frozenset(choose("layer", change.layer, len(anatomy.layers), names=_names(anatomy, "layers")))
    if change.head is None:
        return Change("layer", layers, (), positions, None)
    return Change("head", layers, choose("head", change.head, anatomy.num_heads), positions, None)


def _patch(anatomy: Anatomy, shapes: Sequence[LayerShape], patch: Patch, positions: frozenset[int]) -> Change:
    layers = frozenset(choose("layer", patch.layer, len(anatomy.layers)))
    heads = () if patch.head is None else choose("head", patch.head, anatomy.num_heads)
    size = shapes[min(layers)].value_dim if heads else anatomy.width
    if len(patch.value) != size:
        raise InvalidParameter(f"the patch's value has {len(patch.value)} numbers, the model needs {size} here")
    return Change("head" if heads else "layer", layers, heads, positions, torch.from_numpy(patch.value.copy()), "patch")


# -- the byte budget ------------------------------------------------------------------------------------------


def _check_budget(
    probe: RequestProbe,
    anatomy: Anatomy,
    shapes: Sequence[LayerShape],
    capture: Capture,
    length: Length,
) -> None:
    """With an open length only the prompt is counted: the rest is stopped when the budget is reached."""
    total = length.prompt if length.is_open else length.total
    positions = [p for p in probe.positions if p < total]
    sizes = estimate(probe, anatomy, shapes, positions, length.prompt)
    needed = sum(sizes.values())
    if needed > capture.max_bytes:
        parts = ", ".join(f"{kind} {size:,}" for kind, size in sizes.items())
        raise CaptureTooLarge(
            f"the capture may hold {needed:,} bytes ({parts}), max_bytes is {capture.max_bytes:,}: ask for fewer "
            f"layers, heads or positions, a smaller max_tokens, or max_bytes of at least {needed}"
        )


def estimate(
    probe: RequestProbe,
    anatomy: Anatomy,
    shapes: Sequence[LayerShape],
    positions: Sequence[int],
    num_prompt: int,
) -> dict[str, int]:
    """Most bytes per kind, for these positions; an attention row of the prompt may be as long as the prompt."""
    size, count = probe.store.dtype.itemsize, len(positions)
    keys = sum(max(num_prompt, p + 1) for p in positions)
    per_layer = {
        "attention": len(probe.heads) * keys * size,
        "scores": len(probe.heads) * keys * size,
        "hidden": count * anatomy.width * size,
        "lens": count * (probe.top * (4 + size) + 2 * size + len(probe.targets) * (4 + size)),
        "router": count * 4 * _experts(anatomy) * max(size, 4),
    }
    sizes = {kind: amount * len(probe.layers.get(kind, ())) for kind, amount in per_layer.items()}
    numbers = sum(_qkv_numbers(probe.heads, anatomy.num_heads, shapes[i]) for i in probe.layers.get("qkv", ()))
    sizes["qkv"] = count * size * numbers
    sizes["lens"] += count * size if probe.layers.get("lens") else 0
    sizes["embed"] = probe.embed * count * (anatomy.width * size + probe.num_neighbours * (4 + size))
    return {kind: amount for kind, amount in sizes.items() if amount}


def _qkv_numbers(heads: Sequence[int], num_heads: int, shape: LayerShape) -> int:
    kept = len(kv_heads_of(heads, num_heads, shape.num_kv_heads))
    return len(heads) * shape.key_dim + kept * (shape.key_dim + shape.value_dim)


def kv_heads_of(heads: Sequence[int], num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """The K/V heads that some query heads read."""
    return tuple(sorted({head // (num_heads // num_kv_heads) for head in heads}))


def _experts(anatomy: Anatomy) -> int:
    return max(
        (getattr(router, "num_experts", 0) or len(router.weight) for router in anatomy.routers.values()), default=0
    )
