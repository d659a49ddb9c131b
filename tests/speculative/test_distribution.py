"""Speculation leaves the target's distribution as it is: chi-square over many samples, one token and two.

Two rules that do not are held to the same test, and must fail it.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from guessing import speculating_engine

from llmlab.engine.distribution import probabilities
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import StepPlan
from llmlab.engine.runner import Capacity
from llmlab.engine.sampler import SampleInput, adjusted_row
from llmlab.engine.speculative.config import RULES
from llmlab.engine.speculative.proposer import Draft, Probs
from llmlab.engine.speculative.rules import Uniforms, draw_rows
from llmlab.engine.speculative.verify import verify

VOCABULARY = 12
SAMPLES = 200_000
REJECT = 1e-6
"""A correct rule fails once in a million seeds, and the seeds are fixed; the wrong ones are far beyond."""
TEMPERATURES = (0.6, 1.3)
INEXACT = [name for name in RULES if name != "exact"]


def _logits(context: int = 0) -> torch.Tensor:
    return torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(100 + context)) * 1.5


def _draft_logits(context: int = 0) -> torch.Tensor:
    return _logits(context) + torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(7 + context))


def _p(logits: torch.Tensor, temperature: float) -> torch.Tensor:
    return probabilities(logits, SamplingParams(temperature=temperature))


def _survival(statistic: float, freedom: int) -> float:
    """Chance of a chi-square as large; Wilson and Hilferty's cube root is normal to a few parts in a thousand."""
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """p-value of ``counts`` against ``p``; cells that expect less than 5 are put together."""
    counts, expected = counts.ravel().astype(float), p.ravel() * counts.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    cells = expected > 0
    assert observed[~cells].sum() == 0, "a token of probability 0 came out"
    statistic = ((observed[cells] - expected[cells]) ** 2 / expected[cells]).sum()
    return _survival(float(statistic), int(cells.sum()) - 1)


