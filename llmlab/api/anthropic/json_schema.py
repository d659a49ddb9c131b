"""JSON Schemas that come with a request. They are untrusted: nothing is fetched, and the work is bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.protocols import Validator
from jsonschema.validators import extend, validator_for
from referencing import Registry

from llmlab.api.anthropic.validate import invalid, walk
from llmlab.api.json_values import count_values

MAX_VALUES = 10_000
"""Largest schema, in JSON values and keys."""
MAX_EXAMPLE_VALUES = 500
"""Largest example: checking it can take the product of both sizes, or the square of its own."""
MAX_REFERENCES = 1000
"""References followed for one example: a small schema of nested references can ask for 2**n of them."""
NOT_TRIED = ("pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties")
"""Keywords left out for examples: a hostile pattern takes Python's backtracking ``re`` for ever, and the last two
search through references and patterns on their own."""

Keyword = Callable[..., Iterator[ValidationError] | None]


def check_schema(schema: Mapping[str, Any], path: str) -> None:
    """Raise ``ApiError`` unless ``schema`` is a JSON Schema of the draft it names, 2020-12 by default."""
    _check_size(schema, MAX_VALUES, path)
    try:
        _draft(schema).check_schema(schema)
    except SchemaError as error:
        raise invalid(".".join([path, *map(str, error.absolute_path)]), error.message) from None
    except Exception as error:  # What the library and its regular expressions raise on a hostile schema is open.
        raise invalid(path, f"JSON schema is invalid: {error}") from None


def check_example(example: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> None:
    """Raise ``ApiError`` unless ``example`` satisfies ``schema``, the keywords of :data:`NOT_TRIED` apart."""
    _check_size(example, MAX_EXAMPLE_VALUES, path)
    inner = {name: value for name, value in schema.items() if name != "$schema"}
    # A schema inside that names its own draft would be checked by that draft's unbounded keywords.
    if any(isinstance(item, dict) and isinstance(item.get("$schema"), str) for _, _, item in walk(inner)):
        raise invalid(path, "cannot be checked: a part of input_schema names a $schema of its own")
    try:
        error = best_match(_bounded(_draft(schema))(inner, registry=Registry()).iter_errors(example))
    except Exception as failure:  # As above; a reference to elsewhere and one too many end here too.
        raise invalid(path, f"cannot be checked against input_schema: {failure}") from None
    if error is not None:
        raise invalid(path, f"does not satisfy input_schema: {error.message}")


def _check_size(value: Any, limit: int, path: str) -> None:
    if count_values(value) > limit:
        raise invalid(path, f"more than {limit} JSON values and keys; make it smaller")


def _draft(schema: Mapping[str, Any]) -> type[Validator]:
    named = schema.get("$schema")
    return validator_for(schema, default=Draft202012Validator) if isinstance(named, str) else Draft202012Validator


def _bounded(draft: type[Validator]) -> type[Validator]:
    """The draft's validator, for one use: it follows ``MAX_REFERENCES`` references."""
    left = MAX_REFERENCES

    def counted(keyword: Keyword) -> Keyword:
        def follow(*arguments: Any) -> Iterator[ValidationError]:
            nonlocal left
            left -= 1
            if left < 0:
                raise RecursionError(f"more than {MAX_REFERENCES} references")
            yield from keyword(*arguments) or ()

        return follow

    known = draft.VALIDATORS
    changed = {name: counted(known[name]) for name in ("$ref", "$dynamicRef", "$recursiveRef") if name in known}
    changed |= dict.fromkeys(NOT_TRIED, _no_errors)
    return extend(draft, changed | {"additionalProperties": _without_patterns(known["additionalProperties"])})


def _without_patterns(keyword: Keyword) -> Keyword:
    def additional(validator: Validator, value: Any, instance: Any, schema: Mapping[str, Any]) -> Any:
        return () if "patternProperties" in schema else keyword(validator, value, instance, schema)

    return additional


def _no_errors(*_: Any) -> tuple[()]:
    return ()
