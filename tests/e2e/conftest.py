"""One JupyterLab for all tests here, one headless Chromium a file; they skip, saying why, where either is missing."""

from __future__ import annotations

import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

CHROMIUM = "CHROMIUM"  # the variable that names another browser than the one found
NAMES = ("chromium", "chromium-browser", "google-chrome")
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)
LABS = Path(__file__).parents[2] / "labs"


def _missing() -> str | None:
    absent = [name for name in ("jupyterlab", "playwright", "ipywidgets") if find_spec(name) is None]
    if absent:
        return f"not installed: {', '.join(absent)}"
    return None if _browser() else f"no Chromium: install one, or name it in ${CHROMIUM}"


def _browser() -> str | None:
    return os.environ.get(CHROMIUM) or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="session")
def server(tmp_path_factory, model_path):
    """JupyterLab showing a copy of the notebooks."""
    if reason := _missing():
        pytest.skip(reason)
    from lab_server import serving

    names = tuple(path.stem for path in LABS.glob("*.ipynb"))
    with serving(tmp_path_factory.mktemp("labs"), tmp_path_factory.mktemp("home"), names) as running:
        yield running


# while it is open, Playwright keeps an event loop running in this thread: async tests of other files need it closed
@pytest.fixture(scope="module")
def browser(server, tmp_path_factory):
    """A browser context without a profile."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=_browser(),
            headless=True,
            args=list(ARGUMENTS),
            viewport={"width": 1280, "height": 1000},
        )
        yield context
        context.close()


@pytest.fixture
def open_notebook(server, browser):
    """A function that opens a notebook by its name; the pages close after the test, with a check of each.

    No test passes while its page logged an error or asked for anything outside loopback.
    """
    from notebook_page import NotebookPage

    pages = []

    def open_page(name, **options):
        pages.append(NotebookPage(browser.new_page(), server, name))
        return pages[-1].open(**options)

    yield open_page
    found = [(page.errors, page.external) for page in pages]
    for page in pages:
        page.page.close()
    assert found == [([], [])] * len(pages)


@pytest.fixture
def notebook_of(server):
    """A function that puts a notebook of these code cells into the folder and returns its name."""
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    def write(name, *sources):
        metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        book = new_notebook(cells=[new_code_cell(source) for source in sources], metadata=metadata)
        nbformat.write(book, server.folder / name)
        return name

    return write


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A screenshot of every open page of a test that failed, into its temporary folder."""
    report = yield
    if report.failed and "browser" in item.funcargs:
        folder = Path(item.config._tmp_path_factory.getbasetemp())
        for number, page in enumerate(item.funcargs["browser"].pages[1:]):  # the first is the empty one it starts with
            path = folder / f"{item.name}-{number}.png"
            page.screenshot(path=path)
            report.sections.append(("screenshot", str(path)))
    return report
