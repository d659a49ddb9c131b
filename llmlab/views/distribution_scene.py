"""The drawing of how a token was chosen: columns of bars on one scale, then the final distribution end to end."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import count
from llmlab.views.sampling import Sampled
from llmlab.views.scene import Line, Mark, Rect, Scene, Text

MAX_ROWS = 20
ROW, BAR, HEAD, GAP = 22.0, 12.0, 62.0, 14.0
STRIP = 30.0
SMALL = 10.0
BOLD = 1.1  # bold text is wider than plain
LEAST = 0.4  # pixels: less is not seen


@dataclass(frozen=True, slots=True)
class Panel:
    """What is drawn where: candidates ``rows`` (places in the choice), a column for each of ``stages``."""

    found: Sampled
    labels: list[str]
    rows: list[int]
    how: str
    width: float

    @property
    def stages(self) -> list[int]:
        """Places of the stages that have a column. The final one has none: it equals the one before it, or is a single
        token that was taken."""
        return list(range(max(1, len(self.found.choice.stages) - 1)))

    @property
    def label_width(self) -> float:
        """Room for ranks and tokens."""
        return min(170.0, self.width * 0.19)

    @property
    def column(self) -> float:
        """Width of a column and the gap after it."""
        return (self.width - self.label_width) / len(self.stages)

    @property
    def area(self) -> float:
        """Width of a column's bars."""
        return self.column - GAP

    @property
    def scale(self) -> float:
        """The probability that is as wide as the area."""
        shown = self.found.choice.prob[np.ix_(self.stages, self.rows)]
        most = float(np.nanmax(shown, initial=0.0))
        return next((tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5) if tick >= most), 1.0)

    @property
    def bottom(self) -> float:
        """Where the rows end."""
        return HEAD + ROW * len(self.rows)

    def x(self, place: int) -> float:
        """Left end of a column."""
        return self.label_width + place * self.column

    def tip(self, i: int) -> str:
        """A candidate in one line."""
        rank = int(self.found.choice.rank[i])
        where = f"rank {rank} by the model (0: likeliest)" if rank >= 0 else "none of the likeliest"
        return f"{self.labels[i]}, id {int(self.found.choice.ids[i])}, {where}"


def draw_scene(panel: Panel) -> Scene:
    """All marks; what lies behind comes first."""
    marks = [*_rows(panel)]
    for place, stage in enumerate(panel.stages):
        marks += [*_head(panel, place, stage), *_bars(panel, place, stage), *_others(panel, place, stage)]
    y = panel.bottom + ROW + 26
    marks.append(Text(0, y + 6, fit(panel.how, panel.width * 0.62, 12 * BOLD), bold=True))
    if _has_strip(panel):
        marks += _strip(panel, y + 20)
        y += 20 + STRIP + 12
    marks += _legend(panel, y + 34)
    return Scene(panel.width, y + 42, tuple(marks))


def _has_strip(panel: Panel) -> bool:
    return panel.found.is_whole and not panel.found.is_greedy


# -- the columns ----------------------------------------------------------------------------------------------


def _rows(panel: Panel) -> Iterator[Mark]:
    """The band of the chosen token, then ranks and labels."""
    choice, key = panel.found.choice, panel.found.key
    yield Text(0, HEAD - 8, "rank", SMALL, "muted")
    yield Text(34, HEAD - 8, "token", SMALL, "muted")
    for line, i in enumerate(panel.rows):
        y = HEAD + ROW * line
        chosen = i == choice.chosen
        if chosen:
            yield Rect(0, y + 1, panel.width, ROW - 2, "faint", "ink", 1, tip=f"chosen: {panel.tip(i)}", key=key)
        rank = "–" if choice.rank[i] < 0 else f"{int(choice.rank[i]):,}"
        yield Text(28, y + 15, fit(rank, 26, SMALL), SMALL, "muted", anchor="end", tip=panel.tip(i))
        label = fit(panel.labels[i], panel.label_width - 44, 12, mono=True)
        yield Text(34, y + 15, label, 12, mono=True, bold=chosen, tip=panel.tip(i), key=key)


