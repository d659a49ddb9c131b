"""Fixtures shared by all tests: the default model's folder, and labs on it."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest

LONGEST = ("tests/labs/test_notebooks_run.py", "tests/labs/test_sources_run.py")


def pytest_collection_modifyitems(items):
    """The longest files first: a worker takes whole files, and one begun last would leave the others without work."""
    items.sort(key=lambda item: not item.nodeid.startswith(LONGEST))


@pytest.fixture(scope="session")
def model_path():
    """Folder of the default model; fetched and converted on the first use ever."""
    from llmlab.models import DEFAULT_MODEL, fetch, lookup

    return fetch(lookup(DEFAULT_MODEL))


@pytest.fixture(scope="module", autouse=True)
def _collected():
    """Models and pools of a module's labs are gone before the next one opens its own."""
    yield
    gc.collect()
