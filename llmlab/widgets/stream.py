"""The text of some requests as it arrives."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.trace.events import Event, RequestFinished, TextEmitted, WireEvent, WireLink
from llmlab.views.glyphs import visible
from llmlab.widgets.canvas import StreamText
from llmlab.widgets.desk import Desk
from llmlab.widgets.feed import Feed
from llmlab.widgets.part import Part

MAX_PARTS = 12  # requests shown; the oldest make room
MAX_TEXT = 20_000  # characters of one request that are shown


class Stream(Part):
    """Shows what the engine emits for the requests that were :meth:`expect`-ed, in full, also after a page reload."""

    kind = StreamText

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._parts: dict[str, dict[str, str]] = {}
        self._unsent: dict[str, str] = {}  # text by request that the page does not have
        self._aliases: dict[str, str] = {}  # the engine's, or the gateway's id of a request -> the id it is shown by
        self._by_deltas: set[str] = set()  # exchanges whose text only the client sees
        self._is_whole_due = False
        self.attach()

    @property
    def texts(self) -> dict[str, str]:
        """What is shown, by request."""
        return {part["id"]: part["text"] for part in self._parts.values()}

    def expect(self, request_id: str, name: str | None = None, *, shows_deltas: bool = False) -> None:
        """Show what is emitted from now on for an engine request, or for an exchange by the client's id of it;
        ``shows_deltas``: what the client of that exchange receives, in place of what an engine emits."""
        with self.desk.pump.lock:
            if shows_deltas:
                self._by_deltas.add(request_id)
            self._parts.pop(request_id, None)
            self._parts[request_id] = {"id": request_id, "name": visible(name or request_id, limit=120), "text": ""}
            self._aliases[request_id] = request_id
            self._drop_oldest()
            self._is_whole_due = True

    def _drop_oldest(self) -> None:
        for old in list(self._parts)[:-MAX_PARTS]:
            del self._parts[old]
            self._by_deltas.discard(old)
            self._aliases = {other: shown for other, shown in self._aliases.items() if shown != old}

    # -- painted by the pump --------------------------------------------------------------------------------

    def note(self, events: Sequence[Event]) -> None:
        """Take over text and ends of the expected requests."""
        for event in events:
            match event:
                case TextEmitted() if part := self._part(event.request_id):
                    if part["id"] not in self._by_deltas:
                        self._append(part, event.text)
                case WireEvent(side="client", kind="delta" | "end" | "error" | "disconnect"):
                    self._hear(event)
                case RequestFinished() if part := self._part(event.request_id):
                    part["name"] = f"{part['name']} · {event.stop_reason}"
                    self._unsent.setdefault(part["id"], "")
                case WireLink():
                    self._link(event)

    def _hear(self, event: WireEvent) -> None:
        """What a client received of an exchange that nobody else tells about."""
        if event.wire_id not in self._by_deltas or (part := self._part(event.wire_id)) is None:
            return
        if event.kind == "delta" and event.name in ("text", "thinking"):
            self._append(part, event.text or "")
        elif event.kind != "delta":
            part["name"] = f"{part['name']} · {event.kind}"
            self._unsent.setdefault(part["id"], "")

    def _link(self, event: WireLink) -> None:
        if event.relation == "client" and event.other_id in self._aliases:
            self._aliases[event.wire_id] = self._aliases[event.other_id]
        elif event.relation == "engine" and event.wire_id in self._aliases:
            self._aliases[event.other_id] = self._aliases[event.wire_id]

    def _part(self, request_id: str) -> dict[str, str] | None:
        return self._parts.get(self._aliases.get(request_id, ""))

    def _append(self, part: dict[str, str], text: str) -> None:
        if len(part["text"]) > MAX_TEXT:
            return
        # half a surrogate pair, which any server may send, cannot go to the page
        text = text[: MAX_TEXT + 1].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        added = (part["text"] + text)[len(part["text"]) : MAX_TEXT] + (
            "…" if len(part["text"] + text) > MAX_TEXT else ""
        )
        part["text"] += added
        self._unsent[part["id"]] = self._unsent.get(part["id"], "") + added

    def prepare(self, feed: Feed) -> int | None:
        """See :class:`llmlab.widgets.pump.Sink`."""
        if self._is_whole_due:
            return sum(len(part["text"]) + 60 for part in self._parts.values())
        return sum(len(text) + 60 for text in self._unsent.values()) if self._unsent else None

    def send(self) -> None:
        """Send what was added; everything when parts came or went."""
        self.widget.parts = [dict(part) for part in self._parts.values()]  # kept for a page that reloads, not sent
        if self._is_whole_due:
            self.widget.send({"type": "all", "parts": self.widget.parts})
        else:
            added = [self._parts[name] | {"text": text} for name, text in self._unsent.items() if name in self._parts]
            self.widget.send({"type": "add", "parts": added})
        self._unsent, self._is_whole_due = {}, False
