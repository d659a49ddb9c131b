"""``/v1/models``: one page for both SDKs in strict mode, and its paging."""

from __future__ import annotations

import json

import httpx2
import pytest
from anthropic import Anthropic
from openai import OpenAI

from llmlab.api.errors import ApiError
from llmlab.api.models_page import find_model, model_object, models_page

MODELS = [model_object(f"m{i}", 1_700_000_000 + i, max_input_tokens=8192, max_tokens=8192) for i in range(5)]


def transport(body: dict) -> httpx2.Client:
    content = json.dumps(body).encode()
    respond = lambda request: httpx2.Response(200, content=content, headers={"content-type": "application/json"})  # noqa: E731
    return httpx2.Client(transport=httpx2.MockTransport(respond))


def openai(body: dict) -> OpenAI:
    return OpenAI(api_key="k", base_url="http://lab/v1", http_client=transport(body), _strict_response_validation=True)


def anthropic(body: dict) -> Anthropic:
    return Anthropic(api_key="k", base_url="http://lab", http_client=transport(body), _strict_response_validation=True)


def test_both_sdks_in_strict_mode_read_the_same_page():
    page = models_page(MODELS)
    assert [model.id for model in openai(page).models.list().data] == ["m0", "m1", "m2", "m3", "m4"]
    found = anthropic(page).models.list().data
    assert [model.id for model in found] == ["m0", "m1", "m2", "m3", "m4"]
    assert found[1].created_at.timestamp() == 1_700_000_001


def test_both_sdks_in_strict_mode_read_one_model_of_unknown_size():
    body = model_object("up", 0, owned_by="someone")
    assert openai(body).models.retrieve("up").owned_by == "someone"
    assert anthropic(body).models.retrieve("up").max_input_tokens is None


def ids(page: dict) -> tuple[list[str], bool, str | None, str | None]:
    return [model["id"] for model in page["data"]], page["has_more"], page["first_id"], page["last_id"]


def test_paging():
    assert ids(models_page(MODELS, limit=2)) == (["m0", "m1"], True, "m0", "m1")
    assert ids(models_page(MODELS, limit=2, after_id="m1")) == (["m2", "m3"], True, "m2", "m3")
    assert ids(models_page(MODELS, limit=2, after_id="m3")) == (["m4"], False, "m4", "m4")
    assert ids(models_page(MODELS, limit=2, before_id="m3")) == (["m1", "m2"], True, "m1", "m2")
    assert ids(models_page(MODELS, limit=9, before_id="m1")) == (["m0"], False, "m0", "m0")
    assert ids(models_page([])) == ([], False, None, None)


def test_twenty_models_is_a_page_once_paging_is_asked_for():
    many = [model_object(f"m{i:02}", 0) for i in range(30)]
    assert ids(models_page(many, after_id="m04"))[0][-1] == "m24"
    assert len(models_page(many)["data"]) == 30


@pytest.mark.parametrize(
    "arguments",
    [{"limit": 0}, {"limit": 1001}, {"after_id": "x"}, {"before_id": "x"}, {"after_id": "m0", "before_id": "m1"}],
)
def test_impossible_pages_are_refused(arguments):
    with pytest.raises(ApiError) as caught:
        models_page(MODELS, **arguments)
    assert caught.value.status == 400


def test_an_unknown_model_is_not_found():
    assert find_model(MODELS, "m3") is MODELS[3]
    with pytest.raises(ApiError, match="'nope' does not exist here; known are: m0, m1") as caught:
        find_model(MODELS, "nope")
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")
