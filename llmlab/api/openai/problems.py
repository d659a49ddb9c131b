"""Refusals of a request, in OpenAI's manner: what is wrong, with the path of the field as ``param``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from llmlab.api.errors import ApiError

MAX_NAME = 80
"""Characters of a client's own words that an error message repeats."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "bool_type": "a boolean",
        "dict_type": "an object",
        "float_type": "a number",
        "int_type": "an integer",
        "list_type": "an array",
        "model_type": "an object",
        "string_type": "a string",
    }
)
"""Pydantic's names of type errors, and what JSON calls the type that was expected."""


def invalid(param: str | None, reason: str, code: str | None = "invalid_value") -> ApiError:
    """400: the field has the right type, but a value that cannot be used."""
    where = f"Invalid value for '{param}'" if param else "Invalid request body"
    return ApiError("invalid_request_error", f"{where}: {reason}.", param=param, code=code)


def shorten(text: str) -> str:
    """``text``, cut to what an error message may repeat."""
    return text if len(text) <= MAX_NAME else text[: MAX_NAME - 3] + "..."


def from_pydantic(error: ValidationError) -> ApiError:
    """The first thing that was wrong, as an ``ApiError``."""
    found = error.errors(include_url=False, include_input=True, include_context=False)[0]
    kind, location = found["type"], found["loc"]
    param = _path(location, keep_last=kind == "extra_forbidden")
    if kind == "missing":
        return _refusal(f"Missing required parameter: '{param}'.", param, "missing_required_parameter")
    if kind == "extra_forbidden" and len(location) == 1:
        return _refusal(f"Unrecognized request argument supplied: {param}", param, None)
    if kind == "extra_forbidden":
        return _refusal(f"Unknown parameter: '{param}'.", param, "unknown_parameter")
    if kind.endswith("_type"):
        return _wrong_type(param, found)
    return invalid(param, _lower_first(found["msg"]).replace(" after validation", ""))


def _refusal(message: str, param: str, code: str | None) -> ApiError:
    return ApiError("invalid_request_error", message, param=param, code=code)


def _wrong_type(param: str, found: Any) -> ApiError:
    if not param:
        return ApiError("invalid_request_error", f"Invalid request body: it must be a JSON object, not {_kind(found)}.")
    wanted = TYPES.get(found["type"], "another type")
    either = "a string or " if found["loc"][-1] == "<other>" else ""
    message = f"Invalid type for '{param}': expected {either}{wanted}, but got {_kind(found)} instead."
    return _refusal(message, param, "invalid_type")


def _kind(found: Any) -> str:
    value = found["input"]
    if value is None or isinstance(value, bool):
        return "null" if value is None else "a boolean"
    kinds = ((str, "a string"), (int, "an integer"), (float, "a number"), (list, "an array"), (dict, "an object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "something else")


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _path(location: Iterable[int | str], keep_last: bool) -> str:
    """``("messages", 0, "<user>", "content")`` as ``messages[0].content``: a union's tag is left out."""
    parts = list(location)
    path = ""
    for number, part in enumerate(parts):
        is_last = keep_last and number == len(parts) - 1
        if isinstance(part, int):
            path += f"[{part}]"
        elif is_last or not (part.startswith("<") and part.endswith(">")):
            path += ("." if path else "") + shorten(part)
    return path
