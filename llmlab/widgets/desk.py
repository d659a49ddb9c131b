"""All that the panels of one lab or trace share: what they draw from, who writes them, and what is selected."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import uuid4

from llmlab.client.client import Client
from llmlab.errors import InvalidParameter
from llmlab.trace.recorder import Recorder
from llmlab.trace.trace import Trace
from llmlab.widgets.canvas import Code
from llmlab.widgets.feed import Feed, LiveFeed, ReplayFeed
from llmlab.widgets.pump import Pump
from llmlab.widgets.selection import Selection

_NAME = "_llmlab_desk"


@dataclass(eq=False)
class Desk:
    """``owner`` is the recorder or trace it belongs to, ``engine`` what writes into it, when that is known.

    ``width`` is that of the page, in pixels of a scene, once a page has told.
    """

    owner: Any
    feed: Feed
    engine: Any = None
    selection: Selection = field(default_factory=Selection)
    group: str = field(default_factory=lambda: uuid4().hex)
    numbers: Any = field(default_factory=count)
    width: int | None = None

    def __post_init__(self) -> None:
        self.pump = Pump(self.feed)
        self._code: Code | None = None
        self._users = 0

    def take_code(self) -> Code:
        """The module for one more display."""
        if self._code is None:
            self._code = Code()
        self._users += 1
        return self._code

    def give_code(self) -> None:
        """One display fewer; the module goes with the last."""
        self._users -= 1
        if not self._users and self._code is not None:
            self._code.close()
            self._code.layout.close()
            self._code = None

    @property
    def state(self) -> str:
        """One or two words about what is being shown."""
        if self.feed.until is not None:
            return f"step {self.feed.until}"
        if not self.feed.is_live:
            return "recorded"
        return "paused" if getattr(self.engine, "is_paused", False) else "live"


def desk_of(source: Any) -> Desk:
    """The one desk of a lab, engine, client, recorder, or trace. A client without a recorder gets one.

    Raises ``InvalidParameter`` for anything else.
    """
    if isinstance(source, Desk):
        return source
    engine = getattr(source, "engine", source)
    if isinstance(source, Client) and source.recorder is None:
        source.wire.recorder = Recorder()  # from now on its exchanges are recorded
    recorder = source if isinstance(source, Recorder) else getattr(engine, "recorder", None)
    if isinstance(source, Trace):
        return _on(source, lambda: Desk(source, ReplayFeed(source)))
    if not isinstance(recorder, Recorder):
        kind = type(source).__name__
        raise InvalidParameter(f"panels cannot be drawn from {kind}: give a lab, an engine, a trace, or a client")
    desk = _on(recorder, lambda: Desk(recorder, LiveFeed(recorder)))
    if desk.engine is None and hasattr(engine, "trace_of"):  # a client may have come first, which has no engine
        desk.engine, desk.feed.make = engine, engine.trace_of
    return desk


def _on(owner: Any, make: Any) -> Desk:
    """The desk kept on ``owner``, so that it goes when that does."""
    known = vars(owner)
    if _NAME not in known:
        known[_NAME] = make()
    return known[_NAME]
