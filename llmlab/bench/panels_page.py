"""What a dashboard costs the page: a real JupyterLab on loopback and a headless Chromium, driven over its protocol."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from llmlab.bench.panels_lab import PACE, STREAMS
from llmlab.bench.process import SHUTDOWN_S
from llmlab.errors import BenchError

BROWSER = "CHROMIUM"  # the variable that names another browser than the one found
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
WINDOWS = {"a usual window": (1280, 1000), "a tall window": (1280, 6000)}
START_S, PAGE_MS = 90, 120_000
PANEL = ".llmlab-panel:has(canvas)"
CELLS = (
    f"""\
from llmlab.bench.panels_lab import keep_busy, paced_lab
from llmlab.widgets import dashboard
paced = paced_lab({STREAMS / PACE})
lab = paced.__enter__()""",
    "dashboard(lab)",
    "traffic = keep_busy(lab)",
    """\
from llmlab.bench.panels_views import Size, large_trace
trace = large_trace(Size({prompt_tokens}, {steps}, {blocks}))""",
    "dashboard(trace)",
)
LAB, SHOW, TRAFFIC, RECORD, OPEN = range(len(CELLS))
READY = """() => {
    const panel = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden)');
    const kernel = panel?.querySelector('.jp-Toolbar-kernelName')?.innerText;
    const status = panel?.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status;
    return kernel && kernel !== 'No Kernel' && status === 'idle';
}"""
RUN = """async ([index, waits]) => {
    const cell = document.querySelectorAll('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell')[index];
    cell.querySelector('.jp-InputArea-editor').scrollIntoView({ block: 'start' });
    const book = window.jupyterapp.shell.currentWidget.content;
    book.activeCellIndex = index;
    const start = performance.now();
    const running = window.jupyterapp.commands.execute('notebook:run-cell').then(() => null);
    if (!waits) return await running;
    const seen = (one) => {
        const box = one.getBoundingClientRect();
        return box.height > 0 && box.bottom > 0 && box.top < window.innerHeight;
    };
    for (;;) {
        await new Promise(requestAnimationFrame);
        const shown = [...cell.querySelectorAll('.llmlab-panel:has(canvas)')].filter(seen);
        if (shown.length && shown.every((one) => Number(one.dataset.draws) > 0)) break;
        if (performance.now() - start > 60000) return null;
    }
    return performance.now() - start;
}"""
SCROLL = """() => {
    const panels = document.querySelectorAll('.llmlab-panel:has(canvas)');
    panels[0]?.scrollIntoView({ block: 'start' });
}"""
TROUBLE = """() => {
    const found = document.querySelector('.jp-RenderedText[data-mime-type="application/vnd.jupyter.stderr"], '
        + '.jp-RenderedText[data-mime-type="application/vnd.jupyter.error"]');
    return found?.innerText ?? '';
}"""
DRAWS = f"""() => [...document.querySelectorAll('{PANEL}')]
    .reduce((sum, one) => sum + Number(one.dataset.draws || 0), 0)"""
VISIBLE = f"""() => [...document.querySelectorAll('{PANEL}')].filter((one) => {{
    const box = one.getBoundingClientRect();
    return box.height > 0 && box.bottom > 0 && box.top < window.innerHeight;
}}).length"""


@dataclass(slots=True)
class Window:
    """Of one size of window: shares of the page's main thread (0 to 1) before there is a dashboard (``idle``) and while
    it follows 8 streams (``busy``), by the clock and by its processor time; ``draws`` a second, ``panels`` in sight,
    milliseconds from running a cell to the drawn dashboard of a long trace (``None``: it was not drawn)."""

    name: str
    idle: float
    busy: float
    idle_cpu: float | None
    busy_cpu: float | None
    draws: float
    panels: int
    open_ms: float | None

    @property
    def added(self) -> float:
        """What the dashboard adds, by the clock."""
        return self.busy - self.idle


@dataclass(slots=True)
class Pages:
    """What was measured in the browser, or why nothing was."""

    windows: list[Window] = field(default_factory=list)
    missing: str = ""


def missing() -> str:
    """Why there is no page to measure, empty when there is one."""
    absent = [name for name in ("jupyterlab", "playwright", "anywidget") if find_spec(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return "" if browser() else f"no Chromium: install one, or name it in ${BROWSER}"


def browser() -> str | None:
    """The browser to drive."""
    return os.environ.get(BROWSER) or next(filter(None, map(shutil.which, BROWSERS)), None)


def measure_pages(seconds: float, sizes: dict[str, int], windows: tuple[str, ...] = tuple(WINDOWS)) -> Pages:
    """Open a dashboard in JupyterLab, in each window, and watch its main thread for ``seconds``. ``sizes`` are those of
    :class:`~llmlab.bench.panels_views.Size`."""
    if reason := missing():
        return Pages(missing=reason)
    from playwright.sync_api import Error

    try:
        return Pages([_window(name, seconds, sizes) for name in windows])
    except Error as error:
        return Pages(missing=f"the browser gave up: {str(error).splitlines()[0]}")


def _window(name: str, seconds: float, sizes: dict[str, int]) -> Window:
    from playwright.sync_api import sync_playwright

    width, height = WINDOWS[name]
    with (
        TemporaryDirectory(prefix="llmlab-bench-") as folder,
        _jupyterlab(Path(folder), sizes) as url,
        sync_playwright() as playwright,
    ):
        context = playwright.chromium.launch_persistent_context(
            str(Path(folder) / "profile"),
            executable_path=browser(),
            headless=True,
            args=list(ARGUMENTS),
            viewport={"width": width, "height": height},
        )
        try:
            return _measure(context.new_page(), url, name, seconds)
        finally:
            context.close()


def _measure(page: Any, url: str, name: str, seconds: float) -> Window:
    page.set_default_timeout(PAGE_MS)
    page.goto(f"{url}/lab/tree/bench.ipynb?reset", wait_until="commit")
    page.wait_for_function(READY)
    _run(page, LAB)
    _run(page, RECORD)
    idle = _share(page, seconds)
    opened = _run(page, OPEN, waits=True)
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs').then(() => null)")
    _run(page, SHOW, waits=True)
    _run(page, TRAFFIC)
    page.evaluate(SCROLL)
    page.wait_for_timeout(2_000)
    before, panels = page.evaluate(DRAWS), page.evaluate(VISIBLE)
    busy = _share(page, seconds)
    draws = (page.evaluate(DRAWS) - before) / seconds
    return Window(name, idle[0], busy[0], idle[1], busy[1], draws, panels, opened)


def _run(page: Any, cell: int, waits: bool = False) -> float | None:
    """Run a cell; with ``waits`` milliseconds until the panels in sight are drawn. Raises ``BenchError``."""
    passed = page.evaluate(RUN, [cell, waits])
    if trouble := page.evaluate(TROUBLE):
        raise BenchError(f"a cell of the benchmark's notebook failed: {trouble[-500:]}")
    return passed


def _share(page: Any, seconds: float) -> tuple[float, float | None]:
    """Of the page's main thread: part of the time in tasks, and in the processor where the browser tells."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    before = _metrics(session)
    page.wait_for_timeout(1e3 * seconds)
    after = _metrics(session)
    session.detach()
    passed = after["Timestamp"] - before["Timestamp"]
    tasks = (after["TaskDuration"] - before["TaskDuration"]) / passed
    told = "ThreadTime" in after
    return tasks, (after["ThreadTime"] - before["ThreadTime"]) / passed if told else None


