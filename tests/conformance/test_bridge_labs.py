"""The labs that ask over HTTP, run unchanged against a real server of another make (``LLMLAB_BRIDGE_URL``).

Cells that fail are those which read what our own engine recorded, and it saw no request: named here one by one.
"""

from __future__ import annotations

import os

import pytest

from llmlab.labs.against import run_against
from llmlab.labs.sources import sources

URL = os.environ.get("LLMLAB_BRIDGE_URL", "")
pytestmark = [
    pytest.mark.model,
    pytest.mark.skipif(not URL, reason="LLMLAB_BRIDGE_URL names no server: .ci/bridge starts one"),
    pytest.mark.timeout(1200),
]

OWN_ENGINE = {
    "01": {
        "01-assemble-27",  # edits of the context are not carried out at an upstream
        "01-assemble-29",  # cached tokens as the engine's trace has them, here and below
        "01-assemble-35",
        "01-assemble-39",
        "01-assemble-53",
    },
    "02": set(),
    "03": set(),  # all on the stand-in without weights, which serves itself
    "13": {
        "13-back-to-text-32",  # the ledger of the engine's request
        "13-back-to-text-34",  # thinking, which an upstream is not asked for
    },
    "14": {"14-agent-17", "14-agent-18"},  # the engine's rows of the agent's requests, and their ledger
    "20": set(),
}


@pytest.mark.parametrize("number", OWN_ENGINE)
def test_only_cells_about_our_own_engine_fail(number, model_path):
    results = run_against(URL, *sources(number))
    failed = {result.cell: result.reason for result in results if result.outcome == "failed"}
    assert set(failed) == OWN_ENGINE[number], failed
