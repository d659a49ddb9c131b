"""A session file survives crashes, hostile names and damage."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.client.entry import Entry, note, reply, text_block, user
from llmlab.client.transcript import Transcript, safe_name
from llmlab.errors import TranscriptError

ENTRIES = (
    user("héllo\n\u2028 \ud800", at=1.5),
    reply(
        [{"type": "tool_use", "id": "1", "name": "t", "input": {"a": [1]}}], model="m", stop_reason="x", usage={"n": 1}
    ),
    note("progress", "…"),
    Entry("compaction", (text_block("sum"),), keeps=2),
)


def written(folder, entries=ENTRIES, **options) -> Transcript:
    transcript = Transcript(folder, "s", **options)
    for entry in entries:
        transcript.append(entry)
    return transcript


@pytest.mark.parametrize("fsync", [False, True])
def test_entries_come_back_as_they_were(tmp_path, fsync):
    written(tmp_path, fsync=fsync)
    assert Transcript(tmp_path, "s").entries == ENTRIES


@given(cut=st.integers(1, 60))
def test_a_torn_last_line_loses_that_entry_alone_and_writing_goes_on(tmp_path_factory, cut):
    folder = tmp_path_factory.mktemp("torn")
    path = written(folder).path
    path.write_bytes(path.read_bytes()[:-cut])
    torn = Transcript(folder, "s")
    kept = 4 if cut == 1 else 3  # without its line feed alone, the line is whole
    assert torn.entries == ENTRIES[:kept]
    torn.append(ENTRIES[0])
    assert Transcript(folder, "s").entries == (*ENTRIES[:kept], ENTRIES[0])


@pytest.mark.parametrize(
    "line",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"kind": "user"}',
        b'{"kind": "root", "content": []}',
        b'{"kind": "user", "content": [{"text": "no type"}]}',
        b'{"kind": "user", "content": [], "keeps": -1}',
        b'{"kind": "user", "content": [], "surprise": 1}',
        b'{"kind": "user", "content": [{"type": "text", "text": NaN}]}',
        b'{"kind": "user", "content": [], "model": 3}',
    ],
)
def test_a_damaged_line_is_passed_over_and_reported(tmp_path, line):
    path = written(tmp_path).path
    first, *rest = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line + b"\n" + b"".join(rest))
    loaded = Transcript(tmp_path, "s")
    assert loaded.entries == ENTRIES
    assert loaded.damaged == [2]


def test_one_line_per_entry(tmp_path):
    lines = written(tmp_path).path.read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [entry.kind for entry in ENTRIES]


@pytest.mark.parametrize("name", ["../../etc/passwd", "/abs", "a\\b", "..", "", "nul\0", "x" * 500, "a/b", "é", "CON:"])
def test_no_session_name_leaves_the_folder(tmp_path, name):
    transcript = Transcript(tmp_path / "sessions", name)
    transcript.append(ENTRIES[0])
    assert transcript.path.parent == tmp_path / "sessions"
    assert transcript.path.resolve().parent == (tmp_path / "sessions").resolve()
    assert [item.name for item in tmp_path.iterdir()] == ["sessions"]


def test_names_that_look_alike_after_cleaning_stay_apart():
    assert safe_name("ok-1_A") == "ok-1_A"
    assert len({safe_name(name) for name in ("a/b", "a.b", "a-b", "a b")}) == 4


def test_a_file_that_is_too_large_is_refused_and_none_grows_too_large(tmp_path):
    size = written(tmp_path).path.stat().st_size
    with pytest.raises(TranscriptError, match="larger than"):
        Transcript(tmp_path, "s", max_bytes=size - 1)
    full = Transcript(tmp_path, "s", max_bytes=size + 10)
    with pytest.raises(TranscriptError, match="start a new session"):
        full.append(ENTRIES[0])
    assert full.entries == Transcript(tmp_path, "s").entries


def test_a_link_or_a_folder_in_place_of_the_file_is_refused(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("")
    os.symlink(secret, tmp_path / "link.jsonl")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("link", "folder"):
        with pytest.raises(TranscriptError):
            Transcript(tmp_path, name).append(ENTRIES[0])
    assert secret.read_text() == ""


def test_a_link_that_appears_later_is_not_followed(tmp_path):
    transcript = written(tmp_path)
    transcript.path.unlink()
    os.symlink(tmp_path / "secret", transcript.path)
    with pytest.raises(TranscriptError, match="cannot be written"):
        transcript.append(ENTRIES[0])
    assert not (tmp_path / "secret").exists()


def test_what_is_not_json_is_refused_before_it_is_written(tmp_path):
    transcript = written(tmp_path)
    for bad in (float("nan"), object()):
        with pytest.raises(TranscriptError, match="plain JSON"):
            transcript.append(replace(ENTRIES[1], usage={"n": bad}))
    assert Transcript(tmp_path, "s").entries == ENTRIES == transcript.entries


def test_only_the_owner_can_read_it(tmp_path):
    assert written(tmp_path).path.stat().st_mode & 0o077 == 0
