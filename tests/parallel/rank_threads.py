"""The ranks of a group as threads of this process: groups are objects, so they need no processes of their own."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmlab.engine.build import record_reference
from llmlab.parallel.comm import Comm, join
from llmlab.parallel.rank import Rank
from llmlab.parallel.share import DivideOptions

sys.path.append(str(Path(__file__).parents[1] / "engine"))


def run_ranks(folder: Path, size: int, role: str, body: Callable[[Comm], Any]) -> list[Any]:
    """What ``body(comm)`` returns in each rank; raises what the first of them raises."""
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def run(rank: int) -> None:
        try:
            results[rank] = body(Comm(rank, size, role, join(folder, rank, size)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a rank waits for ever"
    return results


def rank_of(loaded, comm: Comm, *, optimize: bool = True, micro_batches: int = 1, reference=None) -> Rank:
    """This rank's share of a loaded model (which it takes over), with a pool of 32 blocks of 4 tokens."""
    reference = reference or record_reference(loaded)
    rank = Rank(loaded, comm, DivideOptions(reference.shapes, optimize, micro_batches))
    rank.allocate(32, 4)
    return rank
