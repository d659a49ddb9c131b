"""What a server says about itself, asked every second."""

from __future__ import annotations

from typing import Any

from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.server_metrics import server_metrics
from llmlab.views.view import View
from llmlab.widgets.feed import Feed
from llmlab.widgets.panel import Panel
from llmlab.widgets.poller import Poller


class MetricsPanel(Panel):
    """The view ``server_metrics`` of ``url``, while it can be seen; what went wrong is in the status line.

    The thread that asks ends when the panel is closed.
    """

    def __init__(self, url: str, source: Any, **options: Any) -> None:
        self.poller = Poller(url, lambda: self.is_visible)
        super().__init__(server_metrics, source, **options)
        self.poller.start()

    def _drawn_from(self, feed: Feed) -> tuple:
        return self.poller.version, self._width

    def _view(self, trace: Trace, width: int | None) -> tuple[View, str]:
        options = {} if width is None else {"width": width}
        return server_metrics(self.poller.readings, **options), visible(self.poller.error, limit=240)

    def close(self) -> None:
        """Close the comms and stop asking. More than once does no harm."""
        self.poller.stop()
        super().close()
