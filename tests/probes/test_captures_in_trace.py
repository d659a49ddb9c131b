"""Captures belong to the trace: found by event, saved beside it, loaded without torch, checked on the way in."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from looking import GREEDY, model_of, prompt
from tiny_models import paged_engine

from llmlab.errors import InvalidParameter, TraceFormatError, UnknownRequest
from llmlab.probes import Capture
from llmlab.trace import Recorder, Trace
from llmlab.trace.captures import Captures
from llmlab.trace.events import Captured

EVERYTHING = Capture(attention=True, scores=True, qkv=True, hidden=True, lens=True, embed=True, targets=[3, 9])
REPLAY = """
import sys
sys.modules["torch"] = sys.modules["transformers"] = None  # importing either now fails
from llmlab.trace import Trace
captured = Trace.load(sys.argv[1]).captured()
print(captured.attention, captured.lens.rank_trajectory(9, 22).tolist())
print(captured.positions.state.value_counts().to_dict())
"""


@pytest.fixture
def engine():
    engine = paged_engine(model_of("llama"), budget=10)
    engine.submit(prompt()[:14], GREEDY).wait()
    engine.submit(prompt(), GREEDY, capture=EVERYTHING).wait()
    engine.submit(prompt(5), GREEDY, capture=Capture(hidden=0)).wait()
    return engine


@pytest.fixture
def saved(engine, tmp_path):
    return engine.trace.save(tmp_path / "run.trace.jsonl.gz", captures=True)


def test_every_event_leads_to_its_numbers(engine):
    trace = engine.trace
    assert trace.check() == []
    table = trace.captures
    assert table.held.all()
    assert set(table.request_id) == {"r1", "r2"}
    for row in table.itertuples():
        array = trace.array(row.array_id)
        assert (array.shape, array.nbytes) == (row.shape, row.nbytes)
        assert array.shape[row.dims.index("query" if "query" in row.dims else "position")] == len(row.positions)
    steps = trace.schedule[trace.schedule.request_id == "r1"].step
    assert set(table[table.request_id == "r1"].step) <= set(steps)
    assert table.nbytes.sum() == sum(trace.captured(i).nbytes for i in ("r1", "r2"))


def test_numbers_in_the_trace_cannot_be_changed(engine):
    array = next(iter(engine.trace.arrays.values()))
    with pytest.raises(ValueError, match="read-only"):
        array[...] = 0


def test_captured_and_cached_positions_are_all_of_the_prompt(engine):
    trace = engine.trace
    cached = trace.requests.set_index("request_id").num_cached_tokens["r1"]
    hidden = trace.captured("r1").hidden.labels["position"]
    assert cached == 12
    assert cached + sum(p < 23 for p in hidden) == 23


def test_loading_gives_the_same_arrays(engine, saved):
    loaded, captured = Trace.load(saved), engine.trace.captured("r1")
    assert loaded.events == engine.trace.events
    again = loaded.captured("r1")
    assert again.kinds == captured.kinds
    for kind in captured.kinds:
        np.testing.assert_array_equal(again.array(kind).values, captured.array(kind).values)
        assert again.array(kind).labels == captured.array(kind).labels


def test_captures_replay_without_torch(saved):
    done = subprocess.run([sys.executable, "-c", REPLAY, saved], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("<attention (layer=2, head=4, query=16, key=28) float32")
    assert "'computed': 16" in done.stdout


def test_a_part_of_a_trace_takes_its_arrays_along(engine, tmp_path):
    part = engine.trace.for_request("r2")
    assert part.captures.request_id.unique().tolist() == ["r2"]
    path = part.save(tmp_path / "part.gz", captures=True)
    np.testing.assert_array_equal(
        Trace.load(path).captured("r2").hidden.values, engine.trace.captured("r2").hidden.values
    )
    with pytest.raises(UnknownRequest, match="only for: r2"):
        part.captured("r1")


def test_a_trace_saved_without_its_arrays_still_says_what_there_was(engine, tmp_path):
    loaded = Trace.load(engine.trace.save(tmp_path / "t.gz"))
    assert not loaded.captures.held.any()
    assert len(loaded.captures) == len(engine.trace.captures)
    assert loaded.captured("r1").attention is None
    with pytest.raises(InvalidParameter, match="captures=True"):
        loaded.array(loaded.captures.array_id[0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"positions": (99, 98)}, "position 99 was not computed in step"),
        ({"nbytes": 7}, "7 bytes are not float32"),
        ({"dtype": "float64"}, "bytes are not float64"),
        ({"request_id": "r2"}, "was not computed in step"),
    ],
)
def test_check_finds_an_array_that_contradicts_the_steps(engine, change, message):
    events = list(engine.trace.events)
    place = next(i for i, e in enumerate(events) if isinstance(e, Captured) and e.kind == "hidden")
    events[place] = replace(events[place], **change)
    assert any(message in text for text in Trace(events).check())


def test_check_finds_a_position_recorded_twice(engine):
    events = list(engine.trace.events)
    events.append(next(e for e in events if isinstance(e, Captured)))
    assert [text for text in Trace(events).check() if "recorded before" in text]


def test_nothing_captured_is_said(engine):
    with pytest.raises(UnknownRequest, match="only for: r1, r2"):
        engine.trace.captured("r0")
    with pytest.raises(UnknownRequest, match="no request"):
        Trace([]).captured()
    with pytest.raises(AttributeError, match="lens_top"):
        _ = engine.trace.captured("r1").nonsense
    with pytest.raises(InvalidParameter, match="there is hidden"):
        engine.trace.captured("r2").array("attention")


def test_captures_work_without_a_recorder():
    engine = paged_engine(model_of("llama"))
    engine.recorder = engine._executor.recorder = engine.journal.recorder = Recorder(enabled=False)
    run = engine.submit(prompt(), GREEDY, capture=Capture(hidden=True)).wait()
    assert run.captured.hidden.shape["position"] == 28
    assert run.captured.positions.state.unique().tolist() == ["computed"]


def test_pieces_far_apart_are_not_put_together():
    wide = Captured(0, 0, "r", "a", "hidden", 0, ("position", "width"), (2, 10**7), "float32", 8, (0, 1))
    layers = [replace(wide, layer=layer) for layer in range(100)]
    with pytest.raises(InvalidParameter, match="read them singly"):
        Captures("r", layers, {"a": np.zeros((2, 8), np.float32)}, ()).array("hidden")


@pytest.mark.parametrize(
    "change",
    [
        {"positions": (1, 2, 3)},
        {"dims": ("position", "position")},
        {"dims": ("width",)},
        {"layers": (0, 1)},
        {"dims": ("position", "head"), "labels": (1,)},
    ],
)
def test_an_event_that_contradicts_itself_is_refused(tmp_path, change):
    event = Captured(0, 0, "r", "a", "hidden", 0, ("position", "width"), (1, 2), "float32", 8, (5,))
    arrays = {"a": np.zeros((1, 2), np.float32)}
    assert Trace.load(Trace([event], arrays=arrays).save(tmp_path / "good", captures=True)).arrays.keys() == {"a"}
    path = Trace([replace(event, **change)], arrays=arrays).save(tmp_path / "bad", captures=True)
    with pytest.raises(TraceFormatError, match="contradicts itself"):
        Trace.load(path)


# -- files that are not what they claim -------------------------------------------------------------------------


def rewritten(saved, change) -> None:
    """Replace entries of the arrays' file; ``change(name, data)`` gives the new bytes."""
    path = saved.with_name(saved.name + ".npz")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, change(name, data))


