"""A real server on a real socket, in front of the model without weights, for programs that only know its address."""

import shutil
import time
from pathlib import Path

import pytest

import llmlab

HERE = Path(__file__).parent
TOOL_SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "unit": {"enum": ["C", "F"]}},
    "required": ["city", "unit"],
    "additionalProperties": False,
}


@pytest.fixture(scope="session")
def mock_lab():
    """A lab whose answers are deterministic printable characters."""
    with llmlab.open("mock", num_blocks=4096, max_num_seqs=16) as lab:
        yield lab


@pytest.fixture(scope="session")
def server(mock_lab):
    """The gateway, without keys."""
    with mock_lab.serve(port=0, ping_s=0.5, allow_faults=True) as running:
        yield running


@pytest.fixture
def idle_lab(mock_lab):
    """The lab behind ``server``, checked to hold no block once a test is over and the engine's last step with it."""
    yield mock_lab
    end = time.monotonic() + 2
    while mock_lab.engine.scheduler.has_work and time.monotonic() < end:
        time.sleep(0.01)
    mock_lab.engine.check_integrity()
    assert mock_lab.engine.pool.num_used == 0


@pytest.fixture(scope="session")
def node():
    """``node`` with both JavaScript SDKs installed beside the scripts."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("node is not installed")
    if not (HERE / "js" / "node_modules" / "openai").is_dir():
        pytest.skip("the JavaScript SDKs are not installed: run `npm ci` in tests/conformance/js")
    return found


@pytest.fixture(scope="session")
def third_party_python():
    """The Python of an environment that has tests/conformance/third_party/requirements.txt."""
    found = HERE / "third_party" / ".venv" / "bin" / "python"
    if not found.is_file():
        pytest.skip(
            "the third-party programs are not installed: `python -m venv .venv` and "
            "`.venv/bin/pip install -r requirements.txt` in tests/conformance/third_party"
        )
    return found
