from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from llmlab.claims import COLUMNS, EVIDENCE, STATUSES, VERDICTS, claims, coverage
from llmlab.errors import ClaimsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def table():
    return claims()


def test_the_packaged_table_is_the_one_in_the_repository(table):
    assert table.equals(claims(ROOT / "data" / "claims.csv"))


def test_no_claim_is_missing_and_those_about_the_wire_alone_come_last(table):
    numbered = [f"C{number:03d}" for number in range(1, 238)]
    assert table.id.tolist()[: len(numbered)] == numbered
    assert table.id[len(numbered) :].str.fullmatch(r"W\d{3}").all()
    assert table.id.is_unique


def test_the_vocabulary_is_the_documented_one(table):
    assert set(table.verdict) <= set(VERDICTS)
    assert set(table.evidence) <= {*EVIDENCE, ""}
    assert set(table.status) <= {*STATUSES, ""}
    assert set(table.kind) == {"mechanism", "number", "rule", "phenomenon", "comparison", "open-question"}
    assert set(table.article) == {"A", "B"}


def test_sections_are_numbers_in_one_article_and_headings_in_the_other(table):
    sections = table.section[table.article == "A"]
    assert sections.str.fullmatch(r"\d(\.\d+){0,2}").all()
    assert table.section[table.article == "B"].str.fullmatch(r"[A-Z].+").all()


def test_every_claim_is_a_short_sentence(table):
    for row in table.itertuples():
        assert re.fullmatch(r"\S.*[.]", row.claim), row.id
        assert len(row.claim) <= 200, row.id
    assert table.claim.is_unique


def test_whatever_does_not_simply_hold_says_what_does(table):
    told = table[table.verdict.isin(["partly", "contradicted", "outdated", "unverifiable"])]
    assert (told.correction != "").all()
    for text in [*table.correction, *table.ours]:
        assert re.fullmatch(r"(\S.*[.])?", text), text


def test_unverifiable_means_without_evidence_and_open_without_any_yet(table):
    assert ((table.verdict == "unverifiable") == (table.evidence == "unverifiable")).all()
    assert ((table.verdict == "open") == (table.evidence == "")).all()
    assert (table.verdict == "open").mean() < 0.05


def test_every_named_check_exists(table):
    missing = [check for checks in table.check for check in checks.split() if not (ROOT / check).is_file()]
    assert missing == []


def test_what_was_measured_here_names_what_shows_it(table):
    measured = table[table.evidence == "measured here"]
    assert len(measured) > 50
    assert ((measured.check != "") | (measured.lab != "")).all()
    assert measured.check.str.fullmatch(r"((^| )tests/\w+/test_\w+\.py)*").all()


def test_nothing_in_the_table_tells_how_it_was_made(table):
    text = " ".join(table.to_numpy().ravel())
    for name in ("/work", "/root", "/tmp", "shared/", "protocol.md", "engines.md", "resources.md"):
        assert name not in text


def test_coverage_counts_every_claim_once(table):
    counts = coverage()
    assert list(counts) == ["claims", *STATUSES, "not yet"]
    assert list(counts.index) == [*table.area.unique(), "all"]
    assert counts.claims.drop("all").to_dict() == table.area.value_counts().to_dict()
    assert (counts.drop(columns="claims").sum(axis=1) == counts.claims).all()
    assert (counts.drop("all").sum() == counts.loc["all"]).all()
    assert counts.loc["all", "claims"] == len(table)


def test_unverifiable_without_a_reason_is_not_covered(tmp_path, table):
    few = table.head(3).assign(area="kv", status=["unverifiable", "unverifiable", "measured"], ours=["Why.", "", ""])
    few.to_csv(tmp_path / "claims.csv", index=False)
    counts = coverage(tmp_path / "claims.csv").loc["kv"]
    assert (counts.claims, counts.unverifiable, counts.measured, counts["not yet"]) == (3, 1, 1, 1)


def test_the_module_prints_the_coverage_as_markdown():
    command = [sys.executable, "-W", "error::RuntimeWarning", "-m", "llmlab.claims"]
    lines = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout.splitlines()
    assert lines[0] == f"| area | claims | {' | '.join(STATUSES)} | not yet |"
    assert re.fullmatch(r"\| --- (\| --: )+\|", lines[1])
    assert len(lines) == 2 + len(coverage())
    assert [line.split(" | ")[1] for line in lines[2:]] == [str(count) for count in coverage().claims]


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
