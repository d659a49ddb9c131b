"""The ledger of cache breakpoints: who may count which tokens as read or written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.gateway.prompt_cache import CachePlan, Position, PromptCache

PLENTY = 10**6


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def blocks(count: int, marks: dict[int, str]) -> list[Position]:
    """``count`` blocks of ten tokens; ``marks`` numbers them from 1."""
    return [Position(10 * i, marks.get(i)) for i in range(1, count + 1)]


def serve(cache: PromptCache, count: int, marks: dict[int, str], ids=None, salt: str = "") -> tuple[int, int, int, int]:
    """One whole request over the same text; uncached, read, written for 5m and for 1h, all of it in the engine."""
    ids = list(range(10 * count + 3)) if ids is None else ids
    plan = cache.look_up(salt, ids, blocks(count, marks))
    cache.begin(plan)
    usage = plan.usage(PLENTY)
    assert usage.prompt == len(ids)
    return usage.uncached, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h


def test_a_marked_prefix_is_written_once_and_then_read():
    cache = PromptCache(1)
    assert serve(cache, 10, {10: "5m"}) == (3, 0, 100, 0)
    assert serve(cache, 10, {10: "5m"}) == (3, 100, 0, 0)


def test_a_growing_conversation_reads_the_earlier_end_within_twenty_blocks():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    assert serve(cache, 15, {15: "5m"}) == (3, 100, 50, 0)


def test_an_entry_more_than_twenty_blocks_back_is_not_seen_by_one_marker():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    serve(cache, 15, {15: "5m"})
    assert serve(cache, 35, {35: "5m"}) == (3, 0, 350, 0)


def test_a_second_marker_looks_back_from_its_own_place():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    serve(cache, 15, {15: "5m"})
    assert serve(cache, 35, {15: "5m", 35: "5m"}) == (3, 150, 200, 0)


@pytest.mark.parametrize(("end", "read"), [(29, 100), (30, 0)])
def test_the_marker_itself_counts_as_the_first_of_twenty_positions(end, read):
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    assert serve(cache, end, {end: "5m"})[1] == read


def test_blocks_without_a_marker_write_nothing():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    assert serve(cache, 9, {9: "5m"}) == (3, 0, 90, 0)


def test_without_markers_nothing_is_counted():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"})
    assert serve(cache, 10, {}) == (103, 0, 0, 0)


def test_a_prefix_shorter_than_the_minimum_is_silently_not_cached():
    cache = PromptCache(101)
    assert serve(cache, 10, {10: "5m"}) == (103, 0, 0, 0)
    assert serve(cache, 10, {10: "5m"}) == (103, 0, 0, 0)
    assert len(cache) == 0


def test_a_prefix_can_be_read_only_when_the_first_reply_has_begun():
    cache, ids, marked = PromptCache(1), list(range(103)), blocks(10, {10: "5m"})
    first = cache.look_up("", ids, marked)
    second = cache.look_up("", ids, marked)
    cache.begin(first)
    third = cache.look_up("", ids, marked)
    assert (first.found, second.found, third.found) == (0, 0, 100)


def test_entries_die_after_their_time_and_every_use_begins_it_again():
    clock = Clock()
    cache = PromptCache(1, clock)
    serve(cache, 10, {10: "5m"})
    clock.now = 299
    assert serve(cache, 10, {10: "5m"})[1] == 100
    clock.now = 299 + 299
    assert serve(cache, 15, {15: "5m"})[1] == 100
    clock.now += 300
    assert serve(cache, 10, {10: "5m"})[1] == 0


def test_an_hour_long_entry_is_not_shortened_by_a_five_minute_marker():
    clock = Clock()
    cache = PromptCache(1, clock)
    serve(cache, 10, {10: "1h"})
    serve(cache, 10, {10: "5m"})
    clock.now = 3599
    assert serve(cache, 10, {10: "5m"})[1] == 100


def test_mixed_times_are_counted_from_the_hit_to_the_hour_marker_to_the_last():
    cache = PromptCache(1)
    serve(cache, 4, {4: "1h"})
    assert serve(cache, 10, {4: "1h", 7: "1h", 10: "5m"}) == (3, 40, 30, 30)


def test_other_salts_and_other_texts_share_nothing():
    cache = PromptCache(1)
    serve(cache, 10, {10: "5m"}, salt="a")
    assert serve(cache, 10, {10: "5m"}, salt="b")[1] == 0
    changed = [0, 0, *range(2, 103)]
    assert serve(cache, 10, {10: "5m"}, ids=changed, salt="a")[1] == 0


def test_the_least_recently_used_entries_are_forgotten_first():
    cache = PromptCache(1, capacity=2)
    for salt in "aba":
        serve(cache, 10, {10: "5m"}, salt=salt)
    serve(cache, 10, {10: "5m"}, salt="c")
    assert serve(cache, 10, {10: "5m"}, salt="a")[1] == 100
    assert serve(cache, 10, {10: "5m"}, salt="b")[1] == 0


def test_what_the_engine_no_longer_has_counts_as_written():
    cache, ids, marked = PromptCache(1), list(range(103)), blocks(10, {10: "5m"})
    cache.begin(cache.look_up("", ids, marked))
    usage = cache.look_up("", ids, marked).usage(engine_cached=96)
    assert (usage.uncached, usage.cache_read, usage.cache_write_5m, usage.engine_cached) == (3, 96, 4, 96)


marked_positions = st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["5m", "1h"])), max_size=4)


@given(marked_positions, st.integers(0, 60), st.integers(0, 60))
def test_every_prompt_token_is_counted_exactly_once(marks, found, engine_cached):
    positions = tuple(Position(tokens, ttl) for tokens, ttl in sorted(marks))
    longest = max((p.tokens for p in positions), default=0)
    usage = CachePlan(55, min(found, longest), positions, ()).usage(engine_cached)
    counts = (usage.uncached, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h)
    assert sum(counts) == 55
    assert min(counts) >= 0
