"""The block pool by itself: ownership, prefix hits, eviction order, copy-on-write."""

from __future__ import annotations

from functools import partial

import pytest

from llmlab.engine.blocks import BlockPool
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request

SIZE = 4


def make_request(name: str, tokens: list[int], **params) -> Request:
    return Request(name, list(tokens), SamplingParams(**params), seed=0, max_tokens=8)


@pytest.fixture(params=["hash", "radix"])
def make_pool(request):
    """Pools of blocks of 4 with either prefix index."""
    return partial(BlockPool, block_size=SIZE, prefix_cache=request.param)


def computed(pool: BlockPool, request: Request) -> Request:
    """The request after admission and the forward pass over all its tokens."""
    hits = pool.match(request)
    pool.share(request, hits)
    assert pool.extend(request, len(request.tokens))
    request.num_computed = len(request.tokens)
    pool.register(request)
    return request


def test_a_new_pool_is_all_free(make_pool):
    pool = make_pool(5)
    assert (pool.num_free, pool.num_cached, pool.num_used, pool.num_available) == (5, 0, 0, 5)
    pool.check_integrity()


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (4, 1), (5, 2), (8, 2)])
def test_blocks_for_rounds_up(tokens, blocks):
    assert BlockPool(8, SIZE).blocks_for(tokens) == blocks


def test_extend_takes_only_what_is_missing_and_nothing_when_it_cannot(make_pool):
    pool, request = make_pool(3), make_request("a", range(9))
    assert pool.extend(request, 5)
    assert pool.extend(request, 8)
    assert len(request.block_table) == 2
    before = list(request.block_table)
    assert not pool.extend(request, 17)
    assert request.block_table == before
    assert pool.num_available == 1
    pool.check_integrity([request])


def test_full_blocks_stay_findable_after_their_request_left(make_pool):
    pool = make_pool(6)
    first = computed(pool, make_request("a", range(10)))
    table = list(first.block_table)
    pool.release(first)
    num_cached = 3 if pool.index.name == "radix" else 2  # the third block was never full
    assert (pool.num_free, pool.num_cached) == (6 - num_cached, num_cached)
    again = make_request("b", range(10))
    assert [block.id for block in pool.match(again)] == table[:2]


def test_a_hit_never_covers_the_last_token(make_pool):
    pool = make_pool(6)
    pool.release(computed(pool, make_request("a", range(8))))
    assert len(pool.match(make_request("b", range(8)))) == 1
    assert len(pool.match(make_request("c", range(9)))) == 2


def test_a_hit_stops_at_the_first_different_token(make_pool):
    pool = make_pool(8)
    pool.release(computed(pool, make_request("a", range(13))))
    tokens = [*range(6), 99, *range(7, 13)]
    assert len(pool.match(make_request("b", tokens))) == 1
    assert pool.match(make_request("c", [99, *range(1, 13)])) == []


def test_equal_tokens_after_another_prefix_are_no_hit(make_pool):
    pool = make_pool(8)
    pool.release(computed(pool, make_request("a", [1, 1, 1, 1, 5, 6, 7, 8, 9])))
    assert pool.match(make_request("b", [5, 6, 7, 8, 9])) == []
    assert pool.match(make_request("c", [2, 2, 2, 2, 5, 6, 7, 8, 9])) == []


def test_salts_keep_prefixes_apart(make_pool):
    pool = make_pool(8)
    pool.release(computed(pool, make_request("a", range(9), cache_salt="x")))
    assert pool.match(make_request("b", range(9))) == []
    assert pool.match(make_request("c", range(9), cache_salt="y")) == []
    assert len(pool.match(make_request("d", range(9), cache_salt="x"))) == 2


def test_a_hash_that_always_collides_decides_nothing():
    """Neither another salt nor another beginning is taken for the own one, though every hash is equal."""
    pool = BlockPool(12, SIZE, hash_fn=lambda *_: b"same")
    pool.release(computed(pool, make_request("a", [1, 1, 1, 1, 5, 6, 7, 8, 9], cache_salt="x")))
    pool.release(computed(pool, make_request("b", [2, 2, 2, 2, 4, 4, 4, 4, 9])))
    assert pool.match(make_request("c", [1, 1, 1, 1, 5, 6, 7, 8, 9])) == []
    assert len(pool.match(make_request("d", [2, 2, 2, 2, 5, 6, 7, 8, 9]))) == 1
    assert len(pool.match(make_request("e", [1, 1, 1, 1, 5, 6, 7, 8, 9], cache_salt="x"))) == 2
    pool.check_integrity()


def test_without_a_prefix_cache_nothing_is_hashed_or_hit():
    pool = BlockPool(6, SIZE, prefix_cache=False)
    pool.release(computed(pool, make_request("a", range(9))))
    assert pool.num_cached == 0
    assert pool.match(make_request("b", range(9))) == []


def test_prompt_logprobs_bypass_the_cache_until_they_are_known(make_pool):
    pool = make_pool(6)
    pool.release(computed(pool, make_request("a", range(9))))
    request = make_request("b", range(9), prompt_logprobs=0)
    assert pool.match(request) == []
    request.prompt_logprobs = [(-1.0, ())] * 8
    assert len(pool.match(request)) == 2


