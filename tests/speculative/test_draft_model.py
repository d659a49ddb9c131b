"""A second model drafts, with blocks of its own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from guessing import speculating_engine
from mock_serving import assert_all_returned, continuation, greedy, prompt
from tiny_models import COMMON, as_loaded, generated, random_model

from llmlab.engine.build import build_runner
from llmlab.engine.mock_runner import MockModel
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import StepPlan
from llmlab.engine.sampler import SampleInput
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.engine.speculative.draft_model import DraftModel, check_same_tokens
from llmlab.engine.speculative.proposer import DraftRow
from llmlab.errors import InvalidParameter, VocabularyMismatch

PROMPT = [(7 * i + 3 * i * i) % 97 for i in range(20)]


def _assert_idle(draft: DraftModel) -> None:
    draft.pool.check_integrity()
    assert draft.pool.num_used == 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_target_itself_as_draft_model_is_always_accepted(temperature):
    """With q equal to p nothing is ever rejected: K/V, positions and rules are the same on both sides."""
    draft = DraftModel(MockModel(256, 4))
    engine = speculating_engine(draft, num_blocks=256)
    params = SamplingParams(max_tokens=22, temperature=temperature, seed=5, frequency_penalty=0.5, top_k=30)
    runs = [engine.submit(prompt(9 + i, i % 2), params) for i in range(4)]
    assert all(run.wait().usage["rejected_draft_tokens"] == 0 for run in runs)
    assert engine.trace.drafts.attrs["summary"]["acceptance_by_place"] == [1.0] * 4
    assert_all_returned(engine)
    _assert_idle(draft)


def test_after_a_rejection_it_goes_on_from_what_the_target_chose():
    class Fickle(MockModel):
        """Prefers another token at every third position."""

        def forward(self, batch: StepPlan) -> torch.Tensor:
            logits = super().forward(batch)
            rows = [row for row in batch.rows if row.num_logits]
            for i, row in enumerate(rows):
                if row.end % 3 == 0:
                    logits[i] = logits[i].roll(1)
            return logits

    draft = DraftModel(Fickle(64, 4))
    engine = speculating_engine(draft, num_blocks=30, budget=17)
    runs = [engine.submit(prompt(9 + i, i), greedy(20)) for i in range(4)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == continuation(prompt(9 + i, i), 20)
    rates = engine.trace.drafts.attrs["summary"]
    assert 0 < rates["accepted"] < rates["judged"]
    # between two wrong guesses everything is right: wrong context would have spoiled that
    assert rates["accepted"] >= rates["rounds"]
    assert_all_returned(engine)
    _assert_idle(draft)


def test_samples_and_equal_prompts_begin_with_prefix_hits():
    draft = DraftModel(MockModel(256, 4))
    computed: list[int] = []
    forward = draft.runner.forward
    draft.runner.forward = lambda plan: (computed.append(plan.num_tokens), forward(plan))[1]
    engine = speculating_engine(draft, num_blocks=256)
    engine.submit(prompt(40), greedy(8)).wait()
    first = sum(computed)
    computed.clear()
    engine.submit(prompt(40), greedy(8)).wait()
    assert sum(computed) <= first - 40
    _assert_idle(draft)


def test_a_full_pool_drops_idle_shadows_and_then_drafts_less():
    draft = DraftModel(MockModel(9, 4))
    engine = speculating_engine(draft, num_blocks=256)
    runs = [engine.submit(prompt(9, i), greedy(16)) for i in range(4)]
    for i, run in enumerate(runs):
        assert run.wait().token_ids == continuation(prompt(9, i), 16)
    assert_all_returned(engine)
    _assert_idle(draft)


def test_real_weights_draft_for_real_weights():
    model = random_model("llama", **COMMON)
    smaller = random_model("llama", **(COMMON | {"num_hidden_layers": 1}))
    runner = build_runner(as_loaded(model), block_size=4, num_blocks=40)
    draft = DraftModel(build_runner(as_loaded(smaller), block_size=4, num_blocks=80))
    engine = speculating_engine(draft, runner=runner, eos_token_ids=(), budget=11)
    runs = [engine.submit(PROMPT[i:], greedy(14, n=1 + i % 2)) for i in range(3)]
    for i, run in enumerate(runs):
        run.wait()
        assert all(output.token_ids == generated(model, PROMPT[i:], 14) for output in run.outputs)
    assert_all_returned(engine)
    _assert_idle(draft)


def _row(vocabulary: int, tokens: list[int]) -> DraftRow:
    params = SamplingParams(temperature=1.0)
    return DraftRow("r", tokens, 3, SampleInput(params, 1, 0, len(tokens), (), (), 1, ()), vocabulary)


def test_ids_that_only_one_model_has_are_padded_and_cut():
    wider, narrower = _row(300, [1, 2, 3]), _row(200, [1, 2, 3])
    for row in (wider, narrower):
        (draft,) = DraftModel(MockModel(16, 4)).propose([row])
        assert len(draft) == 3
        for probs in draft.probs:
            assert int(probs.ids.max()) < min(258, row.vocab_size)
            assert float(probs.values.sum()) == pytest.approx(1.0)


def test_a_token_that_the_draft_model_lacks_ends_its_drafts():
    (draft,) = DraftModel(MockModel(16, 4)).propose([_row(300, [1, 299, 3])])
    assert draft.tokens == ()


def test_other_tokenizers_are_refused_with_the_difference():
    def model(name: str, vocabulary: dict[str, int]):
        return SimpleNamespace(name=name, tokenizer=SimpleNamespace(get_vocab=lambda: vocabulary))

    check_same_tokens(model("a", {"x": 0, "y": 1}), model("b", {"x": 0, "y": 1}))
    with pytest.raises(VocabularyMismatch, match=r"2 tokens differ.*family"):
        check_same_tokens(model("a", {"x": 0, "y": 1}), model("b", {"x": 1, "y": 0}))


def test_the_mock_target_has_no_weights_to_draft_with():
    for speculation in (Speculation("early-exit"), Speculation("draft-model", model="x"), Speculation("head")):
        with pytest.raises(InvalidParameter, match="ngram"):
            with_proposer(speculation, MockModel())


@pytest.mark.parametrize(
    "wrong",
    [
        {"proposer": "oracle"},
        {"k": 0},
        {"k": True},
        {"rule": "generous"},
        {"adaptive": 1},
        {"proposer": "draft-model"},
        {"model": "x"},
        {"layers": 3},
        {"head": "folder"},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidParameter):
        Speculation(**wrong)
