from __future__ import annotations

import jsonschema
import pytest
from scripted_backend import chat_body, client_of, gateway_of, message_body


@pytest.fixture
async def document():
    async with client_of(gateway_of()) as client:
        return (await client.get("/openapi.json")).json()


def validator(document: dict, path: str) -> jsonschema.Draft202012Validator:
    reference = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator(reference | {"components": document["components"]})


async def test_every_reference_leads_somewhere_and_every_schema_is_one(document):
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    text = repr(document)
    names = {part.split("'")[0] for part in text.split("#/components/schemas/")[1:]}
    assert names <= set(document["components"]["schemas"])


async def test_bodies_that_are_served_fit_and_others_do_not(document):
    messages, chat = validator(document, "/v1/messages"), validator(document, "/v1/chat/completions")
    assert messages.is_valid(message_body())
    assert chat.is_valid(chat_body())
    assert not messages.is_valid(chat_body())
    assert not messages.is_valid(message_body(max_tokens="many"))
    assert not chat.is_valid(chat_body(temperature=9))


async def test_every_path_of_the_document_exists(document):
    async with client_of(gateway_of()) as client:
        for path, operations in document["paths"].items():
            for method in operations:
                assert (await client.request(method, path)).status_code in (200, 400)
