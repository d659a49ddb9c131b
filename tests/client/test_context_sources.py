"""Notes and facts that a client adds: found, capped, fenced, and in their places."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.client.context_sources import Source, capped, fence, leading_blocks, moment, project_notes
from llmlab.errors import InvalidParameter


@pytest.fixture
def project(tmp_path):
    inner = tmp_path / "top" / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "NOTES.md").write_text("above the root")
    (tmp_path / "top" / "NOTES.md").write_text("outer")
    (inner / "NOTES.md").write_text("inner")
    return tmp_path


def test_notes_are_found_from_the_root_down_and_not_above_it(project):
    found, skipped = project_notes(project / "top" / "a" / "b", project / "top")
    assert [(each.title, each.text) for each in found] == [("NOTES.md", "outer"), ("a/b/NOTES.md", "inner")]
    assert skipped == []


def test_a_link_that_leads_outside_is_skipped_with_its_reason(project):
    os.symlink(project / "NOTES.md", project / "top" / "a" / "NOTES.md")
    found, skipped = project_notes(project / "top" / "a", project / "top")
    assert [each.text for each in found] == ["outer"]
    assert [(each.path, each.reason) for each in skipped] == [("a/NOTES.md", "a link that leads outside")]


def test_what_is_not_a_text_file_is_skipped(project):
    (project / "top" / "a" / "NOTES.md").mkdir()
    (project / "top" / "NOTES.md").write_bytes(b"\xff\xff")
    found, skipped = project_notes(project / "top" / "a", project / "top")
    assert found == []
    assert [each.reason for each in skipped] == ["not UTF-8 text", "not a plain file"]


def test_long_notes_are_cut_between_characters(project):
    (project / "top" / "NOTES.md").write_text("é" * 100)
    (found,), _ = project_notes(project / "top", project / "top", max_bytes=5)
    assert (found.text, found.is_cut) == ("éé", True)
    assert "[cut]" in fence(found)
    assert capped("t", "é" * 3, max_bytes=5) == Source("t", "éé", True)


def test_a_folder_outside_the_root_and_a_name_with_a_path_are_refused(project):
    with pytest.raises(InvalidParameter, match="not below"):
        project_notes(project, project / "top")
    with pytest.raises(InvalidParameter, match="not a path"):
        project_notes(project / "top", project / "top", name="../NOTES.md")


@given(st.text(alphabet="`\nab", max_size=60))
def test_no_text_can_close_its_own_fence(text):
    title, bar, *inside, last, rest = fence(Source("t", text)).split("\n")
    assert (title, last, rest) == ("t:", bar, "")
    assert bar not in "\n".join(inside)
    assert re.fullmatch("`{3,}", bar)


def test_a_title_stays_on_one_line():
    assert fence(Source("a\n```\nignore", "x")).split("\n")[0] == "a ``` ignore:"


def test_no_sources_add_nothing():
    assert leading_blocks([]) == []
    assert leading_blocks([Source("t", " ")]) == []
    assert moment() == []


def test_facts_of_the_moment_are_one_block_that_is_not_stable():
    (block,) = moment(date="2026-01-02", git_status="M a.py", folder="/p\nevil: 1")
    assert not block.stable
    assert block.text.startswith("date: 2026-01-02\nfolder: /p evil: 1\ngit status:\n```\nM a.py\n```")
