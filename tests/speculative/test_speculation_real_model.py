"""On real weights: greedy tokens with every proposer are those without."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import llmlab
from llmlab.engine.speculative.config import Speculation

pytestmark = pytest.mark.model

PROMPTS = json.loads((Path(__file__).parents[2] / "data" / "prompts.json").read_text("utf-8"))
NEW_TOKENS = 16


def _prompts() -> list[str]:
    """50 prompts: those of the file, and the same with a request that invites quoting."""
    texts = [prompt["text"] for prompt in PROMPTS]
    variations = [*texts, *(f"Repeat after me: {text}" for text in texts), *(f"{text}\n{text}" for text in texts)]
    return variations[:50]


def _answers(speculative) -> tuple[list[list[int]], dict]:
    with llmlab.open(dtype="float32", background=False, threads=1, speculative=speculative, max_num_seqs=8) as lab:
        runs = [lab.submit(prompt, max_tokens=NEW_TOKENS) for prompt in _prompts()]
        tokens = [run.wait().token_ids for run in runs]
        assert lab.trace.check() == []
        return tokens, lab.trace.drafts.attrs["summary"]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    return _answers(None)[0]


@pytest.mark.parametrize(
    "speculation",
    [
        Speculation("ngram", adaptive=False),
        Speculation("early-exit", layers=29, adaptive=False, k=2),
        Speculation("draft-model", model="smollm2-135m", k=3, adaptive=False),
    ],
    ids=lambda speculation: speculation.proposer,
)
def test_fifty_greedy_answers_are_those_of_plain_decoding(plain, speculation):
    tokens, summary = _answers(speculation)
    assert tokens == plain
    assert summary["accepted"] > 0


def test_a_draft_model_as_large_as_the_target_is_known_not_to_pay():
    with llmlab.open(speculative=Speculation("draft-model", model="smollm2-135m")) as lab:
        assert lab.engine.speculator.proposer.draft_cost == 1.0
        run = lab.ask("Count from one to five.", max_tokens=12)
    assert run.usage.get("accepted_draft_tokens", 0) == 0