def test_cost_counts_hits_that_must_be_taken_back(make_pool):
    pool = make_pool(6)
    holder = computed(pool, make_request("a", range(9)))
    request = make_request("b", range(9))
    assert pool.cost_of(pool.match(request), 9) == 1  # both hits are in use already
    pool.release(holder)
    assert pool.cost_of(pool.match(request), 9) == 3  # both hits leave the list of unused blocks


def test_the_end_of_the_oldest_prefix_is_evicted_first(make_pool):
    pool = make_pool(4)
    old = computed(pool, make_request("old", range(8)))
    new = computed(pool, make_request("new", range(50, 58)))
    pool.release(old)
    pool.release(new)
    taker = make_request("taker", range(90, 93))
    assert pool.extend(taker, 3)
    assert len(pool.match(make_request("b", range(9)))) == 1  # its beginning is still there
    assert len(pool.match(make_request("c", range(50, 59)))) == 2
    pool.check_integrity([taker])


def test_a_hit_protects_a_block_from_eviction(make_pool):
    pool = make_pool(2)
    pool.release(computed(pool, make_request("a", range(8))))
    reader = make_request("b", range(5))
    pool.share(reader, pool.match(reader))
    other = make_request("c", range(70, 74))
    assert pool.extend(other, 4)
    assert not pool.extend(other, 5)
    assert len(pool.match(make_request("d", range(8)))) == 1
    pool.check_integrity([reader, other])


def test_of_two_equal_blocks_one_is_findable_and_both_are_kept(make_pool):
    pool = make_pool(6)
    first, second = make_request("a", range(5)), make_request("b", range(5))
    for request in (first, second):
        pool.extend(request, 5)
        request.num_computed = 5
    for request in (first, second):
        pool.register(request)
    assert set(first.block_table).isdisjoint(second.block_table)
    assert first.chain == second.chain
    pool.release(second)
    ends = pool.index.name == "radix"  # the second, partly filled block of each is known too, once
    assert pool.num_cached == ends
    assert [block.id for block in pool.match(make_request("c", range(5)))] == first.block_table[:1]
    pool.release(first)
    assert pool.num_cached == 1 + ends
    pool.check_integrity()


def test_a_block_behind_an_evicted_twin_is_not_mistaken_for_another_prefix(make_pool):
    """The second block was chained to a block that is gone; the same tokens computed anew must not find it."""
    pool = make_pool(8)
    first, second = make_request("a", range(4)), make_request("b", range(9))
    pool.extend(first, 4)
    pool.extend(second, 9)
    first.num_computed, second.num_computed = 4, 9
    pool.register(first)
    pool.register(second)
    pool.release(first)
    thief = make_request("t", range(60, 80))
    assert pool.extend(thief, 20)  # takes every unused block, the findable twin too
    pool.release(thief)
    third = computed(pool, make_request("c", range(9)))
    assert third.block_table[1] != second.block_table[1]
    pool.check_integrity([second, third])


def test_fork_shares_every_block_and_copy_on_write_parts_the_last(make_pool):
    pool = make_pool(6)
    parent, child = computed(pool, make_request("a", range(6))), make_request("a.1", range(6))
    pool.fork(parent, child)
    child.num_computed = 6
    assert child.block_table == parent.block_table
    assert pool.needs_copy(parent)
    source, target = pool.copy_on_write(parent)
    assert (source, target) == (child.block_table[1], parent.block_table[1])
    assert parent.block_table[0] == child.block_table[0]
    assert not pool.needs_copy(child)  # it is the only holder now, so it may write in place
    pool.check_integrity([parent, child])


def test_a_fork_at_a_block_boundary_needs_no_copy(make_pool):
    pool = make_pool(6)
    parent, child = computed(pool, make_request("a", range(8))), make_request("a.1", range(8))
    pool.fork(parent, child)
    child.num_computed = 8
    assert not pool.needs_copy(parent)
    assert not pool.needs_copy(child)


def test_copy_on_write_without_a_free_block_changes_nothing(make_pool):
    pool = make_pool(2)
    parent, child = computed(pool, make_request("a", range(6))), make_request("a.1", range(6))
    pool.fork(parent, child)
    before = list(parent.block_table)
    assert pool.copy_on_write(parent) is None
    assert parent.block_table == before
    pool.check_integrity([parent, child])


def test_a_second_release_of_one_reference_is_caught(make_pool):
    pool = make_pool(3)
    request = computed(pool, make_request("a", range(6)))
    stale = list(request.block_table)
    pool.release(request)
    request.block_table = stale
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(request)


def test_check_integrity_sees_a_leaked_block_and_a_freed_block_in_a_table(make_pool):
    pool = make_pool(3)
    request = computed(pool, make_request("a", range(6)))
    with pytest.raises(AssertionError, match="block 0"):
        pool.check_integrity([])
    stale = list(request.block_table)
    pool.release(request)
    request.block_table = stale
    with pytest.raises(AssertionError, match="block 0"):
        pool.check_integrity([request])


def test_check_integrity_sees_a_hash_that_cannot_be_found():
    pool = BlockPool(3, SIZE)
    request = computed(pool, make_request("a", range(6)))
    pool.blocks[request.block_table[0]].digest = b"another"
    with pytest.raises(AssertionError):
        pool.check_integrity([request])
