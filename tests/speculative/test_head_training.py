"""Training a head: what it is taught is what it does while drafting, and it is taught right."""

from __future__ import annotations

import random

import pytest
import torch

from llmlab.engine.params import SamplingParams
from llmlab.engine.sampler import SampleInput
from llmlab.engine.speculative.head import TrainedHead
from llmlab.engine.speculative.head_model import DraftHead, HeadConfig
from llmlab.engine.speculative.proposer import DraftRow, Observed
from llmlab.training.conversations import Conversation
from llmlab.training.corpus import Sequence, digest, frequent_tokens, from_conversations
from llmlab.training.features import Seen
from llmlab.training.foresight import Aims, foresight_loss, foresight_quality
from llmlab.training.instructions import instructions
from llmlab.training.loop import Schedule, batches, late_start, measure, num_batches, train
from llmlab.training.objective import Lesson, Objective

VOCABULARY, WIDTH = 50, 24
CONFIG = HeadConfig(width=WIDTH, heads=4, kv_heads=2, head_dim=8, mlp_width=32)
PASSES = 3


def random_head(seed: int = 0) -> DraftHead:
    torch.manual_seed(seed)
    head = DraftHead(CONFIG)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter, 0.0, 0.4)
    return head


def some_sequences(count: int, length: int = 20) -> list[Seen]:
    """A target whose feature is the embedding of the token to come, which follows from the last two tokens."""
    torch.manual_seed(5)
    output = torch.randn(VOCABULARY, WIDTH)
    found = []
    for number in range(count):
        tokens = [number % VOCABULARY, (number * 7) % VOCABULARY]
        while len(tokens) < length + 1:
            tokens.append((3 * tokens[-1] + tokens[-2] + 1) % 11)
        features = output[torch.tensor(tokens[1:])]
        log_mass = (features @ output.T).logsumexp(-1)
        found.append(Seen(torch.tensor(tokens[:-1]), features, log_mass, first=0))
    return found


def output_matrix() -> torch.Tensor:
    torch.manual_seed(5)
    return torch.randn(VOCABULARY, WIDTH)


class Dictated(DraftRow):
    """A row whose drafts are prescribed; it keeps the logits they were to be chosen from."""

    def choose(self, logits: torch.Tensor, ids: torch.Tensor | None = None) -> int:
        self.__dict__.setdefault("heard", []).append(logits)
        self.name(self.__dict__["follow"][len(self.chosen)])
        return self.chosen[-1]


def drafted_logits(head: DraftHead, embedding: torch.Tensor, seen: Seen, last: int) -> list[torch.Tensor]:
    """What the proposer draws from, given features up to ``last``, when its drafts are the tokens that follow."""
    proposer = TrainedHead(head, embedding, embedding, torch.arange(VOCABULARY))
    tokens = seen.tokens.tolist()
    proposer.observe([Observed("r", 0, tokens[: last + 1], seen.features[: last + 1])])
    rules = SampleInput(SamplingParams(), 0, 0, last + 2, tokens[:1], tokens[1 : last + 2], last + 1, ())
    row = Dictated("r", tokens[: last + 2], PASSES, rules, VOCABULARY)
    row.follow = tokens[last + 2 :]
    proposer.propose([row])
    return row.heard


def test_what_is_taught_is_what_the_proposer_does():
    """Pass s at index i is step s of a draft that began at index i - s and guessed right so far."""
    head, embedding = random_head(), torch.randn(VOCABULARY, WIDTH)
    seen = Seen(torch.randint(VOCABULARY, (13,)), torch.randn(13, WIDTH), torch.zeros(13), 0)
    with torch.inference_mode():
        passes = Objective(embedding, embedding).estimates(head, Lesson.of([seen]), PASSES)
        taught = [estimates[0] @ embedding.T for estimates in passes]
    for last in range(13 - PASSES - 1):
        drafted = drafted_logits(head, embedding, seen, last)
        assert len(drafted) == PASSES
        for number, logits in enumerate(drafted):
            torch.testing.assert_close(taught[number][last + number], logits, atol=1e-4, rtol=1e-4)


