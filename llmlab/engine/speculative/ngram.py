"""Prompt lookup: what followed the last few tokens when they stood in this text before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed
from llmlab.errors import InvalidParameter


@dataclass(slots=True)
class _Seen:
    """Where each n-gram of a request's tokens last ended, for the first ``length`` tokens.

    The n-gram that ends at the very end is not entered yet, so that a lookup never finds itself.
    """

    ends: dict[tuple[int, ...], int] = field(default_factory=dict)
    length: int = 0


class NGram:
    """Proposes the continuation of the latest earlier occurrence of the longest possible suffix of the tokens.

    Suffixes of ``longest`` down to ``shortest`` tokens are tried. All of a request's n-grams are indexed once, so a
    proposal costs a few look-ups however long the text is.
    """

    name, needs_features, repeatable = "ngram", False, True
    draft_cost = 0.0

    def __init__(self, longest: int = 4, shortest: int = 1) -> None:
        if not (type(longest) is type(shortest) is int and 1 <= shortest <= longest):
            raise InvalidParameter(
                f"longest={longest!r} and shortest={shortest!r} must be integers, 1 <= shortest <= longest"
            )
        self.longest, self.shortest = longest, shortest
        self._seen: dict[str, _Seen] = {}

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Point masses copied from the text, or nothing where no suffix occurred before."""
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Draft:
        seen = self._seen.setdefault(row.request_id, _Seen())
        self._index(seen, row.tokens)
        start = self._find(seen, row.tokens)
        if start is None:
            return Draft()
        # a match that overlaps the end is continued with what it proposes itself: a loop of any period
        period = len(row.tokens) - start
        for i in range(row.k):
            row.name(row.tokens[start + i % period])
        return row.draft

    def _index(self, seen: _Seen, tokens: Sequence[int]) -> None:
        for end in range(seen.length, len(tokens)):
            for size in range(self.shortest, min(self.longest, end) + 1):
                seen.ends[tuple(tokens[end - size : end])] = end
        seen.length = max(seen.length, len(tokens))

    def _find(self, seen: _Seen, tokens: Sequence[int]) -> int | None:
        for size in range(min(self.longest, len(tokens) - 1), self.shortest - 1, -1):
            end = seen.ends.get(tuple(tokens[-size:]))
            if end is not None:
                return end
        return None

    def observe(self, rows: Sequence[Observed]) -> None:
        """Needs no features."""

    def fork(self, parent_id: str, child_id: str) -> None:
        """The child's n-grams are indexed when it first asks."""

    def forget(self, request_id: str) -> None:
        """Drop the index of a request."""
        self._seen.pop(request_id, None)
