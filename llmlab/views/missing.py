"""A view of a trace that lacks what the view is about."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from llmlab.views.glyphs import wrap
from llmlab.views.scene import Rect, Scene, Text
from llmlab.views.view import View


def missing_view(name: str, title: str, what: str, columns: Sequence[str], width: float = 960) -> View:
    """A picture that says ``what`` is missing and how to record it, with an empty table of ``columns``."""
    lines = wrap(what, width - 48, 13)
    height = 38 + 18 * len(lines)
    frame = Rect(0, 0, width, height, stroke="line", dash=True, tip=what)
    words = [Text(16, 33 + 18 * i, line, 13, "muted", tip=what) for i, line in enumerate(lines)]
    return View(name, title, what, what, Scene(width, height + 4, (frame, *words)), pd.DataFrame(columns=list(columns)))
