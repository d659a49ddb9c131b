"""An OpenAPI description of the gateway's endpoints, made from the schemas that check the requests."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from llmlab import __version__
from llmlab.api.anthropic.schema import CountRequest, MessageRequest
from llmlab.api.openai.schema import ChatRequest

REFUSALS = (400, 401, 403, 404, 408, 413, 415, 429, 500, 503, 529)
ANTHROPIC_ERROR = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": "string"},
    },
}
OPENAI_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def openapi_document() -> dict[str, Any]:
    """The document. A model's schema says what the codec's first check accepts; some of the rules between fields are
    beyond JSON Schema, so a body that fits it may still be answered with 400.
    """
    schemas: dict[str, Any] = {"AnthropicError": ANTHROPIC_ERROR, "OpenAIError": OPENAI_ERROR}
    message, count = (_add(schemas, model, "Anthropic") for model in (MessageRequest, CountRequest))
    chat = _add(schemas, ChatRequest, "OpenAI")
    paths = {
        "/v1/messages": {"post": _operation("Create a message", "AnthropicError", message, streams=True)},
        "/v1/messages/count_tokens": {"post": _operation("Count a prompt's tokens", "AnthropicError", count)},
        "/v1/chat/completions": {"post": _operation("Create a chat completion", "OpenAIError", chat, streams=True)},
        "/v1/models": {"get": _operation("List the models", "OpenAIError")},
        "/health": {"get": _operation("Whether requests are accepted", "OpenAIError")},
    }
    info = {"title": "llmlab", "version": __version__}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _add(schemas: dict[str, Any], model: type[BaseModel], prefix: str) -> dict[str, str]:
    """Put a model's schema and all it refers to among the components; the two protocols' names are kept apart."""
    found = model.model_json_schema(ref_template=f"#/components/schemas/{prefix}{{model}}")
    named = found.pop("$defs", {}) | {model.__name__: found}
    for name, schema in named.items():
        schemas[prefix + name] = _with_short_forms(schema)
    return {"$ref": f"#/components/schemas/{prefix}{model.__name__}"}


def _with_short_forms(schema: dict[str, Any]) -> dict[str, Any]:
    """Wherever a list of content blocks is expected, a string does too: the codecs turn it into one text block."""
    properties = schema.get("properties", {})
    for name in ("content", "system"):
        if properties.get(name, {}).get("type") == "array":
            properties[name] = {"anyOf": [{"type": "string"}, properties[name]]}
    return schema


def _operation(
    summary: str, error: str, request: dict[str, str] | None = None, *, streams: bool = False
) -> dict[str, Any]:
    refusal = {"description": "Refused", "content": {"application/json": {"schema": _ref(error)}}}
    answer = {"application/json": {"schema": {"type": "object"}}}
    if streams:
        answer["text/event-stream"] = {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "summary": summary,
        "responses": {
            "200": {"description": "Answered", "content": answer},
            **{str(code): refusal for code in REFUSALS},
        },
    }
    if request is not None:
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": request}}}
    return operation


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}
