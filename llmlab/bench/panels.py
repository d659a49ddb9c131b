"""What live panels cost: the engine's speed, what goes to the page, the page's main thread, until it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from llmlab.bench.panels_lab import PACE, STREAMS, Watching, measure_watching
from llmlab.bench.panels_page import Pages, Window, measure_pages
from llmlab.bench.panels_views import INDEX, SMALL, USUAL, Built, Size, large_trace, measure_views, slowest
from llmlab.bench.report import machine

if TYPE_CHECKING:
    from rich.table import Table

PACED, UNPACED = f"{PACE} tokens/s", "as fast as it goes"
RATIO_AIM, MESSAGES_AIM, BYTES_AIM = 0.97, 20.0, 200_000.0
VIEW_AIM_MS, PAGE_AIM, OPEN_AIM_MS = 250.0, 0.25, 1_000.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured: tokens of a stream in a round, unpaced and paced, seconds of a page, size of the trace."""

    paced_tokens: int = 64
    unpaced_tokens: int = 512
    page_s: float = 10.0
    size: Size = USUAL


FULL, QUICK = Effort(), Effort(32, 128, 4.0, SMALL)


@dataclass(slots=True)
class PanelFigures:
    """All measurements; ``load`` is the system's load average before them, ``None`` where it is not told."""

    watching: dict[str, Watching] = field(default_factory=dict)
    views: list[Built] = field(default_factory=list)
    pages: Pages = field(default_factory=Pages)
    size: Size = USUAL
    load: float | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the report: what was measured, what is aimed at (empty: nothing), and whether that is met."""

    label: str
    measured: str
    aim: str = ""
    met: bool | None = None


def measure_panels(
    rounds: int,
    *,
    effort: Effort = FULL,
    browser: bool = True,
    progress: Callable[[str], Any] = lambda text: None,
) -> PanelFigures:
    """Serve with a dashboard and without, in turns, build every view, then open a browser unless told not to."""
    figures = PanelFigures(size=effort.size, load=machine()["load"])
    for name, step_s, tokens in (
        (PACED, STREAMS / PACE, effort.paced_tokens),
        (UNPACED, 0.0, effort.unpaced_tokens),
    ):
        progress(f"{STREAMS} streams at {name}, with panels and without")
        figures.watching[name] = measure_watching(rounds, tokens, step_s)
    progress("building every view on a long trace")
    figures.views = measure_views(large_trace(effort.size))
    progress("a dashboard in JupyterLab")
    skipped = Pages(missing="it was left out")
    figures.pages = measure_pages(effort.page_s, asdict(effort.size)) if browser else skipped
    return figures


# -- reports --------------------------------------------------------------------------------------------------


def panel_rows(figures: PanelFigures) -> list[Row]:
    """The report, line by line."""
    rows = [row for name, watching in figures.watching.items() for row in _watching(name, watching)]
    rows += _views(figures)
    rows += [row for window in figures.pages.windows for row in _window(window)]
    if figures.pages.missing:
        rows.append(Row("in the page", f"not measured: {figures.pages.missing}"))
    return rows


def _watching(name: str, watching: Watching) -> Iterator[Row]:
    speeds = (median(each.speed for each in side) for side in (watching.headless, watching.watched))
    shown = "{:,.0f} / {:,.0f} tokens/s".format(*speeds)
    yield Row(f"{name}: speed without / with panels", shown)
    aim = f">= {RATIO_AIM}" if name == PACED else ""
    met = watching.ratio >= RATIO_AIM if name == PACED else None
    yield Row(f"{name}: speed with panels, without = 1", f"{watching.ratio:.3f}", aim, met)
    yield Row(f"{name}: a core's share for drawing", f"{watching.pump_share:.1%}")
    yield _most(f"{name}: messages to the page", watching.messages_per_s, MESSAGES_AIM, "{:.1f}/s")
    yield _most(f"{name}: bytes to the page", watching.bytes_per_s / 1e3, BYTES_AIM / 1e3, "{:.0f} KB/s")


def _views(figures: PanelFigures) -> Iterator[Row]:
    for each in figures.views:
        if each.name == INDEX:
            yield Row(each.name, f"{each.build_ms:.1f} ms")
        elif not each.is_empty:
            size = f"{each.marks:,} marks, {each.nbytes / 1e3:.1f} KB"
            yield Row(each.name, f"{each.build_ms:.1f} + {each.encode_ms:.1f} ms ({size})")
    worst = slowest(figures.views)
    yield _most(f"slowest view: {worst.name}", worst.total_ms, VIEW_AIM_MS, "{:.0f} ms")


def _window(window: Window) -> Iterator[Row]:
    about = f"{window.panels} panels in sight, {window.draws:.1f} draws/s"
    yield Row(window.name, about)
    yield Row(f"{window.name}: main thread, idle / with traffic", f"{window.idle:.1%} / {window.busy:.1%}")
    yield _most(f"{window.name}: added to the main thread", 100 * window.added, 100 * PAGE_AIM, "{:.1f} %")
    if window.busy_cpu is not None:
        shown = f"{window.idle_cpu:.1%} / {window.busy_cpu:.1%}"
        yield Row(f"{window.name}: its processor time, idle / with traffic", shown)
    opened = f"{window.name}: from running the cell to drawn"
    if window.open_ms is None:
        yield Row(opened, "was not drawn within a minute", f"<= {OPEN_AIM_MS:.0f} ms", False)
    else:
        yield _most(opened, window.open_ms, OPEN_AIM_MS, "{:.0f} ms")


def _most(label: str, value: float, aim: float, form: str) -> Row:
    return Row(label, form.format(value), f"<= {form.format(aim)}", value <= aim)


def panel_table(figures: PanelFigures) -> Table:
    """Every figure, and whether the aims are met."""
    from rich.table import Table

    size = figures.size
    table = Table("", "measured", "aim", "", title="live panels: model without weights, medians", title_justify="left")
    for row in panel_rows(figures):
        verdict = "" if row.met is None else "met" if row.met else "MISSED"
        table.add_row(row.label, row.measured, row.aim, verdict)
    table.caption = (
        f"{STREAMS} streams; views on a prompt of {size.prompt_tokens:,} tokens, {size.steps} decode steps and "
        f"{size.blocks:,} blocks: building + encoding"
        + ("" if figures.load is None else f"; load average before: {figures.load:.1f}")
    )
    return table


def panel_object(figures: PanelFigures) -> dict[str, Any]:
    """All measurements as JSON types."""
    return {
        "machine": machine() | {"load": figures.load},
        "watching": {name: _watched_object(watching) for name, watching in figures.watching.items()},
        "trace": asdict(figures.size),
        "views": [asdict(each) for each in figures.views],
        "pages": asdict(figures.pages),
        "aims": [asdict(row) for row in panel_rows(figures) if row.met is not None],
    }


def _watched_object(watching: Watching) -> dict[str, Any]:
    derived = ("ratio", "messages_per_s", "bytes_per_s", "pump_share")
    return asdict(watching) | {name: getattr(watching, name) for name in derived}
