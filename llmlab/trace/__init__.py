"""What happened: events, the ring they are recorded in, and the tables, files and exports made from them."""

from llmlab.trace.recorder import Recorder
from llmlab.trace.spans import leaves
from llmlab.trace.trace import Trace

__all__ = ["Recorder", "Trace", "leaves"]
