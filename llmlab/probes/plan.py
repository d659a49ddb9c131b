"""A capture and its interventions, resolved for one model and one request: numbers instead of filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from llmlab.engine.choice import Choice
from llmlab.engine.kv_pool import LayerShape
from llmlab.errors import InvalidParameter
from llmlab.probes.anatomy import Anatomy
from llmlab.probes.budget import check_budget, estimate
from llmlab.probes.capture import ALIASES, NAMED_POSITIONS, PER_LAYER, Capture
from llmlab.probes.choices import ChoiceLog
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
    ``choices`` records how output tokens are chosen, which is nothing inside the model.
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
    choices: ChoiceLog | None = None

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
        """Whether anything is to be recorded inside the model."""
        return bool(self.layers) or self.embed

    @property
    def is_inside(self) -> bool:
        """Whether the forward pass is looked into or changed: what only watches the sampler leaves it alone."""
        return self.looks or bool(self.changes)

    @property
    def watch(self) -> Callable[[Choice], None] | None:
        """What the sampler shows its choices to, ``None`` when nobody looks."""
        return None if self.choices is None or self.store.is_stopped else self.choices.see

    def keep_choice(self, step: int, position: int, num_cached: int) -> None:
        """The token at ``position`` was taken; keep how it was chosen, where that is asked for."""
        if self.choices is not None:
            self.start(step, num_cached)
            self.choices.keep(step, position)

    def start(self, step: int, num_cached: int) -> None:
        """Once per request, say what is asked for and what will be changed."""
        if self.has_started:
            return
        self.has_started = True
        for change in self.changes:
            self.store.note(step, change.action, str(change), tuple(sorted(change.positions)))
        kinds = [*self.layers, *(["embed"] if self.embed else []), *(["distribution"] if self.choices else [])]
        if kinds:
            self.store.note(step, "started", ", ".join(kinds), self.positions, num_cached)

    @property
    def is_looking(self) -> bool:
        """Whether anything inside the model is still to be kept."""
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
    probe.choices = _choices(capture, length, probe)
    # with an open length only the prompt is counted: the rest is stopped when the budget is reached
    total = length.prompt if length.is_open else length.total
    positions = [p for p in probe.positions if p < total]
    check_budget(
        estimate(probe, anatomy, shapes, positions, length.prompt) | _choice_bytes(probe, total), capture.max_bytes
    )
    return probe


def watch_only(request_id: str, capture: Capture, length: Length) -> RequestProbe:
    """A probe that records how tokens are chosen and does not touch the model.

    Raises ``InvalidParameter`` or ``CaptureTooLarge``.
    """
    store = CaptureStore(request_id, capture.max_bytes, capture.dtype)
    probe = RequestProbe(store, {}, (), choose_positions(capture.positions, length), (), 1, 1, False)
    probe.use_cache = capture.use_cache
    probe.choices = _choices(capture, length, probe)
    probe.positions = tuple(sorted(probe.choices.positions))
    probe.wanted = probe.choices.positions
    total = length.prompt if length.is_open else length.total
    check_budget(_choice_bytes(probe, total), capture.max_bytes)
    return probe


def _choices(capture: Capture, length: Length, probe: RequestProbe) -> ChoiceLog | None:
    if not capture.distribution:
        return None
    positions = frozenset(p for p in probe.positions if p >= length.prompt - 1)
    if not positions:
        raise InvalidParameter(
            f"distribution={capture.distribution} records how output tokens are chosen, but positions=... has none "
            "that chooses one: -1 chooses the first output token, 'output' are the later ones"
        )
    return ChoiceLog(probe.store, capture.distribution, positions)


def _choice_bytes(probe: RequestProbe, total: int) -> dict[str, int]:
    if probe.choices is None:
        return {}
    return {"distribution": probe.choices.estimate(sum(p < total for p in probe.choices.positions))}


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
