"""What K/V tiers and the radix index are worth: a preempted request that computes again or is swapped in, and hits.

The first part preempts one request of 512 prompt tokens again and again, once in each way a round. The second serves
agents' turns whose prompts part inside blocks, with either prefix index; its counts depend on nothing but the prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from llmlab.errors import LabError

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd
    from rich.table import Table

    from llmlab.lab import Lab
    from llmlab.trace.trace import Trace

BLOCK = 16
YOUNG_PROMPT, OLD_PROMPT = 512, 15
YOUNG_TOKENS, OLD_TOKENS = 48, 80
INDEXES = ("hash", "radix")
SHARED, AGENTS, TURNS, ANSWER = 203, 6, 4, 12
"""Tokens of the agents' common beginning (no whole number of blocks), agents, turns of each, tokens of an answer."""


@dataclass(slots=True)
class Resumed:
    """Milliseconds each way to bring a preempted request back took, a number a round, and what they were about.

    ``recompute_ms``: the steps that computed it again. ``swap_ms``: the copies out and in, and the step it went on in.
    """

    num_tokens: int = 0
    nbytes: int = 0
    recompute_ms: list[float] = field(default_factory=list)
    swap_ms: list[float] = field(default_factory=list)
    copy_ms: list[float] = field(default_factory=list)
    policy: str = ""


@dataclass(slots=True)
class Hits:
    """Prompt tokens of all turns, those served from the cache, and blocks of which a part was copied."""

    num_prompt: int = 0
    num_cached: int = 0
    num_copies: int = 0
    ttft_ms: list[float] = field(default_factory=list)


@dataclass(slots=True)
class TierFigures:
    """Both parts; ``hits`` by the name of the index."""

    resumed: Resumed
    hits: dict[str, Hits]


