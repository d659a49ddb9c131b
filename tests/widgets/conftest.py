"""Views, sources and a browser page for the tests of the panels."""

from __future__ import annotations

import base64
import json
import shutil

import numpy as np
import pandas as pd
import pytest

import llmlab
from llmlab.views.scene import Grid, Line, Rect, Scene, Text
from llmlab.views.view import View


def steps_view(trace, request_id=None, *, width=960):
    """A bar per step, a lane per request, a line and a grid: every kind of mark."""
    index = trace.index
    marks = [Text(0, 14, "tokens per step", fill="muted")]
    for i, step in enumerate(index.steps[-60:]):
        height = 8 * len(step.rows)
        tip = f"step {step.step}: {len(step.rows)} rows"
        marks.append(Rect(14 * i, 60 - height, 12, height, "c0", tip=tip, key={"step": step.step}))
    for i, name in enumerate(index.request_ids[:4]):
        box = Rect(0, 80 + 24 * i, 300, 18, "c2", "line", tip=f"request {name}", key={"request": name})
        marks += [box, Text(6, 93 + 24 * i, name, on="c2")]
    marks.append(Line(((0, 62), (width, 62))))
    values = np.linspace(0, 1, 32).reshape(4, 8)
    rows = tuple({"layer": i} for i in range(4))
    columns = tuple({"position": i} for i in range(8))
    marks.append(Grid(340, 80, 20, 20, values, row_keys=rows, column_keys=columns, row_labels=("layer",) * 4))
    alt = f"{len(index.steps)} steps of {len(index.request_ids)} requests."
    text = f"{len(index.steps)} steps; chosen: {request_id}"
    return View("steps_view", "Steps", alt, text, Scene(width, 180, tuple(marks)), pd.DataFrame(), ("A note.",))


def grid_view_(trace, *, width=960):
    """A grid and nothing else."""
    rows, columns = tuple({"layer": i} for i in range(3)), tuple({"position": i} for i in range(4))
    grid = Grid(0, 0, 30, 30, np.full((3, 4), 0.5), row_keys=rows, column_keys=columns)
    return View("grid_view", "Grid", "A grid.", "a grid", Scene(width, 100, (grid,)), pd.DataFrame())


@pytest.fixture
def grid_view():
    return grid_view_


@pytest.fixture
def view():
    return steps_view


@pytest.fixture
def lab():
    """A lab that runs only when it is stepped."""
    with llmlab.open("mock", background=False) as opened:
        yield opened


@pytest.fixture(scope="session")
def recorded():
    """A trace of three requests."""
    with llmlab.open("mock", background=False) as opened:
        for run in [opened.submit(f"hello number {i}", max_tokens=12) for i in range(3)]:
            run.wait()
        return opened.trace


# -- a page with the drawing code and a widget's front end that a test can drive ---------------------------------

HARNESS = """
window.errors = [];
window.addEventListener("error", (e) => errors.push(e.message));
window.addEventListener("unhandledrejection", (e) => errors.push(String(e.reason)));
class Model {
  constructor(state) { Object.assign(this, { state, handlers: {}, sent: [] }); }
  get(name) { return this.state[name]; }
  on(name, act) { (this.handlers[name] ??= []).push(act); }
  off(name, act) { this.handlers[name] = (this.handlers[name] ?? []).filter((known) => known !== act); }
  send(message) { this.sent.push(message); }
  set(changes) {
    for (const [name, value] of Object.entries(changes)) this.state[name] = decode(name, value);
    for (const name of Object.keys(changes)) (this.handlers["change:" + name] ?? []).forEach((act) => act());
  }
  tell(message) { (this.handlers["msg:custom"] ?? []).forEach((act) => act(message)); }
}
function decode(name, value) {
  return name === "scene" ? new DataView(Uint8Array.from(atob(value), (c) => c.charCodeAt(0)).buffer) : value;
}
window.models = [];
window.add = async (code, loader, state) => {
  for (const name of Object.keys(state)) state[name] = decode(name, state[name]);
  const model = new Model({ ...state, code: "IPY_MODEL_1" });
  model.widget_manager = { get_model: async () => ({ get: (name) => code[name] }) };
  const { default: widget } = await import(URL.createObjectURL(new Blob([loader], { type: "text/javascript" })));
  const el = document.body.appendChild(document.createElement("div"));
  model.close = await widget.render({ model, el });
  models.push(model);
};
"""


class Page:
    """A browser page with displays on it."""

    def __init__(self, page) -> None:
        self.page = page
        page.set_content("<!doctype html><html><body style='margin:12px'></body></html>")
        page.evaluate(f"() => {{{HARNESS}}}")

    def add(self, widget) -> None:
        """Show ``widget`` as a notebook would: its traits and its code."""
        from llmlab.widgets.canvas import module, static
        from llmlab.widgets.scene_json import palette_json

        code = {"source": module(), "style": static("panel.css"), "palette": palette_json()}
        state = {name: _plain(getattr(widget, name)) for name in widget.trait_names(sync=True) if name in _SHOWN}
        self.page.evaluate("([c, l, s]) => add(c, l, s)", [code, static("loader.js"), state])

    def set(self, number: int = 0, **traits) -> None:
        self.page.evaluate("([i, t]) => models[i].set(t)", [number, {k: _plain(v) for k, v in traits.items()}])

    def sent(self, number: int = 0, kind: str | None = None) -> list[dict]:
        """Messages of the display to the kernel."""
        messages = self.page.evaluate("(i) => models[i].sent", number)
        return [m for m in messages if kind is None or m["type"] == kind]

    def root(self, number: int = 0):
        return self.page.locator(".llmlab-panel").nth(number)

    def canvas(self, number: int = 0):
        return self.root(number).locator("canvas")

    def draws(self, number: int = 0) -> int:
        return int(self.root(number).get_attribute("data-draws") or 0)

    def wait_drawn(self, more_than: int = 0, number: int = 0) -> None:
        script = "([i, n]) => Number(document.querySelectorAll('.llmlab-panel')[i]?.dataset.draws ?? 0) > n"
        self.page.wait_for_function(script, arg=[number, more_than])

    def settle(self) -> None:
        """Two frames: whatever was asked for has been drawn."""
        self.page.evaluate("() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")

    def point(self, x: float, y: float, number: int = 0, click: bool = False) -> None:
        """Move the mouse to a place of the scene."""
        box = self.canvas(number).bounding_box()
        (self.page.mouse.click if click else self.page.mouse.move)(box["x"] + x, box["y"] + y)
        self.settle()

    def pixel(self, x: float, y: float, number: int = 0) -> list[int]:
        return self.area(x, y, 1, 1, number)

    def area(self, x: float, y: float, w: float, h: float, number: int = 0) -> list[int]:
        """Red, green, blue and opacity of the pixels of a part of the canvas."""
        canvas = "[...document.querySelectorAll('canvas')[i].getContext('2d').getImageData(...box).data]"
        return self.page.evaluate(f"([i, ...box]) => {canvas}", [number, x, y, w, h])

    @property
    def errors(self) -> list[str]:
        return self.page.evaluate("errors")


_SHOWN = ("kind", "scene", "selection", "status", "group", "parts", "state")


def _plain(value):
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return json.loads(json.dumps(value))


@pytest.fixture(scope="module")  # while it is open a loop runs on this thread, so tests of coroutines cannot
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1040, "height": 700}, color_scheme="light")
    opened = context.new_page()
    outside: list[str] = []
    opened.on("request", lambda request: outside.append(request.url))
    yield Page(opened)
    assert [url for url in outside if not url.startswith(("about:", "blob:", "data:"))] == []
    context.close()
