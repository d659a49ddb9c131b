"""Traces of tiny random models that were looked into, and what every picture of them must keep to."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pictures

for folder in ("engine", "probes"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))

from looking import model_of, served  # noqa: E402

from llmlab.probes import Capture  # noqa: E402
from llmlab.trace.events import Captured, ProbeNote, RequestSubmitted  # noqa: E402
from llmlab.trace.trace import Trace  # noqa: E402
from llmlab.views.scene import MAX_MARKS  # noqa: E402
from llmlab.views.view import View  # noqa: E402

EVERYTHING = Capture(attention=True, lens=True, hidden=True)
HOSTILE = '<script>alert("x")</script>&\u202e\x00\n\ud800'.encode("utf-8", "surrogatepass")


def looked(name: str = "llama", situation: str = "whole", capture: Capture = EVERYTHING) -> tuple[Trace, str]:
    """The trace of a served request, and its id."""
    run = served(model_of(name), situation, capture)
    return run.trace, run.id


def hostile(trace: Trace) -> Trace:
    """The same trace, with every token's bytes from someone unkind."""
    return Trace(trace.events, arrays=trace.arrays, pieces=dict.fromkeys(range(256), HOSTILE))


def without_arrays(trace: Trace) -> Trace:
    """The same trace as it is when it was saved without its arrays."""
    return Trace(trace.events, pieces=trace.pieces)


def made_by_hand(
    kind: str, dims: tuple[str, ...], layers: dict[int, np.ndarray], labels: tuple[int, ...] = ()
) -> Trace:
    """One request with one array per layer, over all its positions."""
    arrays = {f"r/{kind}/{layer}": values for layer, values in layers.items()}
    count = next(iter(layers.values())).shape[dims.index("query" if "query" in dims else "position")]
    events = [RequestSubmitted(0, "r", None, 0, None, tuple(range(count)), {}), ProbeNote(0, 0, "r", "started", kind)]
    for layer, values in layers.items():
        size, form = values.nbytes, str(values.dtype)
        where = (kind, layer, dims, values.shape, form, size, tuple(range(count)), labels)
        events.append(Captured(1, 0, "r", f"r/{kind}/{layer}", *where))
    return Trace(events, arrays=arrays)


def check_picture(view: View) -> None:
    """Small, inside its frame, readable in both themes, and nothing in it that a page may strip or run."""
    for theme in ("light", "dark"):
        assert pictures.unsafe(view.draw(theme)) == []
        assert "\u202e" not in view.draw(theme)
        assert pictures.least_contrast(view.scene, theme)[0] >= 4.5
    assert len(view.svg) < 64_000
    assert len(view.scene.marks) <= MAX_MARKS
    assert pictures.outside(view.scene) == []
    assert pictures.overlapping(view.scene) == []


REPLAY = """
import sys
from llmlab.trace.trace import Trace
from llmlab import views
from llmlab.views.hidden import hidden
trace = Trace.load(sys.argv[1])
for view in (views.attention(trace), views.attention_heads(trace), views.lens(trace), hidden(trace)):
    print(view)
    print(len(view.svg))
assert not {"torch", "transformers", "llmlab.engine", "llmlab.probes"} & {*sys.modules}, "not torch-free"
"""


def replayed(path: Path) -> str:
    """What the views of a saved trace say in a process of their own, which must not import torch."""
    done = subprocess.run([sys.executable, "-c", REPLAY, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
