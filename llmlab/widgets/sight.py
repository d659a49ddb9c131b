"""Whether anybody can see a display, as the pages that show it tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

MAX_VIEWS = 100  # a page that goes away without a word leaves its view behind


class Sight:
    """Visible until a page tells otherwise; with several views, while one of them is. ``wake`` is called when it
    becomes visible."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._views: dict[str, bool] = {}

    @property
    def is_visible(self) -> bool:
        """Whether a view can be seen, or none has told."""
        views = list(self._views.values())
        return not views or any(views)

    def receive(self, message: Mapping[str, Any]) -> None:
        """A page's message of type ``visible``."""
        view, is_visible = str(message.get("view"))[:40], message.get("visible") is True
        self._views = {**dict(list(self._views.items())[-MAX_VIEWS:]), view: is_visible}
        if is_visible:
            self._wake()