def npy(array, **options) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def claiming(shape) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return buffer.getvalue() + b"\0" * 16


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"nonsense",
        npy(np.zeros((2, 2), np.float32)),
        npy(np.array([print], dtype=object), allow_pickle=True),
        claiming((10**9, 10**9)),
        npy(np.zeros(3, np.dtype([("a", "f4")]))),
    ],
    ids=["empty", "nonsense", "another shape", "pickled", "huge claim", "records"],
)
def test_an_array_that_is_not_its_events_is_refused(saved, data):
    rewritten(saved, lambda name, old: data if name == "3.npy" else old)
    with pytest.raises(TraceFormatError, match=r"npz|array 3\.npy"):
        Trace.load(saved)


def test_a_truncated_array_is_refused(saved):
    rewritten(saved, lambda name, old: old[:-1] if name == "3.npy" else old)
    with pytest.raises(TraceFormatError, match="its shape needs"):
        Trace.load(saved)


def test_a_damaged_or_too_large_file_is_refused(saved):
    path = saved.with_name(saved.name + ".npz")
    size = sum(info.file_size for info in zipfile.ZipFile(path).infolist())
    with pytest.raises(TraceFormatError, match="max_bytes"):
        Trace.load(saved, max_bytes=size - 1)
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(TraceFormatError, match="damaged"):
        Trace.load(saved)


@pytest.mark.parametrize("header", ["{'descr': (", "  1\n 2", "{[]: 2}", "{'descr': 1, 2: 3}"])
def test_a_header_that_numpy_fails_to_parse_is_refused(saved, header):
    line = header.encode() + b"\n"
    entry = b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line
    rewritten(saved, lambda name, data: entry if name == "0.npy" else data)
    with pytest.raises(TraceFormatError, match="damaged"):
        Trace.load(saved)


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_damage_in_any_kind_of_compression_is_refused(saved, method):
    path = saved.with_name(saved.name + ".npz")
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    content = bytearray(path.read_bytes())
    content[40:100] = bytes(b ^ 0xFF for b in content[40:100])
    path.write_bytes(content)
    with pytest.raises(TraceFormatError, match="damaged"):
        Trace.load(saved)
