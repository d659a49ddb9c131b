"""How requests are told apart in a picture: a hue by order of arrival, and a name that fits where there is no room."""

from __future__ import annotations

from llmlab.trace.index import Index
from llmlab.views.glyphs import fit, visible
from llmlab.views.palette import hue

MAX_SHORT = 4


class Names:
    """Names and hues of a trace's requests. Where an id is too long for a cell, all have a number (``#0`` came first)
    that is also written before the id."""

    def __init__(self, index: Index) -> None:
        self._code = index.code
        self._are_short = all(len(visible(i)) <= MAX_SHORT for i in index.request_ids)

    def hue(self, request_id: str) -> str:
        """The role of the request's colour."""
        return hue(self._code.get(request_id, 0))

    def short(self, request_id: str) -> str:
        """At most a few characters."""
        return visible(request_id) if self._are_short else f"#{self._code.get(request_id, '?')}"

    def full(self, request_id: str, width: float, size: float) -> str:
        """The id, with its number where short names are numbers, in ``width`` pixels."""
        return fit(visible(request_id) if self._are_short else f"{self.short(request_id)} {request_id}", width, size)
