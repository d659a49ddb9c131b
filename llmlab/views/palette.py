"""Colours by role, in a light and a dark theme. Hues are Okabe and Ito's, which colour-blind readers can tell apart.

Roles, not colours, are what views name: the same picture is drawn in either theme. Colour is never the only channel:
a view that means something by it also says it by outline, hatching, place or words.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from llmlab.errors import InvalidParameter

# ink, muted and alarm are for text on the panel: at least 4.5:1 against it in both themes
LIGHT: Mapping[str, str] = MappingProxyType(
    {
        "panel": "#ffffff",
        "ink": "#1f2328",
        "muted": "#59636e",
        "alarm": "#a32a00",
        "line": "#d1d9e0",
        "faint": "#eff2f5",
        "mark": "#0072b2",  # what there is one kind of: a curve, a bar, a grid's strongest cell
        "c0": "#0072b2",
        "c1": "#e69f00",
        "c2": "#009e73",
        "c3": "#cc79a7",
        "c4": "#56b4e9",
        "c5": "#d55e00",
        "c6": "#f0e442",
        "c7": "#8c6bb1",
    }
)
DARK: Mapping[str, str] = MappingProxyType(
    {
        **LIGHT,
        "panel": "#14181d",
        "ink": "#e6edf3",
        "muted": "#9da7b3",
        "alarm": "#ff9a73",
        "line": "#3a434d",
        "faint": "#222932",
        "mark": "#56b4e9",
        "c0": "#4f9fd8",
    }
)
THEMES: Mapping[str, Mapping[str, str]] = MappingProxyType({"light": LIGHT, "dark": DARK})
TEXT_ROLES = ("ink", "muted", "alarm")
NUM_HUES = 8


def hue(number: int) -> str:
    """The role of category ``number``; hues repeat after ``NUM_HUES``, so write the category's name beside it."""
    return f"c{number % NUM_HUES}"


def theme(name: str) -> Mapping[str, str]:
    """Role -> ``#rrggbb``. Raises ``InvalidParameter`` for a theme that is not there."""
    if name not in THEMES:
        raise InvalidParameter(f"theme={name!r} is none: choose {' or '.join(map(repr, THEMES))}")
    return THEMES[name]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb`` between 0 and 1 (WCAG 2)."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21 (WCAG 2)."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def blend(low: str, high: str, share: float) -> str:
    """The colour ``share`` of the way from ``low`` to ``high``."""
    pairs = [(int(low[i : i + 2], 16), int(high[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def readable_on(colour: str) -> str:
    """Black or white, whichever reads better on ``colour``: at least 4.5:1 on any."""
    return max("#000000", "#ffffff", key=lambda ink: contrast(ink, colour))
