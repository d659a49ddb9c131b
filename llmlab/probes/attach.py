"""Giving a request of an engine its probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from llmlab.errors import InvalidParameter
from llmlab.probes.capture import Capture
from llmlab.probes.intervene import Ablate, Intervention, Patch
from llmlab.probes.plan import Length, RequestProbe, resolve_probe, watch_only
from llmlab.probes.store import CaptureStore

if TYPE_CHECKING:
    from llmlab.engine.engine import Engine
    from llmlab.engine.request import Request


def attach(
    engine: Engine,
    requests: Sequence[Request],
    capture: Capture | None,
    intervene: Intervention | Sequence[Intervention],
) -> None:
    """Resolve what is asked for against the engine's model. Of several samples the first is recorded; interventions
    are for all, because they share a prompt.

    Raises ``InvalidParameter`` or ``CaptureTooLarge``.
    """
    if not (capture is None or isinstance(capture, Capture)):
        raise InvalidParameter(f"capture={capture!r} must be a Capture(...), from llmlab.probes")
    first, *others = requests
    changes = [intervene] if isinstance(intervene, Ablate | Patch) else list(intervene)
    if capture is not None and not capture.is_inside and not changes:
        first.probe = watch_only(first.id, capture, length_of(first))
        return
    anatomy = getattr(engine.runner, "anatomy", None)
    if anatomy is None:
        raise InvalidParameter(f"the model {engine.runner.model!r} has nothing to look into: open a real one")
    first.probe = resolve_probe(
        first.id, anatomy, engine.runner.pool.shapes, capture, changes, length_of(first), _encoder(engine.tokenizer)
    )
    for other in others if changes else ():
        other.probe = _changes_only(first.probe, other.id)


def length_of(request: Request) -> Length:
    """Positions a request may compute: all but that of its last token."""
    total = request.num_prompt + max(request.max_tokens - 1, 0)
    return Length(request.num_prompt, total, request.params.max_tokens is None)


def _changes_only(probe: RequestProbe, request_id: str) -> RequestProbe:
    """The same interventions for another sample, recording nothing, counting for itself."""
    return replace(probe, store=CaptureStore(request_id, 0), layers={}, embed=False, seen={}, upto={}, choices=None)


def _encoder(tokenizer):
    return lambda text: list(tokenizer.encode(text, add_special_tokens=False))
