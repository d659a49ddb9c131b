"""The radix index: whole blocks and parts of blocks, splits, eviction from the leaves, and what the trace shows."""

from __future__ import annotations

from random import Random

import pytest
from mock_serving import assert_all_returned, continuation, greedy, mock_engine, prompt

from llmlab.engine.blocks import BlockPool
from llmlab.engine.journal import Journal
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request
from llmlab.trace.recorder import Recorder

SIZE = 4


def radix(num_blocks: int) -> BlockPool:
    return BlockPool(num_blocks, SIZE, prefix_cache="radix")


def make_request(name: str, tokens, **params) -> Request:
    return Request(name, list(tokens), SamplingParams(**params), seed=0, max_tokens=8)


def computed(pool: BlockPool, request: Request) -> Request:
    """The request after admission and the forward pass over all its tokens."""
    pool.take_hit(request, pool.look_up(request))
    assert pool.extend(request, len(request.tokens))
    request.num_computed = len(request.tokens)
    pool.register(request)
    return request


def left(pool: BlockPool, name: str, tokens, **params) -> list[int]:
    """The table of a request that was computed and is gone."""
    request = computed(pool, make_request(name, tokens, **params))
    table = list(request.block_table)
    pool.release(request)
    pool.check_integrity()
    return table


def test_a_prompt_computed_before_is_found_up_to_its_last_token():
    pool = radix(8)
    table = left(pool, "a", range(9))
    hit = pool.look_up(make_request("b", range(8)))
    assert ([b.id for b in hit.blocks], hit.partial.id, hit.num_partial) == (table[:1], table[1], 3)
    assert pool.match(make_request("b", range(9))) == [pool.blocks[i] for i in table[:2]]


@pytest.mark.parametrize("parts_at", range(1, 12))
def test_two_prompts_share_all_tokens_before_they_part(parts_at):
    pool = radix(12)
    left(pool, "a", range(13))
    hit = pool.look_up(make_request("b", [*range(parts_at), *range(50, 63)]))
    assert (len(hit.blocks), hit.num_partial) == divmod(parts_at, SIZE)


def test_the_longest_part_in_common_is_found_among_many_siblings():
    pool, dice = radix(64), Random(0)
    known = [[1, 2, 3, 4, *[dice.randrange(3) for _ in range(4)], 9] for _ in range(30)]
    for i, tokens in enumerate(known):
        left(pool, f"r{i}", tokens)
    for _ in range(50):
        wanted = [1, 2, 3, 4, *[dice.randrange(3) for _ in range(4)], 9]
        longest = max(next((i for i in range(8) if a[i] != wanted[i]), 8) for a in known)
        hit = pool.look_up(make_request("x", wanted))
        assert len(hit.blocks) * SIZE + hit.num_partial == longest


def test_an_edge_is_split_where_prefixes_part_and_joined_when_one_is_gone():
    pool = radix(12)
    left(pool, "a", range(12))
    assert pool.index.text().count("tokens in blocks") == 1
    tail = left(pool, "b", [*range(8), 90, 91, 92, 93])[-1]
    edges = [line.split() for line in pool.index.text().splitlines()[1:]]
    assert [words[0] for words in edges] == ["8", "4", "4"]
    pool._forget(pool.blocks[tail])
    pool.check_integrity()
    assert pool.index.text().count("tokens in blocks") == 1


def test_salts_have_trees_of_their_own():
    pool = radix(8)
    left(pool, "a", range(9), cache_salt="x")
    assert pool.look_up(make_request("b", range(9))).partial is None
    assert len(pool.match(make_request("c", range(9), cache_salt="x"))) == 2
    assert "salt 'x'" in pool.index.text()


def test_a_leaf_is_evicted_before_what_it_hangs_on_even_when_that_is_older():
    """Two requests computed the same first block side by side; the one whose block is in the tree left first."""
    pool = radix(5)
    first, second = make_request("a", range(4)), make_request("b", range(8))
    for request in (first, second):
        pool.extend(request, len(request.tokens))
        request.num_computed = len(request.tokens)
        pool.register(request)
    leaf, root = second.block_table[1], first.block_table[0]
    pool.release(first)
    pool.release(second)
    taken = make_request("t", range(60, 72))
    assert pool.extend(taken, 12)  # the two that were never used, and then the root is the one given up first
    assert not pool.blocks[leaf].content
    assert pool.blocks[root].content
    pool.check_integrity([taken])


def test_what_hangs_on_an_evicted_block_is_cut_off_and_grows_again():
    pool = radix(6)
    first, second = make_request("a", range(4)), make_request("b", range(9))
    for request in (first, second):
        pool.extend(request, len(request.tokens))
        request.num_computed = len(request.tokens)
        pool.register(request)
    pool.release(first)
    thief = make_request("t", range(60, 72))
    assert pool.extend(thief, 12)  # the last unused blocks, the root among them; the leaf is in use
    assert not pool.blocks[second.block_table[1]].content
    pool.check_integrity([second, thief])
    second.tokens += [10, 11, 12]
    pool.release(thief)
    assert pool.extend(second, 12)
    second.num_computed = 12
    pool.register(second)
    assert [b.id for b in pool.match(make_request("c", [*range(9), 10, 11, 12, 13]))] == second.block_table[:3]
    pool.check_integrity([second])


