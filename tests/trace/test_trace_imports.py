from __future__ import annotations

import subprocess
import sys

from synthetic import story

from llmlab.trace import Trace

REPLAY = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing either now fails
from llmlab.trace import Trace
trace = Trace.load(sys.argv[1])
assert trace.check() == []
for table in ("requests", "steps", "schedule", "blocks", "tokens", "spans"):
    assert len(getattr(trace, table))
assert trace.to_perfetto()["traceEvents"]
print(trace)
"""


def test_a_trace_replays_without_torch_and_transformers(tmp_path):
    path = Trace(story()).save(tmp_path / "run.trace.jsonl.gz")
    done = subprocess.run([sys.executable, "-c", REPLAY, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<Trace of synthetic: 7 requests")
