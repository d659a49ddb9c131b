"""The head's context: after rejections, preemptions, forks and long prompts it is what a fresh one would be."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from llmlab.engine.params import SamplingParams
from llmlab.engine.sampler import SampleInput
from llmlab.engine.speculative.head import TrainedHead
from llmlab.engine.speculative.head_model import DraftHead, HeadConfig
from llmlab.engine.speculative.proposer import Draft, DraftRow, Observed

VOCABULARY, WIDTH, WINDOW = 40, 16, 12
CONFIG = HeadConfig(width=WIDTH, heads=4, kv_heads=2, head_dim=8, mlp_width=24, window=WINDOW)
K = 3


@pytest.fixture
def make():
    """Heads with equal weights; features and tokens of a sequence are fixed by their position."""
    torch.manual_seed(0)
    weights = DraftHead(CONFIG)
    for parameter in weights.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.5)
    embedding = torch.randn(VOCABULARY, WIDTH)
    drafted = torch.arange(0, VOCABULARY, 2)

    def new() -> TrainedHead:
        head = DraftHead(CONFIG)
        head.load_state_dict(weights.state_dict())
        return TrainedHead(head, embedding, embedding[drafted], drafted)

    return new


TOKENS = torch.randint(VOCABULARY, (64,), generator=torch.Generator().manual_seed(1)).tolist()
FEATURES = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(2))
WRONG = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(3))


def see(head: TrainedHead, start: int, end: int, features: torch.Tensor = FEATURES, name: str = "r") -> None:
    head.observe([Observed(name, start, TOKENS[start:end], features[start:end])])


def row(num_tokens: int, name: str = "r", temperature: float = 0.0, k: int = K) -> DraftRow:
    rules = SampleInput(
        params=SamplingParams(temperature=temperature),
        seed=0,
        sample=0,
        position=num_tokens,
        prompt_ids=TOKENS[:1],
        output_ids=TOKENS[1:num_tokens],
        num_output=num_tokens - 1,
        eos_token_ids=(),
    )
    return DraftRow(request_id=name, tokens=TOKENS[:num_tokens], k=k, rules=rules, vocab_size=VOCABULARY)


def draft(head: TrainedHead, num_tokens: int, **kwargs) -> Draft:
    return head.propose([row(num_tokens, **kwargs)])[0]


def fresh(make, num_tokens: int, start: int = 0) -> Draft:
    head = make()
    see(head, start, num_tokens - 1)
    return draft(head, num_tokens)


def test_drafts_k_tokens_of_its_reduced_vocabulary(make):
    drafts = [fresh(make, n) for n in range(2, 12)]
    assert all(len(one) == K for one in drafts)
    assert all(token % 2 == 0 for one in drafts for token in one.tokens)
    assert len({one.tokens for one in drafts}) > 5


def test_drafting_step_by_step_equals_a_fresh_start(make):
    head = make()
    see(head, 0, 4)
    for n in range(5, 10):
        assert draft(head, n) == fresh(make, n)
        see(head, n - 1, n)


def test_features_of_rejected_drafts_leave_no_trace(make):
    head = make()
    see(head, 0, 4)
    assert draft(head, 5) == fresh(make, 5)
    n = 5
    for accepted in (0, 2, 1, 0):
        see(head, n - 1, n + accepted)
        see(head, n + accepted, n + K, WRONG)
        n += accepted + 1
        assert draft(head, n) == fresh(make, n)
    lengths = [context.known for context in head._contexts.values()]
    assert lengths == [n - 1]


def test_a_rejected_draft_in_one_observation(make):
    head = make()
    see(head, 0, 4)
    draft(head, 5)
    mixed = torch.cat((FEATURES[4:6], WRONG[6:8]))
    head.observe([Observed("r", 4, TOKENS[4:8], mixed)])
    assert draft(head, 7) == fresh(make, 7)


@pytest.mark.parametrize("resumed_at", [0, 3, 6])
def test_after_a_preemption_it_is_as_before(make, resumed_at):
    head = make()
    see(head, 0, 7)
    draft(head, 8)
    see(head, resumed_at, 8)
    assert draft(head, 9) == fresh(make, 9)


def test_positions_from_the_prefix_cache_are_left_out(make):
    head = make()
    see(head, 6, 9)
    assert draft(head, 10) == fresh(make, 10, start=6)


def test_resuming_behind_a_gap_forgets_what_came_before(make):
    head = make()
    see(head, 0, 4)
    see(head, 6, 9)
    assert draft(head, 10) == fresh(make, 10, start=6)


def test_without_the_last_feature_there_is_no_draft(make):
    head = make()
    assert draft(head, 5) == Draft()
    see(head, 0, 3)
    assert draft(head, 5) == Draft()


def test_a_fork_continues_from_the_prompt_and_shares_nothing(make):
    head = make()
    see(head, 0, 5)
    head.fork("r", "r.1")
    head.forget("nobody")
    assert draft(head, 6) == fresh(make, 6)
    see(head, 5, 7)
    assert draft(head, 6, name="r.1") == fresh(make, 6)
    assert draft(head, 8) == fresh(make, 8)
    head.forget("r")
    assert draft(head, 8) == Draft()


def test_rows_of_a_batch_do_not_mix(make):
    head = make()
    lengths = {"a": 4, "b": 9, "c": 6}
    for name, n in lengths.items():
        see(head, 0, n - 1, name=name)
    rows = [row(n, name, k=k) for (name, n), k in zip(lengths.items(), (1, 3, 2), strict=True)]
    expected = [fresh(make, n).tokens[:k] for n, k in zip(lengths.values(), (1, 3, 2), strict=True)]
    assert [one.tokens for one in head.propose(rows)] == expected


def test_no_more_than_the_window_is_kept(make):
    head = make()
    for start, end in pairwise((0, 5, 25, 26, 40)):
        see(head, start, end)
    context = head._contexts["r"]
    assert context.known == 40
    assert sum(map(len, context.pending)) == WINDOW
    draft(head, 41)
    see(head, 40, 46)
    assert len(draft(head, 47)) == K
    assert head._contexts["r"].keys.shape == (2, WINDOW, 8)


def test_sampled_drafts_carry_the_distribution_they_were_drawn_from(make):
    head = make()
    see(head, 0, 6)
    one = draft(head, 7, temperature=1.0)
    assert len(one.probs) == K
    for token, probs in zip(one.tokens, one.probs, strict=True):
        assert probs.of(token) > 0
        assert float(probs.values.sum()) == pytest.approx(1)
        assert bool((probs.ids % 2 == 0).all())
