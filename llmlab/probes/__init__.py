"""Looking inside a model while it serves: what is recorded, and what is changed on purpose, for one request.

The engine imports this package only when a request asks for it. Nothing here is at work for other requests.
"""

from __future__ import annotations

from llmlab.probes.capture import Capture
from llmlab.probes.intervene import Ablate, Patch
from llmlab.probes.online import OnlineSoftmax, online_softmax_walk
from llmlab.trace.captures import Captures, Lens
from llmlab.trace.named import NamedArray

__all__ = ["Ablate", "Capture", "Captures", "Lens", "NamedArray", "OnlineSoftmax", "Patch", "online_softmax_walk"]
