"""llmlab: serve a real language model and watch every stage of a request.

``open`` a model, ``ask`` it something, look at the ``Trace``; ``connect`` to a server that has one. Importing this
package is cheap: torch is imported by ``open``, and a saved trace loads without it.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

# torch reads this once, when it is imported: weights and K/V in huge pages save a decode step on a CPU about 4 %
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from llmlab.trace import Trace

if TYPE_CHECKING:
    from llmlab.client.client import Client
    from llmlab.engine.speculative.config import Speculation
    from llmlab.installation import Findings
    from llmlab.lab import Lab
    from llmlab.opening import open
    from llmlab.probes.capture import Capture
    from llmlab.probes.intervene import Ablate, Patch
    from llmlab.views.compare import compare

__version__ = "0.1.0"
__all__ = [
    "Ablate",
    "Capture",
    "Client",
    "Lab",
    "Patch",
    "Speculation",
    "Trace",
    "__version__",
    "ask",
    "compare",
    "connect",
    "doctor",
    "open",
]


# where the names live that are imported when they are first asked for
_HOMES = {
    "open": "llmlab.opening",
    "Lab": "llmlab.lab",
    "Client": "llmlab.client.client",
    "Capture": "llmlab.probes.capture",
    "Ablate": "llmlab.probes.intervene",
    "Patch": "llmlab.probes.intervene",
    "Speculation": "llmlab.engine.speculative.config",
    "compare": "llmlab.views.compare",
}
# parts a reader uses by their name alone, as in llmlab.claims.claims()
_PARTS = ("claims", "client", "errors", "probes")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"llmlab.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'llmlab' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PARTS])


def ask(prompt: Any, *, model: str | None = None, **params: Any):
    """Open a lab, ask once, close it; returns the finished :class:`~llmlab.engine.run.Run`."""
    from llmlab.opening import open

    with open(**({} if model is None else {"model": model})) as lab:
        return lab.ask(prompt, **params)


def connect(url: str, **options: Any) -> Client:
    """A client of the server at ``url``, which speaks the Messages API: ``llmlab serve`` or any other.

    ``options`` are those of :class:`~llmlab.client.client.Client`. Nothing is sent before the first request. Raises
    ``InvalidParameter`` for a URL that is none.
    """
    from llmlab.client.client import Client

    return Client(url, **options)


def doctor() -> Findings:
    """What this machine has, what llmlab would choose on it, and what is missing before it can answer."""
    from llmlab.installation import examine

    return examine()
