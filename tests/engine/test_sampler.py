"""The sampler: seeds, adjustments, filters, distributions, against hand-made numbers and independent code."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from llmlab.engine.distribution import adjust_logits, argmax, draw, largest, probabilities
from llmlab.engine.params import SamplingParams
from llmlab.engine.sampler import SampleInput, prompt_logprobs, sample
from llmlab.engine.uniform import uniform

VOCAB = 500
SEEDS = st.integers(0, 2**32 - 1)


def row(params: SamplingParams | None = None, **kwargs) -> SampleInput:
    """A row to sample with everything but ``kwargs`` at a plain value."""
    plain = {"seed": 7, "sample": 0, "position": 3, "prompt_ids": (), "output_ids": (), "num_output": 0}
    return SampleInput(params=params or SamplingParams(), **(plain | {"eos_token_ids": (2,)} | kwargs))


def random_logits(*shape: int, seed: int = 0, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread


def tokens(logits: torch.Tensor, rows: list[SampleInput]) -> list[int]:
    return [sampled.token_id for sampled in sample(logits, rows)]


def chi_square(counts: list[int], probs: list[float]) -> float:
    total = sum(counts)
    return sum((c - total * p) ** 2 / (total * p) for c, p in zip(counts, probs, strict=True))


# The draw


def test_uniform_is_flat_and_covers_the_unit_interval():
    values = [uniform(5, 0, position) for position in range(20_000)]
    assert 0 <= min(values) < 0.001
    assert 0.999 < max(values) < 1
    counts = [sum(int(v * 20) == i for v in values) for i in range(20)]
    assert chi_square(counts, [1 / 20] * 20) < 43.8  # 19 degrees of freedom, one in a thousand


def test_uniform_depends_on_each_argument_and_on_nothing_else():
    places = [(s, n, p, d) for s in (0, 1, -1) for n in (0, 1) for p in (0, 1, 2**40) for d in (0, 1)]
    assert len({uniform(*place) for place in places}) == len(places)
    assert [uniform(*p) for p in reversed(places)] == [uniform(*p) for p in places][::-1]
    # Pinned: a seed that was written down must keep its meaning.
    assert uniform(1, 0, 0) == 0.1749323663682173


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20).filter(any), st.floats(0, 1, exclude_max=True))
@settings(deadline=None)
def test_draw_never_gives_a_token_of_probability_zero(weights, u):
    probs = torch.tensor(weights, dtype=torch.float64)
    assert probs[draw(probs, u)] > 0
    assert probs[draw(probs, 1 - 2**-53)] > 0


def test_draw_inverts_the_cumulated_distribution():
    probs = torch.tensor([0.25, 0.0, 0.5, 0.25])
    assert [draw(probs, u) for u in (0.0, 0.2499, 0.25, 0.7499, 0.75, 0.9999)] == [0, 0, 2, 2, 3, 3]
    assert draw(probs * 8, 0.7499) == 2


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=0.7, top_k=4),
        SamplingParams(temperature=1.5, top_p=0.8),
        SamplingParams(temperature=1.2, min_p=0.1),
    ],
)
def test_tokens_follow_the_distribution(params):
    logits = torch.tensor([1.0, 0.5, 0.0, -0.5, 2.0, -1.0])
    weights = [math.exp(float(x) / params.temperature) for x in logits]
    by_weight = sorted(range(6), key=lambda i: -weights[i])
    if params.top_k:
        by_weight = by_weight[: params.top_k]
    elif params.top_p < 1:
        by_weight = by_weight[:4]
        shares = [weights[i] / sum(weights) for i in by_weight]
        assert sum(shares[:-1]) < params.top_p <= sum(shares)
    elif params.min_p:
        by_weight = [i for i in by_weight if weights[i] >= params.min_p * max(weights)]
    total = sum(weights[i] for i in by_weight)
    drawn = tokens(logits.expand(8000, 6), [row(params, position=i) for i in range(8000)])
    assert set(drawn) == set(by_weight)
    counts = [drawn.count(i) for i in by_weight]
    assert chi_square(counts, [weights[i] / total for i in by_weight]) < 20.5  # one in a thousand at 5 degrees


# The same tokens in any company


def mixed_rows(size: int) -> list[SampleInput]:
    kinds = [
        SamplingParams(),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1e-4),
        SamplingParams(temperature=0.8, top_p=0.9, top_k=30),
        SamplingParams(temperature=2.0, min_p=0.02, repetition_penalty=1.3, logprobs=3),
        SamplingParams(frequency_penalty=0.5, min_tokens=4, logprobs=1),
    ]
    return [
        row(kinds[i % len(kinds)], seed=i // 2, sample=i % 2, position=10 + i, output_ids=(i, i), num_output=2)
        for i in range(size)
    ]


def test_seeded_tokens_are_the_same_alone_batched_and_reordered():
    rows = mixed_rows(24)
    logits = random_logits(24, VOCAB)
    batched = sample(logits, rows)
    assert [sample(logits[i : i + 1], [rows[i]])[0] for i in range(24)] == batched
    order = torch.randperm(24, generator=torch.Generator().manual_seed(1)).tolist()
    assert sample(logits[order], [rows[i] for i in order]) == [batched[i] for i in order]
    assert len({sampled.token_id for sampled in batched}) > 12


def test_unseeded_neighbour_changes_nothing():
    logits = random_logits(1, VOCAB).expand(2, VOCAB)
    params = SamplingParams(temperature=1.0)
    for neighbour in range(20):
        assert tokens(logits, [row(params, seed=neighbour), row(params)])[1] == tokens(logits[:1], [row(params)])[0]


def test_seed_sample_and_position_each_change_the_draw():
    logits = random_logits(1, VOCAB, spread=0.1)
    for name in ("seed", "sample", "position"):
        drawn = [tokens(logits, [row(SamplingParams(temperature=1.0), **{name: i})])[0] for i in range(20)]
        assert len(set(drawn)) > 15


def test_empty_batch_gives_nothing():
    assert sample(torch.zeros(0, VOCAB), []) == []


# Greedy and near-greedy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_takes_the_lowest_id_among_equals(dtype):
    logits = torch.zeros(2, 50_000, dtype=dtype)
    logits[0, [17, 40_000]] = 3.0
    logits[1, [31_111, 31_112, 49_999]] = 5.0
    assert tokens(logits, [row(), row()]) == [17, 31_111]
    assert argmax(logits).tolist() == logits.argmax(dim=-1).tolist() == [17, 31_111]


def test_greedy_agrees_with_argmax_of_many_rows():
    logits = random_logits(32, 3000).bfloat16()
    assert tokens(logits, [row()] * 32) == logits.float().argmax(dim=-1).tolist()


@pytest.mark.parametrize("temperature", [0, 1e-6, 1e-5, 1e-4, 1e-3])
def test_near_zero_temperature_is_greedy_without_nan(temperature):
    logits = random_logits(20, VOCAB, spread=50.0)
    params = SamplingParams(temperature=temperature)
    assert tokens(logits, [row(params, seed=i) for i in range(20)]) == logits.argmax(dim=-1).tolist()
    probs = probabilities(logits[0], params)
    assert probs.isfinite().all()
    assert float(probs.max()) == pytest.approx(1.0)


def test_huge_logits_and_temperature_give_a_distribution():
    logits = torch.tensor([3e38, -3e38, -math.inf, 2.9e38])
    for temperature in (1e-5, 1.0, 100.0):
        probs = probabilities(logits, SamplingParams(temperature=temperature))
        assert float(probs.sum()) == pytest.approx(1.0)
        assert probs[2] == 0


# Unusable logits


@pytest.mark.parametrize(
    ("broken", "says"),
    [(math.nan, "1 NaN and 0 +inf"), (math.inf, "0 NaN and 1 +inf"), (-math.inf, "no value above -inf")],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_broken_row_is_named_and_its_neighbours_are_undisturbed(broken, says, temperature):
    rows = [row(SamplingParams(temperature=temperature), seed=i) for i in range(3)]
    logits = random_logits(3, VOCAB)
    expected = sample(logits, rows)
    damaged = logits.clone()
    damaged[1, slice(None) if broken == -math.inf else 9] = broken
    first, middle, last = sample(damaged, rows)
    assert [first, last] == [expected[0], expected[2]]
    assert middle.token_id == -1
    assert says in middle.error
    assert "float32" in middle.error
    assert sample(logits, rows) == expected


# Adjustments


def test_penalties_match_hand_computed_values():
    logits = torch.tensor([2.0, -2.0, 1.0, 0.0, 3.0])
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=0.5, frequency_penalty=0.25)
    adjusted = adjust_logits(logits, params, prompt_ids=[0, 1], output_ids=[2, 2, 1])
    assert adjusted.tolist() == [1.0, -4.0 - 0.75, 0.5 - 1.0, 0.0, 3.0]
    assert logits.tolist() == [2.0, -2.0, 1.0, 0.0, 3.0]


def test_presence_and_frequency_penalties_ignore_the_prompt():
    logits = random_logits(10)
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=1.0)
    assert torch.equal(adjust_logits(logits, params, [1, 2, 3], []), logits)


@given(SEEDS, st.lists(st.integers(0, 49), min_size=1, max_size=30), st.floats(0.5, 2.0))
@settings(deadline=None)
def test_repetition_penalty_agrees_with_transformers(seed, ids, penalty):
    logits = random_logits(50, seed=seed)
    theirs = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([ids]), logits[None].clone())[0]
    half = len(ids) // 2
    ours = adjust_logits(logits, SamplingParams(repetition_penalty=penalty), ids[:half], ids[half:])
    torch.testing.assert_close(ours, theirs)


def test_bias_is_added_last_and_can_force_or_exclude():
    logits = random_logits(6, VOCAB)
    best = logits.argmax(dim=-1).tolist()
    forced = SamplingParams(logit_bias={5: 100.0})
    assert tokens(logits, [row(forced)] * 6) == [5] * 6
    assert tokens(logits, [row(replace(forced, temperature=1.0))] * 6) == [5] * 6
    excluded = [row(SamplingParams(logit_bias={b: -100.0})) for b in best]
    second = logits.topk(2, dim=-1).indices[:, 1].tolist()
    assert tokens(logits, excluded) == second
    both = SamplingParams(repetition_penalty=2.0, logit_bias={0: 1.0})
    assert adjust_logits(torch.tensor([4.0]), both, [0], []).tolist() == [3.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ids_that_end_the_output_are_forbidden_until_min_tokens(temperature):
    logits = torch.zeros(1, 6)
    logits[0, 2], logits[0, 4], logits[0, 3] = 90.0, 80.0, 40.0
    params = SamplingParams(min_tokens=2, stop_token_ids=[4], temperature=temperature)
    chosen = [tokens(logits, [row(params, num_output=i, eos_token_ids=(2, 5))])[0] for i in range(4)]
    assert chosen == [3, 3, 2, 2]
    ignoring = replace(params, ignore_eos=True)
    assert tokens(logits, [row(ignoring, eos_token_ids=(2, 5))]) == [2]


def test_forbidding_every_token_is_an_error_that_says_so():
    params = SamplingParams(min_tokens=5, stop_token_ids=[0, 1])
    first, second = sample(torch.zeros(2, 3), [row(params), row()])
    assert first.token_id == -1
    assert "min_tokens=5" in first.error
    assert "stop_token_ids" in first.error
    assert second.error is None


# Filters


def naive_support(logits: torch.Tensor, params: SamplingParams) -> set[int]:
    """Top-k, top-p and min-p by a full sort, in Python floats."""
    values = [math.exp((float(x) - float(logits.max())) / params.temperature) for x in logits]
    order = sorted(range(len(values)), key=lambda i: (-float(logits[i]), i))
    order = order[: params.top_k or None]
    total, mass, kept = sum(values[i] for i in order), 0.0, []
    for i in order:
        if mass >= params.top_p * total and params.top_p < 1:
            break
        mass += values[i]
        kept.append(i)
    return {i for i in kept if values[i] >= params.min_p}


FILTERS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([0, 1, 2, 17, 300, 10_000]),
    top_p=st.sampled_from([1.0, 1e-9, 0.31, 0.9, 0.9999]),
    min_p=st.sampled_from([0.0, 1.0, 0.013, 0.3]),
)


@given(SEEDS, FILTERS, st.sampled_from([0.05, 1.0, 4.0]), st.sampled_from([1, 7, 3000]))
@settings(max_examples=150, deadline=None)
def test_support_equals_that_of_a_full_sort(seed, params, spread, vocab):
    logits = random_logits(vocab, seed=seed, spread=spread)
    probs = probabilities(logits, params)
    ours, naive = set(probs.nonzero().squeeze(1).tolist()), naive_support(logits, params)
    # One token may fall on either side of a cut by rounding: it is then the least of the two sets.
    assert len(ours ^ naive) <= 1
    assert all(logits[i] <= min(logits[j] for j in ours & naive) for i in ours ^ naive)
    assert float(probs.sum()) == pytest.approx(1.0, abs=1e-12)
    expected = (logits.double() / params.temperature)[sorted(ours)].softmax(dim=0)
    torch.testing.assert_close(probs[sorted(ours)], expected, rtol=1e-4, atol=1e-9)


@given(SEEDS, FILTERS)
@settings(max_examples=100, deadline=None)
def test_filters_agree_with_transformers(seed, params):
    logits = random_logits(800, seed=seed)
    theirs = TemperatureLogitsWarper(params.temperature)(None, logits[None])
    if params.top_k:
        theirs = TopKLogitsWarper(params.top_k)(None, theirs)
    if params.top_p < 1:
        theirs = TopPLogitsWarper(params.top_p)(None, theirs)
    if params.min_p:
        theirs = MinPLogitsWarper(params.min_p)(None, theirs)
    theirs = theirs[0].double().softmax(dim=0)
    ours = probabilities(logits, params)
    differing = ((ours > 0) != (theirs > 0)).nonzero()
    assert len(differing) <= 1
    if not len(differing):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-9)


def test_equal_logits_at_a_cut_are_kept_by_lower_id():
    logits = torch.zeros(1000)
    logits[[3, 500]] = 1.0
    assert largest(logits, 5).tolist() == [3, 500, 0, 1, 2]
    kept = probabilities(logits, SamplingParams(temperature=1.0, top_k=5)).nonzero().squeeze(1)
    assert kept.tolist() == [0, 1, 2, 3, 500]
    flat = probabilities(torch.zeros(8), SamplingParams(temperature=1.0, top_p=0.5))
    assert flat.tolist() == [0.25] * 4 + [0.0] * 4


def test_greedy_distribution_is_one_token():
    assert probabilities(torch.tensor([1.0, 3.0, 3.0]), SamplingParams()).tolist() == [0.0, 1.0, 0.0]


# Log-probabilities


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logprobs_are_the_models_own_before_adjustments(dtype):
    logits = random_logits(2, VOCAB).to(dtype)
    expected = logits.double().log_softmax(dim=-1)
    params = SamplingParams(temperature=0.5, top_k=1, logit_bias={5: 100}, logprobs=4)
    plain, biased = sample(logits, [row(), row(params)])
    assert plain.top == ()
    assert plain.logprob == pytest.approx(float(expected[0].max()), abs=1e-5)
    assert biased.token_id == 5
    assert biased.logprob == pytest.approx(float(expected[1, 5]), abs=1e-5)
    values, ids = expected[1].topk(4)
    assert [token_id for token_id, _ in biased.top] == ids.tolist()
    assert [logprob for _, logprob in biased.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_logprobs_of_the_whole_vocabulary_sum_to_one():
    (sampled,) = sample(random_logits(1, 20), [row(SamplingParams(logprobs=20))])
    assert sum(math.exp(logprob) for _, logprob in sampled.top) == pytest.approx(1.0, abs=1e-6)
    assert sampled.top[0] == (sampled.token_id, sampled.logprob)


def test_no_alternatives_are_reported_unless_asked_for():
    none, zero, three = sample(random_logits(3, VOCAB), [row(SamplingParams(logprobs=k)) for k in (None, 0, 3)])
    assert [len(s.top) for s in (none, zero, three)] == [0, 0, 3]


def test_prompt_logprobs_do_not_depend_on_the_slices(monkeypatch):
    logits, ids = random_logits(23, VOCAB).bfloat16(), list(range(23))
    expected = logits.float().log_softmax(dim=-1)
    whole = prompt_logprobs(logits, ids, 2)
    monkeypatch.setattr("llmlab.engine.sampler.SLICE_ELEMENTS", 4 * VOCAB)
    assert prompt_logprobs(logits, torch.tensor(ids), 2) == whole
    assert [logprob for logprob, _ in whole] == pytest.approx([float(expected[i, i]) for i in ids], abs=1e-6)
    assert all(len(top) == 2 and top[0][1] == float(expected[i].max()) for i, (_, top) in enumerate(whole))
    assert [top for _, top in prompt_logprobs(logits, ids, 0)] == [()] * 23
