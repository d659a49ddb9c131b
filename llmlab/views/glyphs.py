"""Untrusted text made visible: what would be invisible, reorder a line or break a file is shown as a glyph."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len, set_cell_size

_NAMED = {" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"}
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp", "Zs"}  # controls, bidirectional marks, surrogates, odd spaces


LIMIT = 2_000


def visible(text: str, spaces: bool = False, limit: int = LIMIT) -> str:
    """``text`` on one line, without controls, bidirectional marks or lone surrogates; at most ``limit`` characters of
    it, with an ellipsis for the rest. ``spaces`` shows ordinary spaces too."""
    if len(text) <= limit and not spaces and text.isprintable():
        return text
    cut = text[:limit]
    shown = "".join(_glyph(c, spaces) for c in cut)
    return shown + ("…" if len(text) > limit else "")


def _glyph(character: str, spaces: bool) -> str:
    if character == " " and not spaces:
        return " "
    if character in _NAMED:
        return _NAMED[character]
    if character == "\u200d" or unicodedata.category(character) not in _HIDDEN:
        return character
    return f"<{ord(character):04X}>"


def visible_bytes(piece: bytes) -> str:
    """The text of a token's bytes with visible whitespace; bytes that are no whole character as ``<0xF0>``. At most
    ``LIMIT`` bytes of it, with an ellipsis for the rest."""
    if len(piece) > LIMIT:
        return visible_bytes(piece[:LIMIT]) + "…"
    try:
        return visible(piece.decode("utf-8"), spaces=True)
    except UnicodeDecodeError:
        return "".join(f"<0x{p:02X}>" if isinstance(p, int) else visible(p, spaces=True) for p in _split(piece))


def _split(piece: bytes) -> list[str | int]:
    """Characters of ``piece`` where it decodes, else its bytes one by one."""
    parts: list[str | int] = []
    at = 0
    while at < len(piece):
        for length in (1, 2, 3, 4):
            try:
                parts.append(piece[at : at + length].decode("utf-8"))
                at += length
                break
            except UnicodeDecodeError:
                continue
        else:
            parts.append(piece[at])
            at += 1
    return parts


def text_width(text: str, size: float, mono: bool = False) -> float:
    """About how many pixels ``text`` takes at font size ``size``: East Asian characters count as two cells."""
    return cell_len(text) * size * (0.602 if mono else 0.56)


def fit(text: str, width: float, size: float, mono: bool = False) -> str:
    """As much of ``text`` as fits into ``width`` pixels, with an ellipsis when cut; empty when nothing does."""
    text = visible(text)
    if text_width(text, size, mono) <= width:
        return text
    cells = int(width / (size * (0.602 if mono else 0.56))) - 1
    return set_cell_size(text, cells).rstrip() + "…" if cells > 0 else ""


def wrap(text: str, width: float, size: float) -> list[str]:
    """``text`` as lines of at most ``width`` pixels, broken between words; a longer word is cut."""
    lines = [""]
    for word in visible(text).split(" "):
        longer = f"{lines[-1]} {word}" if lines[-1] else word
        if not lines[-1] or text_width(longer, size) <= width:
            lines[-1] = fit(longer, width, size)
        else:
            lines.append(fit(word, width, size))
    return lines
