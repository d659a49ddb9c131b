"""What the planner's pictures share: the mark COMPUTED, where figures are from, and words for numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.planner.bars import figure
from llmlab.planner.devices import Device
from llmlab.planner.memory import MemoryPlan
from llmlab.views.scene import Scene
from llmlab.views.view import View

COMPUTED = "COMPUTED"
MAX_ROWS = 24


def computed(
    name: str, title: str, alt: str, lines: Iterable[str], scene: Scene, rows: Iterable[dict], notes: Iterable[str]
) -> View:
    """A view of computed numbers: ``lines`` follow ``alt`` in its text, ``rows`` are its table."""
    text = "\n".join([alt, *lines])
    return View(name, f"{COMPUTED}: {title}", alt, text, scene, pd.DataFrame(list(rows)), tuple(notes))


def sources(devices: Iterable[Device]) -> list[str]:
    """Each device's figures and where they are from. Measured ones stay out of the text, which a second run repeats."""
    return list(dict.fromkeys(_source(each) for each in devices))


def _source(each: Device) -> str:
    if each.is_measured:
        return f"{each.name}: its limits were measured here, the table has them."
    memory, bandwidth = figure(each.memory_bytes / 1e9), figure(each.bytes_per_s / 1e12)
    return f"{each.name}: {memory} GB, {bandwidth} TB/s ({each.source})."


def scopes(plans: Iterable[MemoryPlan]) -> list[str]:
    """What is held in which format, one line for all formats that hold the same."""
    held = {
        "plain": "everything",
        "layers": "the layers' matrices, with their scales; the rest in 16 bits",
        "head": "the layers' matrices and the head, with their scales; the rest in 16 bits",
        "all": "every parameter, no scales (nominal)",
    }
    names: dict[str, list[str]] = {}
    for plan in plans:
        formats = names.setdefault("plain" if plan.weights.is_float else plan.scope, [])
        formats += [plan.weights.name] * (plan.weights.name not in formats)
    return [f"Weights in {', '.join(formats)}: {held[scope]}." for scope, formats in names.items()]


def number(things: Sequence | int, noun: str) -> str:
    """``1 request``, ``1,204 requests``."""
    count = things if isinstance(things, int) else len(things)
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def check_some(things: Sequence, noun: str, most: int = MAX_ROWS) -> None:
    """Raise ``InvalidParameter`` for none, or for more than can be drawn."""
    if not 1 <= len(things) <= most:
        raise InvalidParameter(f"{len(things)} {noun}s cannot be drawn: give 1 to {most}")
