"""Which arguments a panel gives to its view: those it was made with, and what is selected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.trace.trace import Trace
from llmlab.views.view import View
from llmlab.widgets.selection import Point

ViewFunction = Callable[..., View]

# a view's argument -> the field of the selection it follows
FOLLOWED: Mapping[str, str] = {
    "request_id": "request",
    "step": "step",
    "position": "position",
    "selected": "position",
    "layer": "layer",
    "head": "head",
    "block": "block",
    "wire_id": "wire",
}


def view_function(view: str | ViewFunction) -> ViewFunction:
    """The function of :mod:`llmlab.views` of that name, or ``view`` itself. Raises ``InvalidParameter``."""
    if callable(view):
        return view
    import llmlab.views

    found = getattr(llmlab.views, view, None) if isinstance(view, str) else None
    if not callable(found):
        raise InvalidParameter(f"{view!r} is no view: give a function of llmlab.views, or its name")
    return found


def accepted(function: ViewFunction) -> frozenset[str]:
    """Names of the arguments that the view takes besides the trace."""
    return frozenset(list(inspect.signature(function).parameters)[1:])


def check(function: ViewFunction, arguments: Mapping[str, Any]) -> None:
    """Raises ``InvalidParameter`` for an argument the view does not take."""
    known = accepted(function)
    for name in arguments:
        if name not in known:
            raise InvalidParameter(
                f"{function.__name__}() takes no {name}=: it takes {', '.join(sorted(known)) or 'nothing'}"
            )


def followed(function: ViewFunction, point: Point, trace: Trace) -> dict[str, Any]:
    """The arguments that the selection stands for."""
    known, key = accepted(function), point.key()
    found = {name: key[field] for name, field in FOLLOWED.items() if name in known and field in key}
    if "wire_id" in known and "wire_id" not in found and point.request in _served(trace):
        found["wire_id"] = point.request  # the exchange that carried the selected request
    if "index" in known and (index := _output_index(point, trace)) is not None:
        found["index"] = index
    return found


def attempts(chosen: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the selection stands for, then less of it: a view may know the request but not the layer."""
    less = {name: value for name, value in chosen.items() if name in ("request_id", "wire_id")}
    return [dict(chosen), *([less] if less and less != chosen else []), *([{}] if chosen else [])]


def _served(trace: Trace) -> set[str]:
    """The engine requests that came over the wire."""
    return {link.other_id for link in trace.index.links if link.relation == "engine"}


def _output_index(point: Point, trace: Trace) -> int | None:
    """Which output token of the selected request stands at the selected position."""
    submitted = trace.index.submitted.get(point.request or "")
    if submitted is None or point.position is None:
        return None
    index = point.position - len(submitted.prompt_token_ids)
    return index if index >= 0 else None
