from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from llmlab.claims import COLUMNS, EVIDENCE, VERDICTS, claims
from llmlab.errors import ClaimsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table():
    return claims()


def test_the_packaged_table_is_the_one_in_the_repository(table):
    assert table.equals(claims(ROOT / "data" / "claims.csv"))
    assert len(table) > 60


def test_ids_are_unique_and_numbered(table):
    assert table.id.tolist() == [f"W{i:03d}" for i in range(1, len(table) + 1)]


def test_the_vocabulary_is_the_documented_one(table):
    assert set(table.verdict) == set(VERDICTS)
    assert set(table.evidence) == set(EVIDENCE)
    assert set(table.article) == {"A"}


def test_sections_are_those_about_the_wire(table):
    assert all(re.fullmatch(r"[23](\.\d+)?|5\.(1|2|9|10)", section) for section in table.section)
    for chapter in ("2.", "3.", "5."):
        assert table.section.str.startswith(chapter).any()


def test_every_claim_is_a_sentence_with_an_answer(table):
    for row in table.itertuples():
        assert re.fullmatch(r"[A-Za-z].*\.", row.claim), row.id
        assert re.fullmatch(r"[A-Za-z0-9].*\.", row.correction), row.id
    assert table.claim.is_unique


def test_unverifiable_means_without_evidence(table):
    assert ((table.verdict == "unverifiable") == (table.evidence == "unverifiable")).all()


def test_every_named_check_exists(table):
    missing = [check for check in set(table.check) if check and not (ROOT / check).is_file()]
    assert missing == []


def test_what_was_measured_here_names_the_check_that_shows_it(table):
    measured = table[table.evidence == "measured here"]
    assert len(measured) > 10
    assert measured.check.str.fullmatch(r"tests/\w+/test_\w+\.py").all()


def test_the_wheel_takes_the_table_along():
    with (ROOT / "pyproject.toml").open("rb") as file:
        wheel = tomllib.load(file)["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["force-include"]["data/claims.csv"] == "llmlab/data/claims.csv"


def test_a_file_that_is_not_the_table_is_refused(tmp_path):
    for content, message in [("a,b\n1,2\n", "has columns a, b"), ("", "cannot be read"), ("\xff", "cannot be read")]:
        (tmp_path / "claims.csv").write_bytes(content.encode("latin-1"))
        with pytest.raises(ClaimsError, match=message):
            claims(tmp_path / "claims.csv")
    with pytest.raises(ClaimsError, match="cannot be read"):
        claims(tmp_path / "nowhere.csv")


def test_columns_are_in_order(table):
    assert tuple(table) == COLUMNS
