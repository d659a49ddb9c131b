"""A prefix hit against recomputation: the tokens are those of a model that never saw the prompt before."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.model

PREFIX = 512


@pytest.mark.parametrize(
    ("block_size", "prefix_cache"), [(1, "hash"), (4, "hash"), (16, "hash"), (16, "radix"), (4, "off")]
)
def test_asking_again_gives_the_same_answer(open_lab, short_cases, greedy, block_size, prefix_cache):
    lab = open_lab(block_size=block_size, num_blocks=512 // block_size, prefix_cache=prefix_cache)
    first, second = greedy(lab, short_cases[:4]), greedy(lab, short_cases[:4])
    answers = [case.answer for case in short_cases[:4]]
    assert [run.token_ids for run in first] == answers
    assert [run.token_ids for run in second] == answers
    assert [run.usage["cached_tokens"] for run in second] == [
        {"hash": _reusable(case, block_size), "radix": len(case.ids) - 1, "off": 0}[prefix_cache]
        for case in short_cases[:4]
    ]


def test_cached_prefix_of_512_tokens_is_reported_and_changes_nothing(plain, open_lab, cases):
    lab, prefix = open_lab(num_blocks=80), cases["en-museum"].ids[:PREFIX]
    filler = lab.submit([*prefix, *cases["en-ferry"].ids], max_tokens=1).wait()
    assert filler.usage["cached_tokens"] == 0
    ids = [*prefix, *plain.tokenizer.encode("\n\nThe reader closed the catalogue and asked")]
    run = lab.submit(ids, max_tokens=12).wait()
    assert run.usage["cached_tokens"] == PREFIX
    assert run.token_ids == plain.answer(ids, 12)
    computed = run.trace.schedule.query("action == 'ran'")["num_tokens"].sum()
    assert computed == len(ids) + 12 - 1 - PREFIX


def test_equal_prompts_in_one_step_do_not_share_what_is_not_computed_yet(open_lab, cases, greedy):
    case, lab = cases["code-sql"], open_lab(num_blocks=32)
    runs = greedy(lab, [case] * 3)
    assert [run.token_ids for run in runs] == [case.answer] * 3
    assert [run.usage["cached_tokens"] for run in runs] == [0, 0, 0]


def test_second_turn_reuses_prompt_and_answer_of_the_first(plain, open_lab, cases):
    case, lab = cases["code-sum"], open_lab(block_size=4, num_blocks=64)
    first = lab.submit(case.ids, max_tokens=16).wait()
    ids = [*case.ids, *first.token_ids, *plain.tokenizer.encode("\n# In other words:")]
    second = lab.submit(ids, max_tokens=8).wait()
    assert second.token_ids == plain.answer(ids, 8)
    # the last answer token was never fed back, so its block is not there
    assert second.usage["cached_tokens"] == (len(case.ids) + 16 - 1) // 4 * 4


def test_evicted_prefix_is_computed_again(open_lab, cases, greedy):
    lab = open_lab(num_blocks=9)
    rain, review, kitchen = cases["zh-rain"], cases["code-review"], cases["en-kitchen"]
    runs = [run for case in (rain, review, kitchen, rain) for run in greedy(lab, [case])]
    assert [run.token_ids for run in runs] == [c.answer for c in (rain, review, kitchen, rain)]
    assert runs[-1].usage["cached_tokens"] == 0
    assert (lab.trace.blocks["action"] == "evict").any()


def test_colliding_hashes_do_not_mix_prompts(monkeypatch, open_lab, short_cases, greedy):
    lab = open_lab(block_size=4, num_blocks=128)
    monkeypatch.setattr(lab.engine.pool.index, "hash_fn", lambda parent, tokens, salt: b"the same for all")
    for _ in range(2):
        runs = greedy(lab, short_cases[:4])
        assert [run.token_ids for run in runs] == [case.answer for case in short_cases[:4]]
    assert [run.usage["cached_tokens"] for run in runs] == [_reusable(case, 4) for case in short_cases[:4]]


def _reusable(case, block_size: int) -> int:
    """Prompt tokens in full blocks, the last token left to compute."""
    return (len(case.ids) - 1) // block_size * block_size