def _metrics(session: Any) -> dict[str, float]:
    return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}


# -- JupyterLab -----------------------------------------------------------------------------------------------


@contextmanager
def _jupyterlab(folder: Path, sizes: dict[str, int]) -> Iterator[str]:
    """The address of a JupyterLab that shows the benchmark's notebook, with a home of its own."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    books = folder / "books"
    books.mkdir()
    sources = [source.format(**sizes) if i == RECORD else source for i, source in enumerate(CELLS)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    book = new_notebook(cells=[new_code_cell(source) for source in sources], metadata=kernel)
    nbformat.write(book, books / "bench.ipynb")
    port = _free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(_command(books, port), cwd=books, env=_environ(folder), stdout=log, stderr=log)
    try:
        _wait(f"http://127.0.0.1:{port}", process, folder / "log")
        yield f"http://127.0.0.1:{port}"
    finally:
        _stop(process)


def _command(folder: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", "--ServerApp.allow_root=True", "--IdentityProvider.token="),
        *("--ServerApp.password=", f"--ServerApp.root_dir={folder}", "--LabApp.expose_app_in_browser=True"),
        *("--LabApp.extension_manager=readonly", "--ServerApp.terminals_enabled=False"),
    ]


def _environ(folder: Path) -> dict[str, str]:
    names = ("HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    names += ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")
    places = {name: str(folder / name.lower()) for name in names}
    settings = Path(places["JUPYTERLAB_SETTINGS_DIR"]) / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    return {**os.environ, **places, "JUPYTER_PREFER_ENV_PATH": "1"}


def _wait(url: str, process: subprocess.Popen, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/api/status", timeout=2).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise BenchError(f"JupyterLab did not start: {log.read_text()[-2000:]}")


def _stop(process: subprocess.Popen) -> None:
    """End it, which ends its kernels."""
    process.terminate()
    try:
        process.wait(SHUTDOWN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
