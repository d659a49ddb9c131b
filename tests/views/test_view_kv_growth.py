"""K/V growth reconciles blocks that were recorded with tokens that were computed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from time import perf_counter

import drawn
import numpy as np
import pytest
import recordings

import llmlab
from llmlab.errors import UnknownRequest
from llmlab.trace import Trace
from llmlab.trace.events import EngineInfo
from llmlab.views.kv_bytes import size
from llmlab.views.kv_growth import kv_growth
from llmlab.views.scene import Rect, Text

SMALL_LLAMA = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "num_heads": 9, "kv_bytes_per_token": 23_040}


def as_model(trace, **shape):
    """The same events as if they came from an engine of another shape."""
    return Trace([replace(e, **shape) if isinstance(e, EngineInfo) else e for e in trace.events], only=trace.only)


def test_blocks_and_bytes_are_those_of_the_steps(lab_trace, draft_trace, other_trace):
    for trace in (lab_trace, draft_trace, other_trace):
        table = kv_growth(trace).table()
        assert table["used_blocks"].tolist() == trace.steps["used"].tolist()
        assert table["measured_bytes"].tolist() == trace.steps["kv_bytes_used"].tolist()


def test_measured_bytes_are_the_formula_and_the_unfilled_slots(lab_trace, draft_trace):
    for trace in (lab_trace, draft_trace):
        table, info = kv_growth(trace).table(), trace.info
        assert table["tokens"].notna().all()
        assert (table["measured_bytes"] >= table["formula_bytes"]).all()
        assert (table["unfilled_slots"] >= 0).all()
        assert table["unfilled_slots"].sum() > 0
        gap = table["measured_bytes"] - table["formula_bytes"]
        assert gap.tolist() == (table["unfilled_slots"] * info.kv_bytes_per_token).tolist()


def test_without_drafts_a_request_leaves_less_than_a_block_unfilled(lab_trace):
    table = kv_growth(lab_trace).table()
    holders = lab_trace.steps["running"].to_numpy()
    assert (table["unfilled_slots"].to_numpy(dtype=int) < lab_trace.info.block_size * holders).all()


def test_tokens_of_unshared_requests_are_the_ends_of_their_rows(other_trace):
    hits = other_trace.blocks["action"].isin(["hit", "share"])
    assert not hits.any()
    rows = other_trace.schedule.query("action == 'ran'")
    for step, tokens in kv_growth(other_trace).table()[["step", "tokens"]].itertuples(index=False):
        here = rows[rows["step"] == step]
        if len(here) == other_trace.steps.set_index("step")["running"][step]:
            assert tokens == (here["start"] + here["num_tokens"]).sum()


def test_tokens_in_shared_blocks_count_once():
    with llmlab.open("mock", background=False) as lab:
        lab.ask("a prompt that three samples share, of more blocks than two", n=3, max_tokens=5, ignore_eos=True)
        trace = lab.trace
    table = kv_growth(trace).table().set_index("step")
    prompt = len(trace.index.submitted["r0"].prompt_token_ids)
    assert "share" in set(trace.blocks["action"])
    assert table["tokens"].iloc[0] == prompt
    # each sample writes on in a copy of the last block; whole blocks are still shared
    assert table["tokens"].iloc[1] == prompt // 16 * 16 + 3 * (prompt % 16 + 1)
    assert (table["unfilled_slots"] >= 0).all()


def test_one_request_is_its_own_block_table(lab_trace):
    table = kv_growth(lab_trace, "r6").table().set_index("step")
    size_, rows = lab_trace.info.block_size, lab_trace.schedule.query("request_id == 'r6' and action == 'ran'")
    for row in rows.itertuples():
        assert table.loc[row.step, "tokens"] == row.start + row.num_tokens
        assert table.loc[row.step, "used_blocks"] == -(-(row.start + row.num_tokens) // size_)
    preempted = lab_trace.schedule.query("request_id == 'r6' and action == 'preempted'")["step"].iloc[0]
    assert table.loc[preempted, "used_blocks"] == table.loc[preempted, "tokens"] == 0


def test_other_attentions_are_arithmetic_on_the_same_tokens(lab_trace):
    view = kv_growth(as_model(lab_trace, **SMALL_LLAMA))
    table = view.table()
    assert (table["formula_bytes"] == table["tokens"] * 2 * 30 * 3 * 64 * 2).all()
    assert (table["mha_bytes"] == table["tokens"] * 2 * 30 * 9 * 64 * 2).all()
    assert (table["mla_bytes"] == table["tokens"] * 30 * (512 + 64) * 2).all()
    assert view.text.count("computed") == 2


def test_unknown_query_heads_are_said_and_not_drawn(lab_trace):
    view = kv_growth(lab_trace)
    assert "not known" in view.text
    assert view.table()["mha_bytes"].isna().all()
    assert not any("multi-head:" in m.text for m in view.scene.marks if isinstance(m, Text))


def test_layers_of_different_shapes_are_noted(lab_trace):
    view = kv_growth(as_model(lab_trace, **{**SMALL_LLAMA, "kv_bytes_per_token": 24_000}))
    assert any("Layers differ" in note for note in view.notes)


def test_columns_are_as_high_as_their_bytes(lab_trace):
    view = kv_growth(lab_trace)
    table = view.table().set_index("step")
    areas = [m for m in view.scene.marks if isinstance(m, Rect) and m.fill == "faint" and "blocks," in m.tip]
    assert [m.key["step"] for m in areas] == table.index.tolist()
    scale = {round(m.h / table.loc[m.key["step"], "measured_bytes"], 6) for m in areas}
    assert len(scale) == 1


def test_what_block_events_do_not_account_for_is_unknown(lab_trace):
    view = kv_growth(lab_trace.for_request("r6"))
    other = lab_trace.steps.set_index("step").loc[view.table()["step"], "used"]
    assert view.table()["used_blocks"].tolist() == other.tolist()
    assert view.table()["tokens"].isna().any()
    assert any("do not account" in note for note in view.notes)
    assert not drawn.faults(view)


def test_seeded_runs_have_the_same_text_and_different_traces_different_marks(lab_trace, other_trace):
    assert kv_growth(recordings.record_lab()).text == kv_growth(lab_trace).text
    assert kv_growth(lab_trace).scene != kv_growth(other_trace).scene


def test_the_figure_has_the_numbers_of_the_table(lab_trace):
    view = kv_growth(as_model(lab_trace, **SMALL_LLAMA))
    traces = {t.name: t for t in view.figure().data}
    assert len(traces) == 4
    for column, name in (("measured_bytes", "blocks in use, measured"), ("formula_bytes", "tokens x formula")):
        assert np.array_equal(traces[name].y, view.table()[column].to_numpy(dtype=float))
    assert len(kv_growth(lab_trace).figure().data) == 3


def test_number_of_query_heads_is_saved_and_missing_in_older_files(lab_trace, tmp_path):
    trace = as_model(lab_trace, **SMALL_LLAMA)
    loaded = Trace.load(trace.save(tmp_path / "a.jsonl.gz"))
    assert loaded.info.num_heads == 9
    assert kv_growth(loaded).svg == kv_growth(trace).svg
    from llmlab.trace.codec import decode, encode, parse

    data = parse(encode(trace.info))
    del data["num_heads"]
    assert decode(data).num_heads == 0


def test_the_views_of_the_pool_need_no_torch(lab_trace, tmp_path):
    path = lab_trace.save(tmp_path / "a.jsonl.gz")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from llmlab.trace import Trace\n"
        "from llmlab.views import batch_lanes, block_map, kv_growth\n"
        f"t = Trace.load({str(path)!r})\n"
        "print([len(f(t).svg) > 1000 for f in (batch_lanes, block_map, kv_growth)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "[True, True, True]", done.stderr


def test_unknown_requests_are_named(lab_trace):
    with pytest.raises(UnknownRequest, match="it has r0"):
        kv_growth(lab_trace, "nobody")


@pytest.mark.parametrize("trace", [Trace([]), recordings.info_only()])
def test_without_steps_it_says_what_to_record(trace):
    view = kv_growth(trace)
    assert "No engine step" in view.text
    assert "submit" in view.text
    assert not len(view.table())


def test_a_request_that_never_ran_has_no_picture_of_numbers():
    with llmlab.open("mock", background=False, max_num_seqs=1) as lab:
        lab.submit("runs", max_tokens=5)
        waits = lab.submit("waits", max_tokens=5)
        lab.engine.step()
        view = kv_growth(lab.trace, waits.id)
    assert "No block table" in view.text
    assert not len(view.table())


def test_nothing_is_outside_or_on_one_another(lab_trace, other_trace, hostile_trace):
    for trace in (lab_trace, other_trace, hostile_trace, as_model(lab_trace, **SMALL_LLAMA)):
        for width in (960, 480):
            assert drawn.faults(kv_growth(trace, width=width)) == []
    assert len(kv_growth(lab_trace).svg) < 64_000


def test_a_long_trace_is_pooled_with_its_peak():
    with llmlab.open("mock", num_blocks=64, background=False) as lab:
        lab.ask("go on", max_tokens=700, ignore_eos=True)
        trace = lab.trace
    start = perf_counter()
    view = kv_growth(trace)
    assert perf_counter() - start < 2
    assert drawn.faults(view) == []
    assert len(view.scene.marks) < 1_000
    assert any("240 columns" in note for note in view.notes)
    assert len(view.table()) == len(trace.steps)


def test_hostile_request_ids_stay_text():
    with llmlab.open("mock", background=False) as lab:
        name = "<script>\u202e\x00" + "x" * 300
        lab.engine.submit([1, 2, 3], request_id=name)
        lab.engine.run_until_idle()
        view = kv_growth(lab.trace, name)
    assert "<script" not in view.svg
    assert "\u202e" not in view.svg + view.text
    assert "\x00" not in view.text
    assert "<script" not in (view.figure().layout.title.text or "")


@pytest.mark.parametrize(
    ("num_bytes", "shown"), [(0, "0 B"), (1_000, "1,000 B"), (1_024, "1 KiB"), (2_304, "2.25 KiB"), (2**31, "2 GiB")]
)
def test_sizes_are_written_in_their_unit(num_bytes, shown):
    assert size(num_bytes) == shown