def _uniforms(count: int, seed: int) -> tuple[torch.Tensor, Uniforms]:
    numbers = torch.rand(4, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return numbers[0], Uniforms(*numbers[1:])


def _drafted(proposer: str, q: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Draft tokens ``(n,)`` and the rows they were drawn from: drawn from q, or the likeliest one named."""
    if proposer == "draws":
        rows = q.expand(len(u), -1)
        return draw_rows(rows, u), rows
    return torch.full((len(u),), int(q.argmax())), None


def _one_token(rule: str, proposer: str, temperature: float) -> float:
    p, q = _p(_logits(), temperature), _p(_draft_logits(), temperature)
    u, uniforms = _uniforms(SAMPLES, seed=1)
    tokens, rows = _drafted(proposer, q, u)
    judged = RULES[rule](p.expand(SAMPLES, -1), tokens, rows, uniforms)
    return chi_square(np.bincount(judged.tokens, minlength=VOCABULARY), p.numpy())


def _two_tokens(rule: str, proposer: str, temperature: float) -> float:
    """The first two tokens: the second is judged where the first was kept, and sampled where it was replaced."""
    contexts = range(VOCABULARY)
    p, q = _p(_logits(99), temperature), _p(_draft_logits(99), temperature)
    after_p = torch.stack([_p(_logits(i), temperature) for i in contexts])
    after_q = torch.stack([_p(_draft_logits(i), temperature) for i in contexts])
    u, uniforms = _uniforms(SAMPLES, seed=2)
    first_drafts, rows = _drafted(proposer, q, u)
    first = RULES[rule](p.expand(SAMPLES, -1), first_drafts, rows, uniforms)
    u, uniforms = _uniforms(SAMPLES, seed=3)
    if proposer == "draws":
        rows = after_q[first_drafts]
        second_drafts = draw_rows(rows, u)
    else:
        rows, second_drafts = None, after_q.argmax(dim=-1)[first_drafts]
    second = RULES[rule](after_p[first_drafts], second_drafts, rows, uniforms)
    plain = draw_rows(after_p[first.tokens], uniforms.target)
    tokens = torch.where(first.accepted, second.tokens, plain)
    counts = np.bincount(first.tokens * VOCABULARY + tokens, minlength=VOCABULARY**2)
    return chi_square(counts, (p[:, None] * after_p).numpy())


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("proposer", ["draws", "names"])
@pytest.mark.parametrize("measure", [_one_token, _two_tokens])
def test_the_exact_rule_keeps_the_distribution(measure, proposer, temperature):
    assert measure("exact", proposer, temperature) > REJECT


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("proposer", ["draws", "names"])
@pytest.mark.parametrize("measure", [_one_token, _two_tokens])
@pytest.mark.parametrize("rule", INEXACT)
def test_the_inexact_rules_do_not(rule, measure, proposer, temperature):
    assert measure(rule, proposer, temperature) < REJECT


def test_the_test_accepts_samples_of_the_target_and_rejects_small_errors():
    p = _p(_logits(), 1.0)
    u, _ = _uniforms(SAMPLES, seed=4)
    counts = np.bincount(draw_rows(p.expand(SAMPLES, -1), u), minlength=VOCABULARY)
    assert chi_square(counts, p.numpy()) > 1e-3
    shifted = p.clone()
    shifted[0] += 0.01
    assert chi_square(counts, (shifted / shifted.sum()).numpy()) < REJECT


# -- through verify() and the engine, with the sampling rules of a request ---------------------------------------

EOS = 2
RULED = {
    "nothing": {},
    "filters": {"top_k": 7, "top_p": 0.9, "min_p": 0.02, "min_tokens": 3},
    "adjustments": {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.8,
        "presence_penalty": 0.3,
        "logit_bias": {3: 2.0, 5: -100.0},
        "min_tokens": 3,
    },
}


@pytest.mark.parametrize("draws", [True, False])
def test_verify_draws_what_the_rules_of_its_arguments_say(draws):
    """The scalar path is the rule on one position, with the uniform numbers of that position."""
    params, p = SamplingParams(temperature=1.0), _p(_logits(), 1.0)
    q = _p(_draft_logits(), 1.0)
    counts = np.zeros(VOCABULARY)
    for seed in range(4000):
        token = int(
            draw_rows(q[None], torch.rand(1, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
        )
        draft = Draft((token,), (Probs.nonzero(q) if draws else None,))
        rules = SampleInput(params, seed, 0, 5, (), (), 3, ())
        verdict = verify(_logits()[None], rules, draft, RULES["exact"])
        counts[verdict.sampled[0].token_id] += 1
    assert chi_square(counts, p.numpy()) > REJECT


class Chain:
    """A mock model over 12 tokens: the next token's logits depend on the last token and on nothing else."""

    model, device, dtype = "chain", "cpu", "float32"

    def __init__(self, table: torch.Tensor) -> None:
        self.capacity, self.table = Capacity(4096, 4, 1, 1, 1, 8, VOCABULARY, 64), table

    def build(self, plan: StepPlan) -> StepPlan:
        return plan

    def forward(self, plan: StepPlan) -> torch.Tensor:
        return self.table[
            [token for row in plan.rows for token in row.token_ids[len(row.token_ids) - row.num_logits :]]
        ]


class ChainGuesser:
    """Proposes from logits of its own, or the likeliest by name."""

    name, needs_features, repeatable = "chain-guesser", False, True

    def __init__(self, table: torch.Tensor, draws: bool) -> None:
        self.table, self.draws = table, draws

    def propose(self, rows):
        for row in rows:
            while not row.is_full:
                logits = self.table[row.chosen[-1] if row.chosen else row.tokens[-1]]
                if not self.draws:
                    row.name(int(logits.argmax()))
                elif row.choose(logits) is None:
                    break
        return [row.draft for row in rows]

    def observe(self, rows):
        raise AssertionError("asked for no features")

    def fork(self, parent_id, child_id):
        pass

    def forget(self, request_id):
        pass


class Letters:
    """A tokenizer of 12 letters."""

    eos_token_id = None

    def decode(self, ids, **_):
        return "".join(chr(97 + i) for i in ids)

    def encode(self, text, **_):
        return [ord(c) - 97 for c in text]


def _engine_counts(extra: dict, draws: bool, rule: str, runs: int) -> np.ndarray:
    """Counts of the second and third output token, which a draft covers, over ``runs`` requests of 64 samples."""
    table = torch.stack([_logits(i) for i in range(VOCABULARY)])
    guesses = torch.stack([_draft_logits(i) for i in range(VOCABULARY)])
    engine = speculating_engine(
        ChainGuesser(guesses, draws),
        k=2,
        rule=rule,
        runner=Chain(table),
        tokenizer=Letters(),
        slots=64,
        budget=512,
        record=False,
        eos_token_ids=(EOS,),
        prefix_cache=False,
    )
    counts = np.zeros((VOCABULARY, VOCABULARY))
    for seed in range(runs):
        params = SamplingParams(temperature=1.0, max_tokens=4, seed=seed, n=64, ignore_eos=not extra, **extra)
        for output in engine.submit([1], params).wait().outputs:
            counts[tuple(output.token_ids[1:3])] += 1
    return counts


def _expected(extra: dict) -> np.ndarray:
    """The joint distribution of the second and third token, computed from the rules alone."""
    params = SamplingParams(temperature=1.0, **extra)

    def row(output: list[int]) -> np.ndarray:
        rules = SampleInput(params, 0, 0, 1 + len(output), [1], output, len(output), (EOS,))
        adjusted, problem = adjusted_row(_logits(output[-1] if output else 1), rules)
        assert problem is None
        return probabilities(adjusted, params).numpy()

    joint = np.zeros((VOCABULARY,) * 3)
    for a, pa in enumerate(row([])):
        for b, pb in enumerate(row([a])):
            joint[a, b] = pa * pb * row([a, b])
    return joint.sum(axis=0)


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("name", RULED)
def test_the_engine_keeps_the_joint_distribution_under_every_sampling_rule(name, draws):
    assert chi_square(_engine_counts(RULED[name], draws, "exact", runs=16), _expected(RULED[name])) > REJECT


@pytest.mark.parametrize("rule", INEXACT)
def test_the_engine_does_not_with_an_inexact_rule(rule):
    assert chi_square(_engine_counts({}, False, rule, runs=16), _expected({})) < REJECT