def test_a_block_that_is_findable_already_is_not_recorded_as_cached_again():
    recorder = Recorder()
    pool = BlockPool(8, SIZE, prefix_cache="radix", journal=Journal(recorder))
    first, second = make_request("a", range(12)), make_request("b", range(8))
    for request, num_computed in ((first, 4), (second, 8), (first, 8)):
        assert pool.extend(request, num_computed)
        request.num_computed = num_computed
        pool.register(request)
    twin = second.block_table[1]  # it was first with these tokens, so the tree has it and not first's own
    pool.release(second)
    pool.forget([twin])
    assert pool.extend(first, 12)
    first.num_computed = 12
    pool.register(first)
    cached = [event.block_id for event in recorder.snapshot() if event.action == "cache"]
    assert cached == [first.block_table[0], twin, *first.block_table[1:]]
    pool.check_integrity([first])


def test_the_last_block_there_is_is_not_copied_onto_itself():
    pool = radix(2)
    left(pool, "a", range(8))
    holder = make_request("h", range(5))
    pool.share(holder, pool.match(holder))
    request = make_request("b", [9, 9])
    request.tokens = [*range(4), 4, 5, 90]
    hit = pool.look_up(request)
    assert hit.num_partial == 2
    assert pool.take_hit(request, hit) is None
    assert request.num_computed == SIZE
    pool.check_integrity([holder, request])


def test_random_prefixes_are_found_exactly_as_far_as_they_are_known():
    """Against an oracle that compares with all that was computed; the pool is large enough for it."""
    pool, dice, known = radix(2000), Random(1), []
    for i in range(150):
        tokens = [dice.randrange(2) for _ in range(dice.randint(1, 30))]
        longest = max((_common(a, tokens[:-1]) for a in known), default=0)
        hit = pool.look_up(make_request(f"r{i}", tokens))
        assert len(hit.blocks) * SIZE + hit.num_partial == longest
        left(pool, f"r{i}", tokens)
        known.append(tokens)


def _common(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


# -- in the engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12])
def test_a_prompt_sent_twice_computes_only_its_last_token(length):
    engine = mock_engine(prefix_cache="radix")
    engine.submit(prompt(length), greedy(5)).wait()
    second = engine.submit(prompt(length), greedy(5)).wait()
    assert second.token_ids == continuation(prompt(length), 5)
    assert second.usage["cached_tokens"] == length - 1
    assert_all_returned(engine)


def test_a_part_of_a_block_is_copied_and_the_trace_shows_it():
    engine = mock_engine(prefix_cache="radix", block_size=8)
    engine.submit(prompt(24), greedy(3)).wait()
    tokens = [*prompt(13), *[200] * 5]
    run = engine.submit(tokens, greedy(4)).wait()
    assert run.token_ids == continuation(tokens, 4)
    assert run.usage["cached_tokens"] == 13
    trace = engine.trace
    assert trace.requests.set_index("request_id").loc[run.id, "num_cached_tokens"] == 13
    copies = trace.blocks.query("action == 'copy'")
    assert copies["request_id"].tolist() == [run.id]
    assert copies["source_id"].tolist() == [1]
    assert trace.info.prefix_cache == "radix"
    again = engine.submit(prompt(24), greedy(3)).wait()  # the block that was copied from is as it was
    assert again.token_ids == continuation(prompt(24), 3)
    assert_all_returned(engine)


def test_the_next_turn_finds_all_of_the_last_one_its_answer_included():
    engine = mock_engine(prefix_cache="radix", block_size=16)
    tokens, computed = prompt(21), 0
    for _ in range(4):
        run = engine.submit(tokens, greedy(7)).wait()
        assert run.token_ids == continuation(tokens, 7)
        assert run.usage["cached_tokens"] == computed
        computed = len(tokens) + 7 - 1  # the last token was never fed back
        tokens = [*tokens, *run.token_ids, 9, 8, 7]
    assert_all_returned(engine)


def test_a_preempted_request_finds_its_own_last_block():
    engine = mock_engine(num_blocks=8, block_size=4, slots=4, prefix_cache="radix")
    runs = [engine.submit(prompt(5, start), greedy(16)) for start in range(3)]
    engine.run_until_idle()
    assert [run.token_ids for run in runs] == [continuation(run.prompt_token_ids, 16) for run in runs]
    assert sum(run.usage["preemptions"] for run in runs) > 0
    assert_all_returned(engine)


def test_private_and_scored_requests_copy_nothing():
    engine = mock_engine(prefix_cache="radix")
    engine.submit(prompt(9), greedy(2)).wait()
    run = engine.submit(prompt(9), greedy(2, prompt_logprobs=0)).wait()
    assert run.usage["cached_tokens"] == 0
    assert len(run.prompt_logprobs) == 8
    assert "copy" not in set(engine.trace.blocks["action"])


def test_conversations_that_part_inside_blocks_hit_more_than_with_hashes():
    """Agent-like turns: a common beginning and different continuations, none of them at the end of a block."""
    cached = {}
    for prefix_cache in ("hash", "radix"):
        engine = mock_engine(prefix_cache=prefix_cache, block_size=16, num_blocks=256, budget=256)
        runs = [engine.submit([*prompt(75), *prompt(20 + i, start=i)], greedy(4)).wait() for i in range(1, 9)]
        assert [r.token_ids for r in runs] == [continuation(r.prompt_token_ids, 4) for r in runs]
        cached[prefix_cache] = sum(run.usage["cached_tokens"] for run in runs)
        assert_all_returned(engine)
    assert cached == {"hash": 7 * 64, "radix": 7 * 75}