def _head(panel: Panel, place: int, stage: int) -> Iterator[Mark]:
    choice, x, area = panel.found.choice, panel.x(place), panel.area
    name, setting = choice.stages[stage], panel.found.setting(choice.stages[stage])
    size = 12 if text_width(name, 12 * BOLD) <= area else SMALL
    yield Text(x, 12, fit(name, area, size * BOLD), size, bold=True, tip=f"{name} {setting}")
    lines = [(setting, setting)]
    if panel.found.is_whole:
        lines.append((f"{int(choice.possible[stage]):,} possible", "tokens of the vocabulary that are not excluded"))
        lines.append((f"{choice.entropy[stage]:.2f} nats", "entropy of the whole distribution"))
    for line, (written, tip) in enumerate(lines):
        written = written if text_width(written, SMALL) <= area else written.replace("possible", "left")
        yield Text(x, 26 + 13 * line, fit(written, area, SMALL), SMALL, "muted", tip=tip)
    yield Line(((x, HEAD), (x, panel.bottom)))


def _bars(panel: Panel, place: int, stage: int) -> Iterator[Mark]:
    choice = panel.found.choice
    excluded = choice.excluded[stage]
    for line, i in enumerate(panel.rows):
        y, tip = HEAD + ROW * line, f"{choice.stages[stage]}: {panel.tip(i)}"
        if excluded[i]:
            yield from _excluded(panel, place, y, f"{tip}, excluded by {choice.left_at(i)}", choice.left_at(i), stage)
        else:
            yield from _bar(panel, panel.x(place), y, float(choice.prob[stage][i]), i, tip)


def _excluded(panel: Panel, place: int, y: float, tip: str, left: str | None, stage: int) -> Iterator[Mark]:
    """Struck out; the word stands where it happened."""
    x, here = panel.x(place) + 1, left == panel.found.choice.stages[stage]
    yield Rect(x, y + 5, BAR, BAR, "", "muted", hatch=True, dash=not here, tip=tip, key=panel.found.key)
    if here and panel.area > 50:
        yield Text(x + BAR + 4, y + 15, "out", SMALL, "alarm")


def _bar(panel: Panel, x: float, y: float, p: float, i: int, tip: str) -> Iterator[Mark]:
    chosen = i == panel.found.choice.chosen
    if math.isnan(p):
        yield Text(x + 4, y + 15, "not recorded", SMALL, "muted")
        return
    w = max(panel.area * p / panel.scale, LEAST)
    outline = {"stroke": "ink", "width": 1.5} if chosen else {}
    tip = f"{tip}: probability {p:.6f}"
    yield Rect(x, y + 5, w, BAR, "c1" if chosen else "mark", tip=tip, key=panel.found.key, **outline)
    written = percent(p)
    room = text_width(written, SMALL)
    if w + 4 + room <= panel.area:
        yield Text(x + w + 4, y + 15, written, SMALL, "ink" if chosen else "muted")
    elif room + 6 <= w:
        yield Text(x + w - 4, y + 15, written, SMALL, on="c1" if chosen else "mark", anchor="end")


def _others(panel: Panel, place: int, stage: int) -> Iterator[Mark]:
    """What is left for all tokens that have no row: rows and this make 1."""
    choice, y = panel.found.choice, panel.bottom
    rest = 1.0 - float(np.nansum(choice.prob[stage][panel.rows]))
    if place == 0:
        yield Line(((0, y), (panel.width, y)))
        yield Text(34, y + 15, fit("all other tokens", panel.label_width - 40, 11), 11, "muted")
    listed = int((~choice.excluded[stage][panel.rows]).sum())
    tokens = f"{count(int(choice.possible[stage]) - listed, 'token')} together" if panel.found.is_whole else "together"
    rest = max(rest, 0.0) if rest > -1e-3 else rest
    tip = f"{choice.stages[stage]}: tokens without a row, {tokens}: {rest:.6f}"
    yield Text(panel.x(place) + 4, y + 15, fit(percent(rest), panel.area, SMALL), SMALL, "muted", tip=tip)


def percent(p: float) -> str:
    """A probability in percent; a small one is not written as 0."""
    if 0 < p < 0.0005:
        return "<0.1 %"
    return f"{100 * p:.1f} %"


