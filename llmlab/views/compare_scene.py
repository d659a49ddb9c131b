"""The picture of a comparison: settings, counts and requests of two recordings, on the same scales."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from llmlab.views.compared import Metric, Pair, Side
from llmlab.views.glyphs import fit, text_width
from llmlab.views.phrases import fit_prose
from llmlab.views.scene import Key, Line, Mark, Rect, Scene, Text

ROW, PAIR, SECTION = 20, 30, 40
MOST_SETTINGS, MOST_PAIRS = 10, 16
HUE_A, HUE_B = "c0", "c1"


@dataclass(frozen=True, slots=True)
class Comparison:
    """All that was compared."""

    a: Side
    b: Side
    settings: list[Metric]
    params: list[Metric]
    counts: list[Metric]
    pairs: list[Pair]

    @property
    def left_out(self) -> list[str]:
        """What is not drawn, as sentences."""
        found = []
        for noun, items, most in (
            ("settings", self.settings, MOST_SETTINGS),
            ("parameters", self.params, MOST_SETTINGS),
            ("requests", self.pairs, MOST_PAIRS),
        ):
            if len(items) > most:
                found.append(f"The first {most} of {len(items)} {noun} are drawn; the table has all of them.")
        return found


@dataclass(slots=True)
class Canvas:
    """Marks so far, and how wide the picture is."""

    width: float
    a: str
    b: str
    marks: list[Mark] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, width: float, fill: str = "ink", **style: Any) -> None:
        """A label of size 11 that is cut to ``width``."""
        self.marks.append(Text(x, y, fit_prose(text, width, 11, style.get("bold", False)), 11, fill, **style))


def compare_scene(found: Comparison, width: float) -> Scene:
    """Three sections, one below the other."""
    canvas = Canvas(width, found.a.label, found.b.label)
    y = _legend(canvas, found)
    y = _differences(canvas, found, y)
    y = _counts(canvas, found.counts, y)
    y = _pairs(canvas, found.pairs[:MOST_PAIRS], y)
    return Scene(width, y + 8, tuple(canvas.marks))


def _legend(canvas: Canvas, found: Comparison) -> float:
    half = canvas.width / 2
    for x, side, is_b in ((0.0, found.a, False), (half, found.b, True)):
        info = side.trace.info
        what = f"request {side.only}" if side.only is not None else f"{len(side.ids)} requests"
        model = f" on {info.model}, {info.device}, {info.dtype}" if info is not None else ""
        _bar(canvas, x, 4, 34, 12, is_b, "")
        label = fit_prose(side.label, half * 0.4, 13, True)
        canvas.marks.append(Text(x + 42, 15, label, 13, bold=True))
        start = x + 42 + text_width(label, 13) * 1.3 + 12
        canvas.text(start, 15, what + model, half - (start - x) - 12, "muted")
    return 30


def _section(canvas: Canvas, y: float, title: str) -> float:
    y += 22
    canvas.marks.append(Text(0, y, title, 12, bold=True))
    canvas.marks.append(Line(((0, y + 7), (canvas.width, y + 7))))
    return y + 10


def _bar(canvas: Canvas, x: float, y: float, w: float, h: float, is_b: bool, tip: str, key: Key | None = None) -> None:
    """Filled for a, outlined for b."""
    style = {"stroke": HUE_B, "width": 1.5} if is_b else {"fill": HUE_A}
    canvas.marks.append(Rect(x, y, max(w, 3), h, tip=tip, key=key or {}, **style))


# -- settings ------------------------------------------------------------------------------------------------


def _differences(canvas: Canvas, found: Comparison, y: float) -> float:
    y = _section(canvas, y, "set differently")
    rows = [("engine", metric) for metric in found.settings[:MOST_SETTINGS]]
    rows += [(metric.scope, metric) for metric in found.params[:MOST_SETTINGS]]
    if not rows:
        canvas.text(0, y + 14, "nothing: engine settings and sampling parameters are the same", canvas.width, "muted")
        return y + ROW
    share = (canvas.width - 340) / 2
    for scope, metric in rows:
        canvas.text(0, y + 14, scope, 120, "muted")
        canvas.text(130, y + 14, metric.name.removeprefix("param "), 200)
        for x, value, is_b in ((340.0, metric.a, False), (340 + share, metric.b, True)):
            _bar(canvas, x, y + 6, 10, 9, is_b, "")
            canvas.text(x + 18, y + 14, str(value), share - 26, mono=True)
        y += ROW
    return y


# -- counts --------------------------------------------------------------------------------------------------


def _counts(canvas: Canvas, metrics: list[Metric], y: float) -> float:
    y = _section(canvas, y, "counted")
    width, bar_x = canvas.width, 200.0
    bar_w, columns = width - bar_x - 250, (width - 160, width - 75, width)
    for x, title in zip(columns, (canvas.a, canvas.b, "ratio"), strict=True):
        text = title if title == "ratio" else fit(title, 80, 11)
        canvas.marks.append(Text(x, y - 10, text, 11, "muted", anchor="end"))
    for metric in metrics:
        y = _count(canvas, metric, y, bar_x, bar_w, columns)
    return y


def _count(
    canvas: Canvas, metric: Metric, y: float, bar_x: float, bar_w: float, columns: tuple[float, float, float]
) -> float:
    canvas.text(0, y + 16, metric.name, bar_x - 10)
    most = max(metric.a or 0, metric.b or 0) or 1
    for top, value, is_b, label in ((5, metric.a, False, canvas.a), (13, metric.b, True, canvas.b)):
        if value:
            tip = f"{label}: {_number(value)} {metric.unit}"
            _bar(canvas, bar_x, y + top, bar_w * value / most, 7, is_b, tip)
    ratio = "" if metric.ratio is None else "same" if metric.a == metric.b else f"x {metric.ratio:.2f}"
    fills = ("ink", "ink", "muted")
    for x, text, fill in zip(columns, (_number(metric.a), _number(metric.b), ratio), fills, strict=True):
        canvas.marks.append(Text(x, y + 16, text, 11, fill, anchor="end"))
    return y + 24


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


# -- requests ------------------------------------------------------------------------------------------------


def _pairs(canvas: Canvas, pairs: list[Pair], y: float) -> float:
    y = _section(canvas, y, "requests, matched by order")
    if not pairs:
        canvas.text(0, y + 14, "no requests on either side", canvas.width, "muted")
        return y + ROW
    name_w, said_w = 86.0, 346.0
    share = (canvas.width - name_w - said_w) / 3
    starts = [name_w + said_w + share * i for i in range(3)]
    most = [max((v for pair in pairs for v in (pair.times[i].a, pair.times[i].b) if v), default=1.0) for i in range(3)]
    for x, metric in zip(starts, pairs[0].times, strict=True):
        canvas.marks.append(Text(x, y - 10, f"{metric.name}, ms", 11, "muted"))
    for pair in pairs:
        _sayings(canvas, pair, y, name_w, said_w)
        for x, metric, top in zip(starts, pair.times, most, strict=True):
            _time(canvas, pair, metric, x, y, share, top)
        y += PAIR + 4
    return y


def _sayings(canvas: Canvas, pair: Pair, y: float, name_w: float, said_w: float) -> None:
    key = {"request": pair.a or pair.b or ""}
    is_same = pair.tokens.startswith("same tokens")
    middle = 20 if not pair.prompt else 14
    canvas.text(0, y + middle, pair.name, name_w - 8, bold=True, key=key)
    mark = "=" if is_same else "≠"
    tip = f"{pair.name}: {pair.tokens}; {pair.prompt or 'same prompt'}"
    canvas.text(name_w, y + middle, f"{mark} {pair.tokens}", said_w - 14, "ink" if is_same else "alarm", tip=tip)
    if pair.prompt:
        canvas.text(name_w + 14, y + 28, pair.prompt, said_w - 28, "muted")


def _time(canvas: Canvas, pair: Pair, metric: Metric, x: float, y: float, share: float, most: float) -> None:
    room = share - 64
    for top, value, is_b, request in ((4, metric.a, False, pair.a), (18, metric.b, True, pair.b)):
        label = canvas.b if is_b else canvas.a
        if value is None:
            canvas.text(x, y + top + 9, "not recorded" if request else "", share - 8, "muted")
            continue
        w = room * value / most
        tip = f"{label} {request}: {metric.name} {value:,.2f} ms"
        _bar(canvas, x, y + top, w, 9, is_b, tip, {"request": request or ""})
        canvas.marks.append(Text(x + max(w, 2) + 6, y + top + 9, f"{value:,.2f}", 10, "muted"))
