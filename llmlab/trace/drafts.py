"""The tables of speculation: verified drafts, and decisions how much to draft."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from llmlab.trace.columns import integers, objects, table
from llmlab.trace.events import DraftRound
from llmlab.trace.index import Index


def drafts(index: Index) -> pd.DataFrame:
    """One row per draft and step in which some of it was judged, in order."""
    rounds = index.drafts
    numbers = {
        name: np.array([getattr(r, name) for r in rounds], dtype=np.int64)
        for name in ("step", "number", "num_drafted", "start", "num_accepted")
    }
    others = {
        name: objects([getattr(r, name) for r in rounds])
        for name in ("request_id", "proposer", "rule", "tokens", "p", "q", "u", "outcome")
    }
    frame = table(
        "drafts",
        {
            "time_s": index.seconds([r.t_ns for r in rounds]),
            **numbers,
            **others,
            "token_id": integers([r.token_id if r.token_id >= 0 else pd.NA for r in rounds]),
            "num_tokens": np.array([num_tokens(r) for r in rounds], dtype=np.int64),
            "draft_ms": np.array([r.draft_ns / 1e6 / max(r.num_proposed_for, 1) for r in rounds], dtype=np.float64),
            "verify_ms": np.array([r.verify_ns / 1e6 for r in rounds], dtype=np.float64),
        },
    )
    frame.attrs["summary"] = summary(index)
    return frame


def policies(index: Index) -> pd.DataFrame:
    """One row per change of how many tokens are drafted."""
    events = index.draft_policies
    return table(
        "draft_policies",
        {
            "time_s": index.seconds([e.t_ns for e in events]),
            "step": np.array([e.step for e in events], dtype=np.int64),
            "request_id": objects([e.request_id for e in events]),
            "k": np.array([e.k for e in events], dtype=np.int64),
            "reason": objects([e.reason for e in events]),
            "acceptance": np.array([e.acceptance for e in events], dtype=np.float64),
            "batch_size": np.array([e.batch_size for e in events], dtype=np.int64),
        },
    )


def num_tokens(round_: DraftRound) -> int:
    """Output tokens that a verification gave."""
    return round_.num_accepted + (round_.token_id >= 0)


def summary(index: Index) -> dict[str, Any]:
    """Totals over all drafts.

    ``mean_acceptance_length``: output tokens per verification step, its recovered or bonus token included (1 is what
    a step without speculation gives). ``acceptance_by_place``: of the drafts whose ``i``-th token was judged, the
    share that kept it; a token is judged only when all before it were kept. ``accepted`` and ``judged`` count tokens.
    NaN and empty while nothing was judged.
    """
    places: list[list[int]] = []
    offsets: dict[tuple[str, int], int] = {}
    for round_ in index.drafts:
        key = (round_.request_id, round_.number)
        offset = offsets.get(key, 0)
        offsets[key] = offset + len(round_.tokens)
        for i in range(len(round_.tokens)):
            while len(places) <= offset + i:
                places.append([0, 0])
            places[offset + i][0] += i < round_.num_accepted
            places[offset + i][1] += 1
    rounds = len(index.drafts)
    return {
        "rounds": rounds,
        "judged": sum(judged for _, judged in places),
        "accepted": sum(accepted for accepted, _ in places),
        "mean_acceptance_length": sum(map(num_tokens, index.drafts)) / rounds if rounds else float("nan"),
        "acceptance_by_place": [accepted / judged for accepted, judged in places],
    }
