"""llmlab: serve a real language model and watch every stage of a request.

``open`` a model, ``ask`` it something, look at the ``Trace``; ``connect`` to a server that has one. Importing this
package is cheap: torch is imported by ``open``, and a saved trace loads without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

# torch reads this once, when it is imported: weights and K/V in huge pages save a decode step on a CPU about 4 %
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from llmlab.trace import Trace

if TYPE_CHECKING:
    from llmlab.client.client import Client
    from llmlab.installation import Findings
    from llmlab.lab import Lab
    from llmlab.opening import open

__version__ = "0.1.0"
__all__ = ["Client", "Lab", "Trace", "__version__", "ask", "connect", "doctor", "open"]


def __getattr__(name: str) -> Any:
    if name == "open":
        from llmlab.opening import open

        return open
    if name == "Lab":
        from llmlab.lab import Lab

        return Lab
    if name == "Client":
        from llmlab.client.client import Client

        return Client
    raise AttributeError(f"module 'llmlab' has no attribute {name!r}")


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
