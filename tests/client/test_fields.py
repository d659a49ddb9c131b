"""The table of fields, and the account of an assembled request."""

from __future__ import annotations

import json
from typing import get_args

import pytest

from llmlab.client.assemble import Options, SystemText, assemble
from llmlab.client.entry import user
from llmlab.client.estimate import estimate
from llmlab.client.fields import Evidence, explain, field, fields, prompt_share
from llmlab.errors import InvalidParameter

OPTIONS = Options(
    temperature=0.5,
    top_p=0.9,
    top_k=4,
    stop_sequences=("x",),
    thinking={"type": "disabled"},
    tool_choice={"type": "auto"},
    output_config={"effort": "low"},
    context_management={"edits": []},
    user_id="u",
    service_tier="auto",
    speed="fast",
    betas=("b-1",),
)


def made():
    tools = [{"name": "t", "input_schema": {"type": "object"}}]
    return assemble("m", [user("hällo")], system=[SystemText("s" * 400)], tools=tools, options=OPTIONS)


def test_every_field_is_described_once_and_says_what_stands_behind_it():
    names = [each.name for each in fields()]
    assert len(names) == len(set(names))
    for each in fields():
        assert each.evidence in get_args(Evidence)
        assert each.kind in ("content", "policy")
        assert all(getattr(each, part).strip() for part in ("what", "does", "if_left_out", "example"))


def test_examples_of_the_body_are_json():
    for each in fields():
        if each.where == "body":
            json.loads(each.example)


def test_every_field_the_assembly_can_send_is_described():
    described = {each.name: each for each in fields()}
    for name in made().request:
        assert described[name].where == "body"
    for name in made().headers:
        assert described[name].where == "header"


def test_content_is_what_the_model_reads():
    assert {each.name for each in fields() if each.kind == "content" and each.where == "body"} == {
        *("tools", "system", "messages")
    }


def test_claims_that_did_not_hold_are_labelled():
    assert field("betas").evidence == "contradicted"
    assert field("anti_distillation").evidence == "article only, unverifiable"
    with pytest.raises(InvalidParameter, match="no field is called 'nope'"):
        field("nope")


def test_the_bytes_of_the_rows_add_up_to_the_body():
    request = made().request
    body = [row for row in explain(request) if row.where == "body"]
    assert [row.name for row in body] == list(request)
    assert sum(row.bytes for row in body) + 1 == len(made().body)
    assert sum(row.share for row in body) == pytest.approx(1, abs=0.01)


def test_tokens_are_those_of_the_estimate_and_policy_has_none():
    request = made().request
    rows = explain(request, made().headers)
    assert sum(row.tokens for row in rows) == estimate(request).total
    assert all(row.tokens == 0 for row in rows if row.kind == "policy")
    assert {row.name for row in rows if row.where == "header"} == {"anthropic-version", "anthropic-beta"}


def test_markers_have_a_row_of_their_own():
    bare = assemble("m", [user("hällo")], options=Options(cache=False))
    marked = assemble("m", [user("hällo")], options=Options())
    (row,) = [row for row in explain(marked.request) if row.name == "cache_control"]
    assert row.bytes == len(marked.body) - len(bare.body)
    assert all(row.name != "cache_control" for row in explain(bare.request))


def test_an_unknown_field_is_shown_as_such():
    (row,) = [row for row in explain({"model": "m", "mystery": 1}) if row.name == "mystery"]
    assert (row.evidence, row.kind) == ("unknown", "policy")


def test_what_a_person_typed_is_a_small_part():
    assert 0 < prompt_share(made().request, "hällo") < 0.05
