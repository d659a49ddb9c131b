"""Checks of a parsed JSON body against a schema; whatever the body holds, the only failure is ``ApiError``."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llmlab.api.errors import ApiError
from llmlab.api.json_values import is_unicode

MAX_DEPTH = 128
"""Deepest nesting of a body: what comes later may recurse."""
MAX_MESSAGE = 600
"""Longest error message in characters: some quote the request."""

Schema = TypeVar("Schema", bound=BaseModel)
Place = tuple[Any, Any] | None
"""(place of the container, key in it): paths are spelt out only for the value that is wrong."""


def invalid(path: str, message: str) -> ApiError:
    """The 400 for a field: ``path: message``."""
    path, message = _short(path), _short(message)
    return ApiError("invalid_request_error", f"{path}: {message}", param=path)


def validate(schema: type[Schema], body: Any) -> Schema:
    """The body as ``schema``. Raises ``ApiError`` for the first thing that is wrong, in the protocol's words."""
    check_plain(body)
    if not isinstance(body, dict):
        raise ApiError("invalid_request_error", "the body must be a JSON object")
    try:
        return schema.model_validate(body)
    except ValidationError as error:
        raise _first(error) from None


def check_plain(value: Any) -> None:
    """Raise ``ApiError`` for what JSON parsers let through and nothing further on could hold.

    That is: numbers that are not finite (``1e400``), halves of a surrogate pair, nesting beyond ``MAX_DEPTH``.
    """
    for place, depth, item in walk(value):
        if depth > MAX_DEPTH:
            raise ApiError("invalid_request_error", f"the body is nested more than {MAX_DEPTH} levels deep")
        if isinstance(item, float) and not math.isfinite(item):
            raise invalid(_path(place), "Input should be a finite number")
        if isinstance(item, str) and not is_unicode(item):
            raise invalid(_path(place), "Input should be valid Unicode, but holds half of a surrogate pair")


def walk(value: Any) -> Iterator[tuple[Place, int, Any]]:
    """Every value and every key with its place and depth; a stack, because the depth is not yet known."""
    stack: list[tuple[Place, int, Any]] = [(None, 0, value)]
    while stack:
        place, depth, item = stack.pop()
        yield place, depth, item
        if depth > MAX_DEPTH:
            continue
        if isinstance(item, dict):
            for key, child in item.items():
                yield place, depth, key
                stack.append(((place, key), depth + 1, child))
        elif isinstance(item, list):
            stack.extend(((place, index), depth + 1, child) for index, child in enumerate(item))


def _path(place: Place) -> str:
    parts = []
    while place is not None:
        place, key = place
        parts.append(str(key))
    return ".".join(reversed(parts)) or "body"


def _first(error: ValidationError) -> ApiError:
    found = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in found["loc"])
    # Pydantic would also name our class, which tells a client nothing.
    message = "Input should be a valid dictionary" if found["type"] == "model_type" else found["msg"]
    return invalid(path, message)


def _short(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 3] + "..."