# -- the draw -------------------------------------------------------------------------------------------------


def _strip(panel: Panel, y: float) -> Iterator[Mark]:
    """The final distribution end to end in order of token id, and the number drawn."""
    choice = panel.found.choice
    possible = f"{int(choice.possible[-1]):,} possible"
    tip = f"all tokens in order of id, {possible}; what is not filled belongs to tokens without a row"
    title = fit("final distribution: all tokens end to end, by id", panel.width * 0.36, SMALL)
    yield Text(panel.width, y - 14, title, SMALL, "muted", anchor="end", tip=tip)
    yield Rect(0, y, panel.width, STRIP, "faint", "line", tip=tip)
    order = sorted((i for i in panel.rows if choice.prob[-1][i] > 0), key=lambda i: i == choice.chosen)
    for i in order:  # the chosen one last: its outline lies on its neighbours
        yield from _segment(panel, i, y)
    yield from _axis(panel, y + STRIP)


def _segment(panel: Panel, i: int, y: float) -> Iterator[Mark]:
    choice = panel.found.choice
    low, p, chosen = float(choice.below[i]), float(choice.prob[-1][i]), i == choice.chosen
    x = min(max(low, 0.0), 1.0) * panel.width
    w = min(max(p * panel.width, LEAST), panel.width - x)
    tip = f"{panel.tip(i)}: from {low:.6f} to {low + p:.6f}"
    fill, stroke = ("c1", "ink") if chosen else ("mark", "panel")
    yield Rect(x, y, w, STRIP, fill, stroke if w > 2 else "", 1.5 if chosen else 1, tip=tip, key=panel.found.key)
    if chosen:  # its label lies beside the line of the number drawn
        x, w = _wider(x, w, choice.uniform * panel.width)
    label = fit(panel.labels[i], w - 6, 11, mono=True)
    if label and (label[-1] != "…" or len(label) > 3):
        yield Text(x + w / 2, y + 19, label, 11, on=fill, anchor="middle", mono=True, bold=chosen, tip=tip)


def _wider(x: float, w: float, cut: float) -> tuple[float, float]:
    """The wider part of a stretch cut in two, or all of it."""
    if not x < cut < x + w:
        return x, w
    return (x, cut - x) if cut - x > w / 2 else (cut, x + w - cut)


def _axis(panel: Panel, y: float) -> Iterator[Mark]:
    u, at = panel.found.choice.uniform, -1.0
    if not math.isnan(u):
        at = min(max(u, 0.0), 1.0) * panel.width
        tip = f"the uniform number drawn: {u:.7f}"
        yield Line(((at, y - STRIP - 6), (at, y + 6)), "ink", 2, tip=tip, key=panel.found.key)
        anchor = "start" if at < 60 else "end" if at > panel.width - 60 else "middle"
        yield Text(at, y + 18, f"u = {u:.4f}", 11, bold=True, anchor=anchor, tip=tip)
    taken = (at - 60, at + 60)
    for end, word, anchor in ((0.0, "0", "start"), (panel.width, "1", "end")):
        if not taken[0] < end < taken[1]:
            yield Text(end, y + 16, word, SMALL, "muted", anchor=anchor)


def _legend(panel: Panel, y: float) -> Iterator[Mark]:
    """What outline and hatching mean, and how wide the bars are."""
    x = 0.0
    yield Rect(x, y - 10, BAR, BAR, "c1", "ink", 1.5)
    yield Text(x + 18, y, "chosen", SMALL, "muted")
    if panel.found.choice.excluded[np.ix_(panel.stages, panel.rows)].any():
        yield Rect(x + 72, y - 10, BAR, BAR, "", "muted", hatch=True)
        yield Text(x + 90, y, "excluded here", SMALL, "muted")
        yield Rect(x + 172, y - 10, BAR, BAR, "", "muted", hatch=True, dash=True)
        yield Text(x + 190, y, "before", SMALL, "muted")
    scale = f"full bar: {100 * panel.scale:g} %, in every column"
    yield Text(panel.width, y, scale, SMALL, "muted", anchor="end")
