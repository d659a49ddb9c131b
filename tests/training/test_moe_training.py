"""A small mixture of experts: it learns, repeatably, its load is kept even, and what was saved is served."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import llmlab
from llmlab import Capture
from llmlab.errors import InvalidParameter
from llmlab.training import moe
from llmlab.training.corpus import topics_text
from llmlab.training.moe import TrainedMoe, balance_loss, distinct, train_moe
from llmlab.training.moe_model import BOS, EOS, MoeSize, byte_tokenizer
from llmlab.training.moe_view import MAX_COLUMNS, learning

sys.path.append(str(Path(__file__).parents[1] / "views"))
from pictures import least_contrast, outside, overlapping, unsafe

SMALL = MoeSize(layers=2, width=64, heads=2, kv_heads=1, expert_width=64)
TINY = MoeSize(layers=1, width=16, heads=2, kv_heads=1, experts=4, expert_width=8)
STEPS = 80


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def trained() -> TrainedMoe:
    return train_moe(None, steps=STEPS, size=SMALL, rate=1e-2)


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory) -> Path:
    return trained.save(tmp_path_factory.mktemp("moe"))


def test_it_learns_what_it_was_not_shown_too(trained):
    first, last = trained.records[0], trained.records[-1]
    assert first.held_out > 0.9 * math.log(258)
    assert last.held_out < 0.6 * first.held_out
    assert last.loss < 0.6 * first.loss


def test_every_token_of_a_record_is_at_its_experts(trained):
    assert [r.step for r in trained.records] == [*range(0, STEPS + 1, 10)]
    for record in trained.records:
        assert record.num_tokens == moe.BATCH * moe.LENGTH
        assert [sum(layer) for layer in record.load] == [2 * record.num_tokens] * SMALL.layers
        assert record.top_k == 2
    assert [r.step for r in trained.records if r.held_out is not None] == [0, STEPS]


def test_without_the_balancing_loss_experts_are_left_idle(trained):
    uneven = train_moe(None, steps=STEPS, size=SMALL, rate=1e-2, balance=0).records[-1]
    even = trained.records[-1]
    assert even.idle() < uneven.idle()
    assert max(even.busiest) < min(uneven.busiest)
    assert even.balance < 2.5 < 3 < uneven.balance


def test_the_same_seed_and_updates_give_the_same_model():
    one, same, other = (train_moe(None, seed, steps=3, size=TINY, every=1) for seed in (5, 5, 6))
    facts = [[(r.loss, r.balance, r.load, r.held_out) for r in t.records] for t in (one, same, other)]
    assert facts[0] == facts[1] != facts[2]
    weights, again = one.model.state_dict(), same.model.state_dict()
    assert all(torch.equal(weights[name], again[name]) for name in weights)


def test_the_random_state_of_torch_is_left_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    train_moe(None, steps=1, size=TINY)
    assert torch.equal(before, torch.get_rng_state())


def test_the_clock_ends_it_and_records_are_given_as_they_come():
    seen = []
    trained = train_moe(0.3, size=TINY, every=2, on_record=seen.append)
    assert tuple(seen) == trained.records
    assert trained.records[-1].seconds >= 0.3
    assert trained.records[-1].held_out is not None


def test_balance_is_top_k_when_even_and_the_number_of_experts_when_all_go_to_one():
    assert balance_loss(torch.eye(8) * 1e-3, 1).item() == pytest.approx(1, abs=1e-2)
    sure = torch.full((5, 8), -30.0)
    sure[:, 3] = 30
    assert balance_loss(sure, 1).item() == pytest.approx(8)
    logits = torch.tensor([[1.0, 0.0, 0.0, 0.0]] * 3, requires_grad=True)
    balance_loss(logits, 1).backward()
    assert (logits.grad[:, 0] > 0).all()  # a step down makes the favourite less likely
    assert (logits.grad[:, 1:] < 0).all()


def test_held_out_text_is_in_no_other_paragraph():
    text = distinct(topics_text())
    corpus = moe._Text.of(text)
    learnt = bytes(corpus.learnt.tolist())
    paragraphs = bytes(corpus.held_out.tolist()).split(b"\n\n")[1:]
    assert not [p for p in paragraphs if b"\n\n" + p + b"\n\n" in learnt]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seconds": None}, "one of them must say when"),
        ({"seconds": 0}, "seconds=0 must be a number of more than 0"),
        ({"steps": -1}, "steps=-1"),
        ({"rate": True}, "rate=True"),
        ({"seconds": "60"}, "seconds='60'"),
        ({"balance": -0.1}, "balance=-0.1"),
        ({"text": "too short"}, "the text has 9 bytes"),
    ],
)
def test_what_cannot_be_trained_is_said(options, said):
    with pytest.raises(InvalidParameter, match=said):
        train_moe(**{"seconds": 1, "size": TINY, **options})


@pytest.mark.parametrize(
    "sizes",
    [{"top_k": 9}, {"width": 100, "heads": 8}, {"heads": 4, "kv_heads": 3}, {"kv_heads": 0}, {"layers": 2.0}],
)
def test_a_shape_that_does_not_fit_together_is_refused(sizes):
    with pytest.raises(InvalidParameter):
        MoeSize(**sizes)


# -- served -------------------------------------------------------------------------------------------------


def test_the_tokenizer_s_tokens_are_the_bytes():
    tokenizer = byte_tokenizer()
    text = "".join(map(chr, range(1, 256))) + "漢字\r\n\t <bos"
    assert tokenizer.encode(text, add_special_tokens=False) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, len(tokenizer)) == (BOS, EOS, 258)


def test_the_saved_model_is_served_and_answers_as_transformers_does(trained, folder):
    prompt = "The statement "
    ids = torch.tensor([list(prompt.encode())])
    with llmlab.open(folder, dtype="float32", device="cpu", threads=1, background=False) as lab:
        run = lab.ask(prompt, raw=True, max_tokens=16, ignore_eos=True, capture=Capture(router=True))
        expected = trained.model.generate(ids, max_new_tokens=16, do_sample=False, pad_token_id=EOS, eos_token_id=None)
        assert run.token_ids == expected[0, ids.shape[1] :].tolist()
        assert run.captured.router_experts.values.shape == (2, len(prompt) + 15, 2)
        assert lab.ask(prompt, max_tokens=4, ignore_eos=True).token_ids == run.token_ids[:4]  # its chats only go on


# -- drawn --------------------------------------------------------------------------------------------------


def test_the_picture_has_all_records_and_reconciles(trained):
    view = learning(trained.records)
    table = view.table()
    assert len(table) == len(trained.records) * SMALL.layers * SMALL.experts
    assert table.tokens.sum() == len(trained.records) * SMALL.layers * 2 * moe.BATCH * moe.LENGTH
    assert "9 records over 80 updates" in view.text
    for theme in ("light", "dark"):
        assert unsafe(view.draw(theme)) == []
        assert least_contrast(view.scene, theme)[0] >= 4.5
    assert outside(view.scene) == overlapping(view.scene) == []


def test_the_picture_begins_with_the_first_record_and_stays_small(trained):
    assert "1 records over 0 updates" in learning(trained.records[:1]).text
    many = learning(trained.records * 60)
    assert len(many.svg) < 64_000
    assert f"One of every {-(-540 // MAX_COLUMNS)} records is drawn" in str(many)
    with pytest.raises(InvalidParameter, match="no record yet"):
        learning([])


def test_a_training_that_went_astray_can_be_looked_at(trained):
    lost = [replace(record, loss=math.nan, held_out=math.inf) for record in trained.records[-2:]]
    view = learning([*trained.records[:-2], *lost])
    assert "In 2 records the loss is no number" in str(view)
    assert outside(view.scene) == []
    assert "no number" in str(learning(lost))
