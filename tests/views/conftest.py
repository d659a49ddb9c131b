"""Traces for the tests of views, recorded once; :mod:`recordings` says what is in them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import recordings
import torch

from llmlab.trace import Trace

# the tiny random models of the engine's tests
if (engine_tests := str(Path(__file__).parents[1] / "engine")) not in sys.path:
    sys.path.insert(0, engine_tests)


@pytest.fixture(scope="session")
def lab_trace() -> Trace:
    return recordings.record_lab()


@pytest.fixture(scope="session")
def draft_trace() -> Trace:
    return recordings.record_drafts()


@pytest.fixture(scope="session")
def other_trace() -> Trace:
    return recordings.record_other()


@pytest.fixture(scope="session")
def wire_trace() -> Trace:
    return recordings.record_wire()


@pytest.fixture(scope="session")
def hostile_trace() -> Trace:
    return recordings.record_hostile()


@pytest.fixture(scope="session")
def capture_trace() -> Trace:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield recordings.record_captures()
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def experts_trace() -> Trace:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield recordings.record_experts()
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def ranks_trace() -> Trace:
    return recordings.record_ranks()


@pytest.fixture(scope="session")
def long_trace() -> Trace:
    return recordings.record_long()
