"""Another server in the place of a lab's own engine, so that a notebook written for the one runs against the other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmlab.gateway.upstream import UpstreamBackend
    from llmlab.trace.recorder import Recorder

UPSTREAM = "LLMLAB_UPSTREAM"
"""The environment variable with the address of an OpenAI-compatible server that labs serve instead of their engine."""
UPSTREAM_KEY = "LLMLAB_UPSTREAM_API_KEY"
"""The environment variable with the key that upstreams are sent."""


def stand_in(recorder: Recorder) -> UpstreamBackend | None:
    """The server that :data:`UPSTREAM` names, ``None`` where it names none. Raises ``InvalidParameter``."""
    from llmlab.gateway.upstream import UpstreamBackend

    url = os.environ.get(UPSTREAM, "").strip()
    return UpstreamBackend(url, api_key=os.environ.get(UPSTREAM_KEY) or None, recorder=recorder) if url else None