def test_the_loss_is_cross_entropy_and_so_is_its_gradient():
    torch.manual_seed(1)
    rows = torch.randn(VOCABULARY, WIDTH)[:30]
    target = torch.randn(700, WIDTH)
    log_mass = (target @ torch.randn(VOCABULARY, WIDTH).T).logsumexp(-1)
    estimates = torch.randn(2, 700, WIDTH, requires_grad=True)
    losses = foresight_loss(estimates, Aims(target, log_mass, rows))
    losses.mul(torch.tensor([1.0, 0.5])).sum().backward()
    plain = estimates.detach().clone().requires_grad_()
    wanted = (target @ rows.T - log_mass[:, None]).exp()
    expected = -(wanted * (plain @ rows.T).log_softmax(-1)).sum(-1).mean(-1)
    expected.mul(torch.tensor([1.0, 0.5])).sum().backward()
    torch.testing.assert_close(losses, expected, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(estimates.grad, plain.grad, atol=1e-5, rtol=1e-3)


def test_quality_of_a_perfect_estimate():
    torch.manual_seed(1)
    rows, target = torch.randn(VOCABULARY, WIDTH), torch.randn(300, WIDTH)
    log_mass = (target @ rows.T).logsumexp(-1)
    loss, agreement, overlap = foresight_quality(target[None], Aims(target, log_mass, rows))[:, 0].tolist()
    probs = (target @ rows.T).softmax(-1)
    assert agreement == 1.0
    assert overlap == pytest.approx(1.0, abs=1e-4)
    assert loss == pytest.approx(float(-(probs * probs.log()).sum(-1).mean()), rel=1e-3)


def test_training_learns_a_rule_and_the_same_seed_gives_the_same_head():
    seen, output = some_sequences(64), output_matrix()
    objective = Objective(output, output)
    schedule = Schedule(epochs=24, batch_tokens=160, matrix_rate=2e-2, norm_rate=1e-2)

    def trained() -> DraftHead:
        torch.manual_seed(0)
        head = DraftHead(CONFIG)
        train(head, objective, seen, schedule, seed=0)
        return head

    torch.manual_seed(0)
    before = measure(DraftHead(CONFIG), objective, seen, PASSES)
    head = trained()
    after = measure(head, objective, seen, PASSES)
    assert after["agreement"][0] > max(0.8, before["agreement"][0] + 0.3)
    assert all(late < early - 1 for late, early in zip(after["loss"], before["loss"], strict=True))
    for one, other in zip(head.parameters(), trained().parameters(), strict=True):
        assert torch.equal(one, other)


def test_every_sequence_is_in_one_batch_of_bounded_size():
    seen = [Seen(torch.zeros(n), torch.zeros(n, 1), torch.zeros(n), 0) for n in (5, 90, 40, 41, 300, 7, 64)]
    found = batches(seen, 128, seed=3)
    assert sorted(index for batch in found for index in batch) == list(range(7))
    assert all(len(batch) == 1 or len(batch) * max(len(seen[i].tokens) for i in batch) <= 128 + 16 for batch in found)
    assert num_batches(seen, Schedule(epochs=2, batch_tokens=128), 3) == 2 * len(found)


def test_rates_rise_and_fall():
    schedule = Schedule()
    factors = [schedule.factor(progress / 100) for progress in range(101)]
    peak = factors.index(max(factors))
    assert 0 < peak <= 5
    assert factors[:peak] == sorted(factors[:peak])
    assert factors[peak:] == sorted(factors[peak:], reverse=True)
    assert factors[-1] == pytest.approx(schedule.final)


def test_only_answers_are_learned_from_and_only_as_far_as_they_go():
    talk = Conversation(prompt=(1, 2, 3), answer=(4, 5, 6, 7), temperature=0.0)
    (sequence,) = from_conversations([talk], length=6)
    assert sequence == Sequence((1, 2, 3, 4, 5, 6), first=2)
    features = torch.zeros(6, WIDTH)
    longer = Seen(torch.zeros(9, dtype=torch.long), torch.zeros(9, WIDTH), torch.zeros(9), 0)
    lesson = Lesson.of([Seen(torch.tensor(sequence.tokens), features, torch.zeros(6), sequence.first), longer])
    # index 2 holds the last prompt token's feature and the first answer token
    assert lesson.wanted[0].tolist() == [False, False, True, True, True, False, False, False]
    assert lesson.counted(4)[1].tolist() == [False] * 3 + [True] * 5


def test_a_late_start_keeps_all_that_counts():
    seen = Seen(torch.arange(30), torch.arange(30.0)[:, None], torch.arange(30.0), first=12)
    cuts = set()
    for chance, rng in ((1.0, random.Random(seed)) for seed in range(60)):
        late = late_start(seen, rng, chance)
        cut = 30 - len(late.tokens)
        cuts.add(cut)
        assert late.first + cut == 12
        assert late.tokens.tolist() == list(range(cut, 30)) == late.features[:, 0].tolist() == late.log_mass.tolist()
    assert {0, 12} <= cuts <= set(range(13))
    assert late_start(seen, random.Random(0), 0.0).first == 12


def test_frequent_tokens_and_digest():
    sequences = [Sequence((5, 5, 9)), Sequence((9, 5, 2))]
    assert frequent_tokens(sequences, 3, 10) == [2, 5, 9]
    assert frequent_tokens(sequences, 4, 10) == [0, 2, 5, 9]
    assert digest(sequences) != digest(sequences[::-1])


def test_instructions_are_different_and_repeatable():
    found = instructions(600, 0)
    assert len(set(found)) == 600
    assert found == instructions(600, 0) != instructions(600, 1)
    assert sum("function" in text or "class" in text for text in found) > 60
    with pytest.raises(ValueError, match="instructions, not"):
        instructions(10**6, 0)
