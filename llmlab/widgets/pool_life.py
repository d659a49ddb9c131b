"""The block events a later replay of the pool cannot do without."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import chain

from llmlab.trace.events import BlockEvent


@dataclass(slots=True)
class PoolLife:
    """Of each block, the events since its last reference was dropped, that one included.

    Its state is what these leave, whatever came before. A copy also took a reference away from the block it was copied
    from, so it stays as long as that block's own events from before it do.
    """

    lives: dict[int, list[tuple[int, BlockEvent]]] = field(default_factory=lambda: defaultdict(list))
    count: int = 0

    def add(self, event: BlockEvent) -> None:
        """The next event of the recording."""
        life = self.lives[event.block_id]
        if event.ref_count == 0 and not any(self._is_needed(number, old) for number, old in life):
            life.clear()
        life.append((self.count, event))
        self.count += 1

    def _is_needed(self, number: int, event: BlockEvent) -> bool:
        if event.action != "copy" or event.source_id is None:
            return False
        source = self.lives.get(event.source_id)
        return bool(source) and source[0][0] < number and source[-1][1].ref_count > 0

    def events(self) -> list[BlockEvent]:
        """What is needed, in the order of the recording."""
        return [event for _, event in sorted(chain.from_iterable(self.lives.values()), key=lambda pair: pair[0])]
