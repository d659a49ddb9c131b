"""A smaller model drafts: a runner of its own with K/V blocks of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from llmlab.engine.blocks import BlockPool
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow, StepPlan
from llmlab.engine.request import Request
from llmlab.engine.runner import Runner
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed
from llmlab.errors import VocabularyMismatch

CHUNK = 512
"""Positions of one forward pass while the draft model catches up with a prompt."""


class DraftModel:
    """Follows every request with a shadow of its own in its own block pool.

    A shadow's tokens are the request's, then its own drafts; where the target decided otherwise, positions from there
    on are computed again. Blocks are hashed like the target's, so a second sample or an equal prompt begins with a
    prefix hit here too. When the pool is full, shadows of requests that do not draft now are dropped, the longest
    unused first; a row that still finds no room gets no draft.
    """

    needs_features, repeatable = False, True

    def __init__(self, runner: Runner, name: str | None = None, draft_cost: float = 0.0) -> None:
        self.runner, self.name, self.draft_cost = runner, name or f"draft-model {runner.model}", draft_cost
        self.pool = BlockPool(runner.capacity.num_blocks, runner.capacity.block_size)
        self._shadows: dict[str, Request] = {}

    def propose(self, rows: Sequence[DraftRow]) -> list[Draft]:
        """Catch up with what the target chose, then one forward pass for every draft token, over all rows at once."""
        wanted = {row.request_id for row in rows}
        pairs = [(row, shadow) for row in rows if (shadow := self._follow(row, wanted)) is not None]
        while pairs:
            answers = self._answers([shadow for _, shadow in pairs])
            pairs = [pair for pair, logits in zip(pairs, answers, strict=True) if self._choose(*pair, logits)]
        return [row.draft for row in rows]

    # -- following the target -------------------------------------------------------------------------------

    def _follow(self, row: DraftRow, wanted: set[str]) -> Request | None:
        """The row's shadow with the row's tokens and room for its draft; ``None`` when that is not to be had."""
        end = len(row.tokens) + row.k - 1
        known = self.runner.capacity
        if end > known.max_model_len or max(row.tokens) >= known.vocab_size:
            return None
        shadow = self._shadows.pop(row.request_id, None) or self._begin(row)
        self._shadows[row.request_id] = shadow  # last: used most recently
        shadow.num_computed = _agreement(shadow, row.tokens)
        shadow.tokens = list(row.tokens)
        while not self._claim(shadow, end):
            idle = next((i for i in self._shadows if i not in wanted), None)
            if idle is None:
                self.forget(row.request_id)
                return None
            self.forget(idle)
        return shadow

    def _begin(self, row: DraftRow) -> Request:
        params = SamplingParams(cache_salt=row.rules.params.cache_salt)
        shadow = Request(row.request_id, list(row.tokens), params, seed=0, max_tokens=1)
        hits = self.pool.match(shadow)
        self.pool.share(shadow, hits)
        shadow.num_computed = len(hits) * self.pool.block_size
        return shadow

    def _claim(self, shadow: Request, end: int) -> bool:
        """Room for ``end`` positions. Only whole blocks are shared, and those are never written to again."""
        assert not self.pool.needs_copy(shadow), "a position that would be computed again lies in a shared block"
        return self.pool.extend(shadow, end)

    # -- computing ------------------------------------------------------------------------------------------

    def _answers(self, shadows: list[Request]) -> list[Tensor]:
        """Logits after each shadow's last token."""
        while any(shadow.num_remaining > CHUNK for shadow in shadows):
            self._run([(s, CHUNK) for s in shadows if s.num_remaining > CHUNK])
        return list(self._run([(shadow, shadow.num_remaining) for shadow in shadows]))

    def _run(self, parts: list[tuple[Request, int]]) -> Tensor:
        rows = [
            ScheduledRow(
                request=shadow,
                start=shadow.num_computed,
                num_tokens=count,
                num_cached=0,
                is_prefill=count > 1,
                samples=count == shadow.num_remaining,
                num_logits=int(count == shadow.num_remaining),
            )
            for shadow, count in parts
        ]
        logits = self.runner.forward(self.runner.build(StepPlan(0, rows)))
        for row in rows:
            row.request.num_computed = row.end
        return logits

    def _choose(self, row: DraftRow, shadow: Request, logits: Tensor) -> bool:
        """Add a token to the draft; says whether there is to be another."""
        if not row.chosen:  # what is hashed is what the target chose, so a rejected draft is never found
            self.pool.register(shadow)
        token_id = row.choose(logits)
        if token_id is None or row.is_full:
            return False
        shadow.tokens.append(token_id)
        return token_id < self.runner.capacity.vocab_size

    # -- lives of requests ----------------------------------------------------------------------------------

    def observe(self, rows: Sequence[Observed]) -> None:
        """Needs no features."""

    def fork(self, parent_id: str, child_id: str) -> None:
        """The child finds its parent's blocks by their content."""

    def forget(self, request_id: str) -> None:
        """Give up the blocks of a request's shadow; what is hashed stays findable."""
        shadow = self._shadows.pop(request_id, None)
        if shadow is not None:
            self.pool.release(shadow)


def _agreement(shadow: Request, tokens: Sequence[int]) -> int:
    """Leading positions that are computed and hold these tokens, the last token left to compute."""
    limit = min(shadow.num_computed, len(tokens) - 1)
    start = min(limit, shadow.num_prompt)  # the shadow began with the first num_prompt of these tokens
    for i in range(start, limit):
        if shadow.tokens[i] != tokens[i]:
            return i
    return limit


def load_draft_model(model: str | Path, target: Any, runner: Runner) -> DraftModel:
    """Load ``model`` beside the target, on its device and in its dtype, with a pool for as many tokens.

    Raises ``VocabularyMismatch`` when the tokenizers differ, and the errors of loading a model.
    """
    from llmlab.engine.build import build_runner
    from llmlab.models.load import load, weight_bytes

    def fresh():
        return load(model, device=target.device, dtype=target.dtype)

    draft = fresh()
    check_same_tokens(draft, target)
    size = runner.capacity.block_size
    # one block more per request than the target: samples of one prompt do not share a partly filled block here
    blocks = runner.capacity.num_blocks * 5 // 4 + 16
    # both read all their weights once a token; counted from the configs, because packed weights are no parameters
    share = weight_bytes(draft.model.config, draft.dtype) / weight_bytes(target.model.config, target.dtype)
    return DraftModel(build_runner(draft, block_size=size, num_blocks=blocks, reload=fresh), draft_cost=share)


def check_same_tokens(draft: Any, target: Any) -> None:
    """Raise ``VocabularyMismatch`` unless every id means the same text to both tokenizers.

    The models may still have logits for more ids than that: rows that only pad the vocabulary. Ids that the draft model
    lacks are never proposed, and those that only it has are cut off.
    """
    ours, theirs = draft.tokenizer.get_vocab(), target.tokenizer.get_vocab()
    if ours == theirs:
        return
    differing = {token for token, _ in ours.items() ^ theirs.items()}
    raise VocabularyMismatch(
        f"draft model {draft.name!r} ({len(ours)} tokens) and target {target.name!r} ({len(theirs)}) do not have the "
        f"same vocabulary: {len(differing)} tokens differ, {min(differing)!r} for one. Choose a draft model of the "
        "target's family, or speculative='ngram'"
    )
