"""The mark on every picture of a simulated trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

from llmlab.trace.trace import Trace
from llmlab.views.view import View


def marked(function: Callable[..., View]) -> Callable[..., View]:
    """``function``, whose picture says SIMULATED, and where its step times come from, when a trace it is given was not
    recorded on a real engine."""

    @wraps(function)
    def draw(*args: Any, **options: Any) -> View:
        view = function(*args, **options)
        sources = dict.fromkeys(
            trace.info.simulated
            for trace in _traces((*args, *options.values()))
            if trace.info is not None and trace.info.simulated
        )
        if not sources:
            return view
        return replace(view, simulated=True, notes=(*view.notes, f"Simulated. Step times: {'; '.join(sources)}."))

    return draw


def _traces(values: tuple[Any, ...]) -> Iterator[Trace]:
    for value in values:
        if isinstance(value, Trace):
            yield value
        elif isinstance(value, tuple):  # a trace and a request of it
            yield from _traces(value)
