"""The block map shows the pool that the block events leave, no other."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from time import perf_counter

import drawn
import pytest
import recordings

from llmlab.errors import InvalidParameter, UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import BlockEvent, Gap, Step
from llmlab.views.block_map import block_map
from llmlab.views.scene import Rect, Text


def steps_of(trace):
    return trace.steps["step"].tolist()


def grid_keys(view):
    """Blocks with a mark above the tables, and their requests."""
    heading = next(m.y for m in view.scene.marks if isinstance(m, Text) and m.text.startswith("Block tables"))
    return [m.key for m in view.scene.marks if isinstance(m, Rect) and "block" in m.key and m.y < heading - 12]


def test_states_owners_and_hashes_are_those_of_the_replayed_trace(lab_trace):
    for step in steps_of(lab_trace):
        expected, table = lab_trace.block_map(step), block_map(lab_trace, step).table()
        for column in ("block_id", "state", "ref_count", "owners", "hash"):
            assert table[column].tolist() == expected[column].tolist(), (step, column)


def test_every_block_of_the_pool_is_drawn_once(lab_trace):
    for step in steps_of(lab_trace):
        drawn_blocks = {key["block"] for key in grid_keys(block_map(lab_trace, step))}
        assert drawn_blocks == set(range(lab_trace.info.num_blocks))


def test_counts_in_the_text_add_up_to_the_pool(lab_trace):
    for step in steps_of(lab_trace):
        first = block_map(lab_trace, step).alt
        size, *counts = map(int, re.findall(r"(\d+) (?:K/V blocks|free|cached|in use|shared)", first))
        assert sum(counts) == size == lab_trace.info.num_blocks


def test_a_block_is_in_as_many_tables_as_it_is_referenced(lab_trace):
    seen = 0
    for step in steps_of(lab_trace):
        view = block_map(lab_trace, step)
        tables = [
            line.rsplit(": ", 1)[1] for line in view.text.splitlines() if re.search(r": \d+ blocks?, \d+ tokens?", line)
        ]
        held = Counter(int(block) for table in tables for block in table.split(", "))
        used = view.table().query("ref_count > 0").set_index("block_id")["ref_count"]
        assert held == Counter(used.to_dict())
        seen += len(held)
    assert seen


def test_tables_are_in_the_order_of_the_block_events(lab_trace):
    blocks, step = lab_trace.blocks, steps_of(lab_trace)[10]
    tables: dict[str, dict[int, int]] = {}
    for event in blocks[blocks["step"] <= step].itertuples():
        if event.action in ("allocate", "hit", "share", "copy"):
            tables.setdefault(event.request_id, {})[event.index] = event.block_id
        elif event.action == "free":
            del tables[event.request_id][event.index]
    lines = block_map(lab_trace, step).text.splitlines()
    for request_id, table in tables.items():
        ids = ", ".join(str(table[i]) for i in range(len(table)))
        assert not table or any(line.startswith(f"{request_id}: ") and line.endswith(f": {ids}") for line in lines)


def test_tokens_of_a_table_are_those_computed_or_served(lab_trace):
    step = steps_of(lab_trace)[12]
    rows = lab_trace.schedule.query("step <= @step and action == 'ran'").groupby("request_id").last()
    lines = [re.match(r"(\S+): (\d+) blocks?, (\d+) tokens?", s) for s in block_map(lab_trace, step).text.splitlines()]
    found = {m[1]: (int(m[2]), int(m[3])) for m in lines if m}
    assert found
    for request_id, (num_blocks, tokens) in found.items():
        assert tokens == rows.loc[request_id, "start"] + rows.loc[request_id, "num_tokens"]
        assert (num_blocks - 1) * 16 < tokens <= num_blocks * 16


def test_hits_are_struck_through_in_the_tables(lab_trace):
    blocks = lab_trace.blocks
    step = int(blocks[blocks["action"] == "hit"]["step"].iloc[0])
    struck = {(m.key["request"], m.key["block"]) for m in block_map(lab_trace, step).scene.marks if _is_hit(m)}
    hits = blocks[(blocks["action"] == "hit") & (blocks["step"] == step)]
    assert struck == set(zip(hits["request_id"], hits["block_id"], strict=True))


def _is_hit(mark):
    return isinstance(mark, Rect) and mark.hatch and "block" in mark.key


def test_evictions_since_a_step_are_listed_and_marked(lab_trace):
    evictions = lab_trace.blocks.query("action == 'evict'")
    last = steps_of(lab_trace)[-1]
    expected = sorted(set(evictions["block_id"]))
    view = block_map(lab_trace, last, since=-1)
    assert expected
    assert view.table().query("evicted")["block_id"].tolist() == expected
    assert sum("evicted in" in m.tip for m in view.scene.marks if isinstance(m, Rect)) >= len(expected)
    some = int(evictions["step"].iloc[0])
    here = sorted(set(evictions.query("step == @some")["block_id"]))
    assert f"evicted in step {some}: {', '.join(map(str, here))}" in block_map(lab_trace, some).text


def test_a_chosen_request_leaves_the_others_faint(lab_trace):
    step = steps_of(lab_trace)[12]
    holders = [m.key["request"] for m in block_map(lab_trace, step).scene.marks if "request" in m.key]
    chosen = holders[-1]
    view = block_map(lab_trace, step, request_id=chosen)
    for mark in view.scene.marks:
        if isinstance(mark, Rect) and mark.fill.startswith("c") and "request" in mark.key and mark.opacity == 1:
            assert chosen in mark.tip
    assert any(m.opacity < 1 for m in view.scene.marks if isinstance(m, Rect))
    assert next(s for s in view.text.splitlines() if " tokens" in s).startswith(f"{chosen}: ")


def test_seeded_runs_have_the_same_text_and_different_traces_different_marks(lab_trace, other_trace):
    assert block_map(recordings.record_lab(), 12).text == block_map(lab_trace, 12).text
    assert block_map(lab_trace, 12).scene != block_map(other_trace, 12).scene
    assert block_map(lab_trace, 12).scene != block_map(lab_trace, 13).scene


def test_a_loaded_trace_gives_the_same_view(lab_trace, tmp_path):
    loaded = Trace.load(lab_trace.save(tmp_path / "a.jsonl.gz"))
    assert block_map(loaded, 20).svg == block_map(lab_trace, 20).svg


def test_steps_and_requests_that_are_not_there_are_named(lab_trace):
    with pytest.raises(InvalidParameter, match="its steps are 0 to"):
        block_map(lab_trace, 10_000)
    with pytest.raises(InvalidParameter, match="earlier step"):
        block_map(lab_trace, 5, since=5)
    with pytest.raises(UnknownRequest, match="it has r0"):
        block_map(lab_trace, 5, request_id="nobody")


@pytest.mark.parametrize("trace", [Trace([]), recordings.info_only()])
def test_without_steps_it_says_what_to_record(trace):
    view = block_map(trace)
    assert "No engine step" in view.text
    assert "submit" in view.text
    assert not drawn.faults(view)
    assert not len(view.table())


def test_what_a_gap_hides_is_unknown_not_free(lab_trace):
    middle = len(lab_trace.events) // 2
    cut = Trace([*lab_trace.events[:middle], Gap(lab_trace.events[middle].t_ns, 7), *lab_trace.events[middle:]])
    last = steps_of(cut)[-1]
    view = block_map(cut, last)
    assert view.table()["state"].tolist() == cut.block_map(last)["state"].tolist()
    assert view.notes
    assert ("unknown" in view.text) == ("unknown" in set(cut.block_map(last)["state"]))
    part = block_map(lab_trace.for_request("r5"))
    assert "unknown" in part.text
    assert "part of a trace" in part.notes[0]


def test_nothing_is_outside_or_on_one_another(lab_trace, other_trace, hostile_trace):
    for trace in (lab_trace, other_trace, hostile_trace):
        for step in steps_of(trace)[::5]:
            assert drawn.faults(block_map(trace, step)) == []
    assert drawn.faults(block_map(lab_trace, 12, width=500)) == []


def big_pool(num_blocks: int, num_requests: int, name: str = "request-{}") -> Trace:
    """A pool that is full, hashed and shared, in one step."""
    info = replace(recordings.info_only().info, num_blocks=num_blocks)
    events: list = [info]
    each = num_blocks // num_requests
    for i in range(num_blocks):
        owner = name.format(i // each)
        events.append(BlockEvent(10 + i, 0, i, "allocate", owner, i % each, 1, ""))
        events.append(BlockEvent(10 + i, 0, i, "cache", owner, i % each, 1, "abcdef"))
        if i < each:
            events.append(BlockEvent(10 + i, 0, i, "hit", name.format(1_000), i, 2, "abcdef"))
    step = Step(0, 10**9, 10**9, 10**9, 10**9, 10**9, 10**9, 0, (), 0, 1, 0, 0, num_blocks)
    return Trace([*events, step])


def test_four_thousand_blocks_are_drawn_quickly():
    trace = big_pool(4_096, 8)
    start = perf_counter()
    view = block_map(trace)
    assert perf_counter() - start < 2
    assert drawn.faults(view) == []
    assert len({key["block"] for key in grid_keys(view)}) == 4_096
    assert "512 shared" in view.text
    assert "… 488 more …" in view.text


def test_a_larger_pool_is_cut_with_a_note():
    view = block_map(big_pool(10_000, 5))
    assert drawn.faults(view) == []
    assert any("4,096 of 10,000" in note for note in view.notes)
    assert len(view.table()) == 10_000


def test_hostile_request_ids_stay_text():
    view = block_map(big_pool(64, 4, "<script>\u202e\x00{}" + "&lt;'\u2066" * 30))
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text
    assert "\x00" not in view.text
    assert drawn.faults(view) == []
