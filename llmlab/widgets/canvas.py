"""The widgets of this package: displays that only the pump writes, drawn by the modules in ``static``."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import anywidget
import traitlets
from ipywidgets import Widget, widget_serialization

from llmlab.widgets.scene_json import palette_json

_STATIC = Path(__file__).parent / "static"
_FILES = ("page.js", "scene.js", "draw.js", "marks.js", "canvas.js", "text.js", "scrub.js", "note.js", "main.js")


@cache
def static(name: str) -> str:
    """A file beside the widgets, as text: a path would make anywidget watch it."""
    return (_STATIC / name).read_text(encoding="utf-8")


@cache
def module() -> str:
    """The drawing code as one module: its files share a scope, so nothing has to be fetched by a URL."""
    return "\n".join(static(name) for name in _FILES)


class Code(anywidget.AnyWidget):
    """The module all displays run: sent once, not with each of them."""

    _esm = "export default {};"
    source = traitlets.Unicode().tag(sync=True)
    style = traitlets.Unicode().tag(sync=True)
    palette = traitlets.Dict().tag(sync=True)

    def __init__(self) -> None:
        super().__init__(source=module(), style=static("panel.css"), palette=palette_json())


class Display(anywidget.AnyWidget):
    """An area on the page, drawn by ``code``. The page never writes its traits; it sends messages."""

    _esm = static("loader.js")
    kind = traitlets.Unicode().tag(sync=True)
    code = traitlets.Instance(Widget).tag(sync=True, **widget_serialization)
    group = traitlets.Unicode().tag(sync=True)  # displays of one group share what the mouse points at

    def close(self) -> None:
        """Close the comm, and that of the layout that came with it."""
        layout = self.layout
        super().close()
        if layout is not None:
            layout.close()


class Canvas(Display):
    """Draws one scene. ``status``: ``state`` and ``error`` as text, ``lost`` events."""

    kind = traitlets.Unicode("canvas").tag(sync=True)
    scene = traitlets.Bytes(b"").tag(sync=True)
    selection = traitlets.Dict().tag(sync=True)
    status = traitlets.Dict().tag(sync=True)

    def show(self, **traits: Any) -> None:
        """Set traits and send those that changed as one message."""
        with self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)


class StreamText(Display):
    """Text as it arrives: a list of parts; additions go out as messages, the whole is kept for a page that reloads."""

    kind = traitlets.Unicode("text").tag(sync=True)
    parts = traitlets.List().tag(sync=True)

    def _should_send_property(self, key: str, value: Any) -> bool:
        return key != "parts" and super()._should_send_property(key, value)


class Scrubber(Display):
    """A slider over recorded steps with play and pause. ``state``: first, last, now (``None``: the end), live."""

    kind = traitlets.Unicode("scrub").tag(sync=True)
    state = traitlets.Dict().tag(sync=True)


class Note(Display):
    """One line. ``state``: text, error."""

    kind = traitlets.Unicode("note").tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
