"""What the boxes, bars and brackets of a token strip mean."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import MappingProxyType

from llmlab.views.glyphs import fit, text_width
from llmlab.views.scene import Line, Mark, Rect, Text
from llmlab.views.strip_layout import GUTTER, box
from llmlab.views.strip_tokens import HALF, NEVER, TokenFact

LEGEND_LINE = 20
WORDS = MappingProxyType(
    {
        "prompt": "prompt, computed",
        "cached": "prompt, served from cache",
        "shared": "prompt, shared with the first sample",
        "target": "sampled from the target",
        "accepted": "accepted draft token",
        "recovered": "recovered, for a rejected one",
        "bonus": "bonus, after a whole draft",
    }
)


def legend(marks: list[Mark], facts: Sequence[TokenFact], y: float, width: float) -> float:
    """What boxes, bars and brackets mean: those in the picture only. Returns where it ends."""
    y, x = y + 6, float(GUTTER)
    entries = [(source, WORDS[source]) for source in WORDS if any(fact.source == source for fact in facts)]
    if any(not math.isnan(fact.logprob) for fact in facts):
        entries.append(("bar", "probability under the model (box width = 1)"))
    reasons = sorted({fact.held for fact in facts} - {"", NEVER}, key=lambda reason: reason != HALF)
    if reasons:
        entries.append(("held", f"text held back: {' / '.join(reasons)}"))
    if any(fact.held == NEVER for fact in facts):
        entries.append(("never", "never shown: stop text, or a token without text"))
    for kind, words in entries:
        needed = 24 + text_width(words, 11) + 18
        if x + needed > width and x > GUTTER:
            x, y = float(GUTTER), y + LEGEND_LINE
        marks += [_sample(kind, x, y), Text(x + 24, y + 11, fit(words, width - x - 24, 11), 11, "muted")]
        x += needed
    return y + LEGEND_LINE if entries else y


def _sample(kind: str, x: float, y: float) -> Mark:
    if kind == "bar":
        return Rect(x, y + 6, 18, 4, "mark")
    if kind in ("held", "never"):
        return Line(((x, y + 5), (x, y + 9), (x + 18, y + 9), (x + 18, y + 5)), "alarm", 1.5, dash=kind == "never")
    return box(kind, x, y + 1, 18, 12)
