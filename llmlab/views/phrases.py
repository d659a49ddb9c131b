"""Numbers and ends of long texts as short words."""

from __future__ import annotations

from collections.abc import Iterable

from llmlab.views.glyphs import fit, text_width, visible


def count(number: int, noun: str) -> str:
    """``1 frame``, ``1,204 frames``; nouns in -y and -s as English has them."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {plural}"


def ms(nanoseconds: float) -> str:
    """Milliseconds with as many decimals as are worth reading."""
    value = nanoseconds / 1e6
    decimals = 2 if abs(value) < 100 else 1 if abs(value) < 1_000 else 0
    shown = f"{value:,.{decimals}f}"
    return shown.removeprefix("-") if not shown.strip("-0.,") else shown


def fit_prose(text: str, width: float, size: float, bold: bool = False) -> str:
    """:func:`~llmlab.views.glyphs.fit` for text that may be all wide letters or bold, which takes more room."""
    return fit(text, width * (0.84 if bold else 0.92), size)


def fit_end(text: str, width: float, size: float, mono: bool = False) -> str:
    """The end of ``text`` that fits into ``width`` pixels, an ellipsis before it when it is cut."""
    cells = int(width / (size * 0.602 if mono else size * 0.56))
    shown = visible(text[-max(cells, 0) :]) if cells else ""
    if len(text) <= cells and text_width(shown, size, mono) <= width:
        return shown
    while shown and text_width("…" + shown, size, mono) > width:
        shown = shown[1:]
    return "…" + shown if shown else ""


def some(words: Iterable[str], most: int = 6) -> str:
    """Words joined by commas, at most ``most`` of them and the number of the others."""
    found = list(words)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def quoted(text: str, most: int) -> str:
    """``text`` in quotes, visible and cut to ``most`` characters."""
    return f'"{visible(text, limit=most)}"'
