"""Prefill and decode on one clock: where each prompt was computed, how its K/V travelled, when its tokens came."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from llmlab.errors import InvalidParameter
from llmlab.trace.trace import Trace
from llmlab.views.glyphs import visible
from llmlab.views.handoff_facts import Story, read_stories
from llmlab.views.handoff_scene import scene_of
from llmlab.views.looked import MIN_WIDTH, check_size
from llmlab.views.missing import missing_view
from llmlab.views.phrases import count
from llmlab.views.view import View

MOST = 16
COLUMNS = (
    "request_id",
    "num_prompt_tokens",
    "num_cached_tokens",
    "computed_there",
    "computed_here",
    "nbytes",
    "medium",
    "num_output_tokens",
    "prefill_ms",
    "transfer_ms",
    "ttft_ms",
    "longest_gap_ms",
)


def handoff(trace: Trace, request_ids: str | Sequence[str] | None = None, *, width: float = 960) -> View:
    """A lane per request: waiting, its prompt computed (there or here), its K/V on the way, a tick for every token.

    Works for a lab in one process as well, so that the two can be compared. ``request_ids`` picks requests (default:
    the first 16). The longest gap between two tokens of a request is written at the end of its lane; it is what a long
    prompt does to its neighbours. Raises ``UnknownRequest``, and ``InvalidParameter`` for no request at all and a width
    that cannot be drawn.
    """
    check_size("width", width, MIN_WIDTH, 4_000)
    index = trace.index
    request_ids = [request_ids] if isinstance(request_ids, str) else request_ids
    if request_ids is not None and not len(request_ids):
        raise InvalidParameter("request_ids is empty: name some, or leave it out")
    stories = read_stories(trace, request_ids)
    if not stories or not index.steps:
        what = "No step of an engine was recorded: ask a lab that was opened with record=True something first."
        return missing_view("handoff", "Prefill and decode", what, COLUMNS, width)
    shown = stories[:MOST]
    parted = any(story.there for story in stories)
    where = "in two processes" if parted else "in one process"
    return View(
        "handoff",
        f"Prefill and decode {where}",
        f"{count(len(shown), 'request')}: prompts computed {where}, then a tick for every token.",
        "\n".join([*_totals(trace, stories), *(story.told() for story in shown)]),
        scene_of(trace, shown, width),
        pd.DataFrame([story.facts() for story in shown], columns=list(COLUMNS)),
        (f"{len(stories) - MOST} more requests are not shown.",) if len(stories) > MOST else (),
    )


def _totals(trace: Trace, stories: Sequence[Story]) -> list[str]:
    there, here = (sum(getattr(s, name) for s in stories) for name in ("computed_there", "computed_here"))
    nbytes = sum(story.nbytes for story in stories)
    if not any(story.there for story in stories):
        return [f"{count(here, 'prompt token')} computed in the process that decodes"]
    media = sorted({visible(story.medium) for story in stories if story.medium})
    return [
        f"{count(there, 'prompt token')} computed by the prefill process, {count(here, 'prompt token')} here; "
        f"{nbytes:,} bytes of K/V handed over by {' and '.join(media)}"
    ]