def measure_tiers(
    rounds: int,
    *,
    model: str,
    device: str = "cpu",
    dtype: str = "auto",
    progress: Callable[[str], None] = lambda _: None,
) -> TierFigures:
    """One thread; the first round of the first part warms up and is not counted."""
    from llmlab.opening import open

    options = {"device": device, "dtype": dtype, "threads": 1, "background": False, "block_size": BLOCK}
    longest = YOUNG_PROMPT + YOUNG_TOKENS
    num_blocks = -(-longest // BLOCK) + 2  # room for the young one or the old one to end, not for both
    progress("preempting a request")
    with open(model, num_blocks=num_blocks, prefix_cache="off", host_blocks=2 * num_blocks, **options) as lab:
        resumed = _resume(lab, rounds)
    hits = {}
    for index in INDEXES:
        progress(f"agents' turns with prefix_cache={index!r}")
        with open(model, num_blocks=512, prefix_cache=index, **options) as lab:
            hits[index] = _serve_agents(lab)
    return TierFigures(resumed, hits)


# -- a preempted request ---------------------------------------------------------------------------------------


def _resume(lab: Lab, rounds: int) -> Resumed:
    figures, policy = Resumed(), lab.engine.pool.host.policy
    for number in range(rounds + 1):
        for mode in ("never", "always"):
            policy.mode = mode
            _preempt_once(lab, figures if number else Resumed(), Random(number))
    policy.mode = "auto"
    figures.policy = str(policy)
    return figures


def _preempt_once(lab: Lab, figures: Resumed, dice: Random) -> None:
    """The older request takes the younger one's blocks while both decode, ends, and the younger one comes back."""
    vocabulary = min(lab.engine.capacity.vocab_size, 250)
    old, young = (
        lab.submit([dice.randrange(1, vocabulary) for _ in range(length)], max_tokens=tokens, ignore_eos=True)
        for length, tokens in ((OLD_PROMPT, OLD_TOKENS), (YOUNG_PROMPT, YOUNG_TOKENS))
    )
    lab.engine.run_until_idle()
    trace = young.trace
    if old.error or young.error or young.usage["preemptions"] != 1:
        raise LabError(f"the request was preempted {young.usage['preemptions']} times, not once: nothing was measured")
    _note(figures, trace, young.id)


def _note(figures: Resumed, trace: Trace, request_id: str) -> None:
    rows = trace.schedule[trace.schedule["request_id"] == request_id]
    preempted = int(rows.loc[rows["action"] == "preempted", "step"].iloc[0])
    steps, transfers = trace.steps.set_index("step"), trace.transfers
    back = rows[(rows["step"] > preempted) & (rows["action"] == "ran")]
    if transfers.empty:
        again = back[back["is_prefill"]]
        figures.num_tokens = int(again["num_tokens"].sum())
        figures.recompute_ms.append(_duration(steps, again["step"]))
    else:
        figures.nbytes = int(transfers.loc[transfers["action"] == "swap_out", "nbytes"].sum())
        out_ms = transfers.loc[transfers["action"] == "swap_out", "duration_ms"].sum()
        figures.copy_ms.append(float(transfers["duration_ms"].sum()))
        figures.swap_ms.append(float(out_ms) + _duration(steps, back["step"].iloc[:1]))


def _duration(steps: pd.DataFrame, numbers: pd.Series) -> float:
    return float(steps.loc[numbers, "total_ms"].sum())


# -- agents ----------------------------------------------------------------------------------------------------


def _serve_agents(lab: Lab) -> Hits:
    """Every agent goes on from its own last turn, its answer included, by a few tokens that are its own."""
    hits, dice = Hits(), Random(7)
    vocabulary = min(lab.engine.capacity.vocab_size, 250)
    common = [dice.randrange(1, vocabulary) for _ in range(SHARED)]
    prompts = [[*common, *_some(dice, vocabulary, 9 + 5 * agent)] for agent in range(AGENTS)]
    for _ in range(TURNS):
        for agent in range(AGENTS):
            run = lab.submit(prompts[agent], max_tokens=ANSWER, ignore_eos=True).wait()
            hits.num_prompt += run.usage["prompt_tokens"]
            hits.num_cached += run.usage["cached_tokens"]
            hits.ttft_ms.append(float(run.trace.requests["ttft_ms"].iloc[0]))
            prompts[agent] = [*prompts[agent], *run.token_ids, *_some(dice, vocabulary, dice.randrange(15, 40))]
    hits.num_copies = int((lab.trace.blocks["action"] == "copy").sum())
    return hits


def _some(dice: Random, vocabulary: int, length: int) -> list[int]:
    return [dice.randrange(1, vocabulary) for _ in range(length)]


# -- reports ---------------------------------------------------------------------------------------------------


def tier_tables(figures: TierFigures) -> list[Table]:
    """A table for each part."""
    return [_resumed_table(figures.resumed), _hits_table(figures.hits)]


def _resumed_table(resumed: Resumed) -> Table:
    from rich.table import Table

    table = Table(title=f"Bringing back a preempted request of {resumed.num_tokens} tokens", title_justify="left")
    for name in ("", "median ms", "what"):
        table.add_column(name, justify="left" if name != "median ms" else "right")
    copies = f"{resumed.nbytes / 2**20:.1f} MiB out and in, {median(resumed.copy_ms):.1f} ms of it, and a decode step"
    table.add_row("compute again", f"{median(resumed.recompute_ms):.1f}", f"{resumed.num_tokens} tokens")
    table.add_row("swap", f"{median(resumed.swap_ms):.1f}", copies)
    table.caption = resumed.policy
    return table


def _hits_table(hits: dict[str, Hits]) -> Table:
    from rich.table import Table

    table = Table(title=f"{AGENTS} agents, {TURNS} turns each, parting inside blocks of {BLOCK}", title_justify="left")
    for name in ("prefix index", "prompt tokens", "from the cache", "share", "computed", "parts copied", "TTFT ms"):
        table.add_column(name, justify="left" if name == "prefix index" else "right")
    for name, found in hits.items():
        share = f"{found.num_cached / found.num_prompt:.1%}"
        computed = f"{found.num_prompt - found.num_cached:,}"
        counts = (f"{found.num_prompt:,}", f"{found.num_cached:,}", share, computed, str(found.num_copies))
        table.add_row(name, *counts, f"{median(found.ttft_ms):.1f}")
    return table


def tier_object(figures: TierFigures) -> dict[str, Any]:
    """Everything measured, for JSON."""
    from dataclasses import asdict

    return {"what": "tiers", **asdict(figures)}
