"""The ledger of claims and the notebooks agree: what a claim points to is there, and what can be shown is shown."""

from __future__ import annotations

import pytest
from lab_folder import LAB_SOURCES, stored

from llmlab.claims import SHOWN, claims

BADGES = {status: f"**[{status}" for status in SHOWN} | {
    "measured": "**[measured here",
    "unverifiable": "**[not verifiable here: ",
}
LATER = ("scale", "moe", "quantization", "fleet")  # areas whose labs do not exist yet


@pytest.fixture(scope="module")
def table():
    return claims()


@pytest.fixture(scope="module")
def cells():
    """The ids of the cells of every lab, by its number."""
    return {source.name[:2]: {cell.id for cell in stored(source).cells} for source in LAB_SOURCES}


def test_a_claim_that_a_lab_shows_points_to_one_of_its_cells(table, cells):
    for row in table[table.lab != ""].itertuples():
        assert row.lab in cells, row.id
        assert row.cell in cells[row.lab], f"{row.id}: no cell {row.cell}"
        assert row.status, row.id
    assert (table.cell[table.lab == ""] == "").all()


def test_a_lab_with_badges_has_one_for_every_status_of_its_claims(table):
    for source in LAB_SOURCES:
        prose = " ".join(cell.source for cell in stored(source).cells if cell.cell_type == "markdown")
        text = " ".join(prose.split())
        if "**[" in text:
            statuses = set(table.status[table.lab == source.name[:2]])
            assert [status for status in statuses if BADGES[status] not in text] == [], source.name


def test_every_lab_treats_claims(table, cells):
    assert set(table.lab) == {*cells, ""}


def test_what_has_a_status_says_what_was_found_or_why_nothing_can_be(table):
    assert (table.ours[table.status != ""] != "").all()


def test_without_a_lab_a_status_needs_a_check(table):
    alone = table[(table.lab == "") & table.status.isin(SHOWN)]
    assert (alone.check != "").all()


def test_only_claims_of_labs_to_come_have_no_status_and_say_so(table):
    waiting = table[table.status == ""]
    assert set(waiting.area) <= set(LATER)
    assert (waiting.ours != "").all()


def test_what_a_lab_corrects_was_not_simply_right(table):
    corrected = table[table.status == "corrected"]
    assert not corrected.verdict.isin(["confirmed", "open"]).any(), corrected.id.tolist()


def test_nine_in_ten_claims_that_this_machine_can_show_are_shown(table):
    possible = table[(table.status != "unverifiable") & ~table.area.isin(LATER)]
    assert possible.status.isin(SHOWN).mean() >= 0.9
    assert (table.status == "unverifiable").mean() < 0.25


def test_no_claim_of_a_lab_is_left_open(table):
    assert (table.verdict[table.status != ""] != "open").all()
