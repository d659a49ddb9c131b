"""Fixtures shared by all tests: the default model's folder, and labs on it."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest


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
