"""Live panels: the pictures of ``llmlab.views``, drawn while the engine works, linked by one selection."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmlab.widgets.asking import RequestPanel, request_panel
    from llmlab.widgets.board import Dashboard, dashboard
    from llmlab.widgets.debugging import Debugger, debugger
    from llmlab.widgets.panel import Panel
    from llmlab.widgets.selection import Selection

_HOMES = {
    "Dashboard": "board",
    "Debugger": "debugging",
    "Panel": "panel",
    "RequestPanel": "asking",
    "Selection": "selection",
    "dashboard": "board",
    "debugger": "debugging",
    "request_panel": "asking",
}

__all__ = [
    "Dashboard",
    "Debugger",
    "Panel",
    "RequestPanel",
    "Selection",
    "dashboard",
    "debugger",
    "request_panel",
]


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module 'llmlab.widgets' has no attribute {name!r}")
    return getattr(importlib.import_module(f"llmlab.widgets.{_HOMES[name]}"), name)
