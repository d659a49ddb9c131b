"""Where the columns of a wire's picture are, and the marks so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.views.assembly import APPEND, CLOSE, DONE_OP, OPEN, OVERWRITE, SNAPSHOT
from llmlab.views.scene import Key, Mark
from llmlab.views.wire_rows import Record

ROW, HEAD, HEADINGS, LEGEND, TIME = 20, 62, 26, 34, 80.0
HUES = {APPEND: "c0", OVERWRITE: "c5", SNAPSHOT: "c2", OPEN: "line", CLOSE: "line", DONE_OP: "line"}


@dataclass(slots=True)
class Columns:
    """Left edges and widths. Without ``pieces`` that column is left out; ``times`` are the sides that have one."""

    width: float
    times: list[str]
    has_pieces: bool
    piece_x: float = 0
    piece_w: float = 0
    frame_x: float = 0
    frame_w: float = 0
    message_x: float = 0
    message_w: float = 0

    def __post_init__(self) -> None:
        at = TIME * len(self.times) + 14
        left = self.width - at
        self.piece_x, self.piece_w = at, left * 0.21 if self.has_pieces else 0
        self.frame_x = at + self.piece_w + (8 if self.has_pieces else 0)
        self.frame_w = left * (0.28 if self.has_pieces else 0.42)
        self.message_x = self.frame_x + self.frame_w + 16
        self.message_w = self.width - self.message_x


@dataclass(slots=True)
class Canvas:
    """Marks so far and what every row needs."""

    record: Record
    columns: Columns
    key: Key
    marks: list[Mark] = field(default_factory=list)
    piece_rows: dict[int, list[float]] = field(default_factory=dict)
    chips: list[tuple[str, float]] = field(default_factory=list)
