"""Do the processes of a group agree about what they did together?"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from llmlab.trace.index import Index
from llmlab.trace.split_events import Collective

POINT_TO_POINT = ("send", "receive")
SAME_SIZE = ("all_reduce", "all_gather", "broadcast")
"""Kinds in which every process has a message of the same size."""


def split_violations(index: Index) -> Iterator[str]:
    """In a step every process of a group takes part in the same collectives in the same order, and what is sent is
    received. Lost events excuse it, and so does a trace of some requests only."""
    if index.gaps or index.only:
        return
    groups: dict[tuple[int, str], list[Collective]] = defaultdict(list)
    for event in index.collectives:
        groups[event.step, event.role].append(event)
        if event.end_ns < event.t_ns or event.nbytes < 0 or not 0 <= event.rank < event.group_size:
            yield f"step {event.step}: a {event.kind} of rank {event.rank} cannot have been so: {event}"
    for (step, role), events in groups.items():
        for problem in (*_together(events), *_pairs(events)):
            yield f"step {step}: {role} parallel: {problem}"


def _together(events: Sequence[Collective]) -> Iterator[str]:
    """Each collective has one event per rank, of one kind, layer and place, and of one size where sizes are equal."""
    calls: dict[int, list[tuple]] = defaultdict(list)
    size = max(event.group_size for event in events)
    for event in sorted(events, key=lambda e: e.t_ns):
        if event.kind not in POINT_TO_POINT:
            nbytes = event.nbytes if event.kind in SAME_SIZE else None
            calls[event.rank].append((event.kind, event.layer, event.place, nbytes, event.group_size))
    if not calls:
        return
    # one more than have any finds a rank without, whatever size a file claims
    for rank in range(min(size, len(calls) + 1)):
        if calls[rank] != calls[0]:
            i = next((i for i, pair in enumerate(zip(calls[0], calls[rank], strict=False)) if pair[0] != pair[1]), None)
            what = f"{len(calls[rank])} and {len(calls[0])} in all" if i is None else f"{calls[rank][i]}, {calls[0][i]}"
            yield f"ranks {rank} and 0 differ in a collective: {what}"


def _pairs(events: Sequence[Collective]) -> Iterator[str]:
    sent, received = (
        Counter((e.layer, e.place, e.nbytes) for e in events if e.kind == kind) for kind in POINT_TO_POINT
    )
    for what, count in ((sent - received) + (received - sent)).items():
        layer, place, nbytes = what
        verb = "sent and not received" if sent[what] > received[what] else "received and not sent"
        yield f"{count} messages of {nbytes} bytes ({place}, layer {layer}) were {verb}"
