"""What the oracle tests share: 20 prompts, the untouched model's answers to them, and labs to compare with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

import llmlab
from llmlab.models import DEFAULT_MODEL, LoadedModel, load

PROMPTS = Path(__file__).parents[2] / "data" / "prompts.json"
NEW_TOKENS = 12
MIN_MARGIN = 1e-3
"""Paged and plain float32 logits differ by less than 4e-4 (guarded in test_oracle_logits.py), so a first place that
leads by this much cannot change hands: greedy tokens must be equal, to the last one."""


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt as token ids and the greedy answer of transformers ``generate``, an ending EOS included."""

    name: str
    category: str
    ids: list[int]
    answer: list[int]


class PlainModel:
    """The oracle: float32 weights in the modules of transformers, never touched by the engine."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.model, self.tokenizer = loaded.model, loaded.tokenizer

    def answer(self, ids: list[int], max_tokens: int = NEW_TOKENS) -> list[int]:
        """Greedy tokens of ``generate``; asserts that no step is a tie that rounding could decide."""
        prompt = torch.tensor([ids])
        output = self.model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_tokens,
            return_dict_in_generate=True,
            output_logits=True,
        )
        first, second = torch.cat(output.logits).topk(2).values.T
        margin = first - second
        assert margin.min() > MIN_MARGIN, f"a near tie at step {int(margin.argmin())}: change the prompt"
        return output.sequences[0, len(ids) :].tolist()

    @torch.inference_mode()
    def logits(self, ids: list[int]) -> torch.Tensor:
        """Logits ``(len(ids), vocabulary)`` of one forward pass without a cache."""
        return self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """One thread for the oracle and the engine alike; the setting is the whole process's."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def plain(one_thread) -> PlainModel:
    return PlainModel(load(DEFAULT_MODEL, device="cpu", dtype="float32"))


@pytest.fixture(scope="session")
def cases(plain) -> dict[str, Case]:
    """All 20 prompts by name, answered."""
    return {record["name"]: _answered(plain, record) for record in json.loads(PROMPTS.read_text("utf-8"))}


@pytest.fixture(scope="session")
def short_cases(cases) -> list[Case]:
    """Eight prompts of all categories that take little time, 1 to 60 tokens."""
    names = "en-word en-ferry en-kitchen zh-greeting zh-rain code-sum code-sql emoji-smile"
    return [cases[name] for name in names.split()]


def _answered(plain: PlainModel, record: dict) -> Case:
    text = record["text"]
    if record["chat"]:
        messages = [{"role": "user", "content": text}]
        text = plain.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = plain.tokenizer.encode(text, add_special_tokens=not record["chat"])
    return Case(record["name"], record["category"], ids, plain.answer(ids))


@pytest.fixture
def open_lab():
    """``llmlab.open`` on the default model, stepped by whoever waits; every lab is closed at the end."""
    labs = []

    def opened(**options) -> llmlab.Lab:
        settings = {"device": "cpu", "dtype": "float32", "threads": 1, "background": False}
        labs.append(llmlab.open(DEFAULT_MODEL, **(settings | options)))
        return labs[-1]

    yield opened
    for lab in labs:
        lab.close()
        lab.engine.check_integrity()
        assert lab.engine.pool.num_used == 0, "a block leaked"


@pytest.fixture
def greedy():
    """Submits cases all at once and returns their finished runs."""

    def run_all(lab: llmlab.Lab, cases, **params) -> list[llmlab.Run]:
        runs = [lab.submit(case.ids, max_tokens=NEW_TOKENS, **params) for case in cases]
        return [run.wait() for run in runs]

    return run_all
