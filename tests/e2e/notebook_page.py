"""A notebook open in JupyterLab, as a test sees it: the few selectors that matter, in one place."""

from __future__ import annotations

from typing import Any

from lab_server import LabServer
from playwright.sync_api import ConsoleMessage, Locator, Page, Request

PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
# the execution indicator is idle before there is a kernel; running then would open a dialog
KERNEL_READY = f"""() => {{
    const panel = document.querySelector('{PANEL}');
    const kernel = panel?.querySelector('.jp-Toolbar-kernelName')?.innerText;
    const status = panel?.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status;
    return kernel && kernel !== 'No Kernel' && status === 'idle';
}}"""
NOTHING_RUNS = f"""() => {{
    const prompts = [...document.querySelectorAll('{PANEL} .jp-CodeCell .jp-InputPrompt')];
    return prompts.length > 0 && !prompts.some(prompt => prompt.textContent.includes('*'));
}}"""
SLOW_MS = 120_000  # a busy machine with two cores takes a minute to show its first page


class NotebookPage:
    """One notebook in one browser page; what the page logs and asks for is kept."""

    def __init__(self, page: Page, server: LabServer, name: str) -> None:
        self.page, self.server, self.name = page, server, name
        page.set_default_timeout(SLOW_MS)
        self.errors: list[str] = []
        self.external: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", self._on_request)

    @property
    def panel(self) -> Locator:
        """The notebook."""
        return self.page.locator(PANEL)

    @property
    def code_cells(self) -> Locator:
        """Its code cells."""
        return self.panel.locator(".jp-CodeCell")

    @property
    def text(self) -> str:
        """All text of it; what is scrolled away has no inner text, so that is not asked for."""
        return self.panel.evaluate("panel => panel.textContent")

    def open(self, reset: bool = True) -> NotebookPage:
        """Show it and wait for its kernel; ``reset`` forgets the workspace of earlier pages."""
        self.page.goto(f"{self.server.url}/lab/tree/{self.name}" + ("?reset" if reset else ""), wait_until="commit")
        self.panel.locator(".jp-Cell").first.wait_for(timeout=SLOW_MS)
        self.page.wait_for_function(KERNEL_READY, timeout=SLOW_MS)
        return self

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Run a command of JupyterLab; its result does not travel."""
        script = "([name, args]) => window.jupyterapp.commands.execute(name, args).then(() => null)"
        self.page.evaluate(script, [name, arguments or {}])

    def run_all(self, timeout_s: float = 300) -> NotebookPage:
        """Run all cells from the menu, as people do, and wait for the last."""
        self.page.get_by_role("menuitem", name="Run", exact=True).click()
        self.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        return self.wait(timeout_s)

    def run_cell(self, index: int, timeout_s: float = 60) -> NotebookPage:
        """Run the ``index``-th code cell."""
        self.code_cells.nth(index).locator(".cm-content").click()
        self.command("notebook:run-cell")
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> NotebookPage:
        """Until no cell runs or waits."""
        self.page.wait_for_timeout(200)  # the prompts become [*] after the command, not with it
        self.page.wait_for_function(NOTHING_RUNS, timeout=timeout_s * 1000)
        return self

    def set_theme(self, name: str) -> None:
        """``JupyterLab Light`` or ``JupyterLab Dark``."""
        self.command("apputils:change-theme", {"theme": name})
        self.page.wait_for_function("name => document.body.dataset.jpThemeName === name", arg=name)

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def _on_request(self, request: Request) -> None:
        ours = (self.server.url, self.server.url.replace("http", "ws"), "data:", "blob:")
        if not request.url.startswith(ours):
            self.external.append(request.url)
