"""Events to JSON objects and back, checked field by field against the events' type annotations.

``{"type": "Step", "t_ns": ..., ...}``. Tuples are JSON arrays. A float that JSON has no number for is one of
the strings ``"NaN"``, ``"Infinity"``, ``"-Infinity"``. Fields that are dicts (parameters, usage, versions)
come back as JSON knows them: string keys, lists for tuples. Nothing in a file is executed or imported.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from llmlab.errors import TraceFormatError
from llmlab.trace.events import EVENT_TYPES, Event

NON_FINITE = ("NaN", "Infinity", "-Infinity")

MAX_INT = 2**63 - 1
MAX_COUNT = 2**31 - 1
"""Numbers that tables add and multiply; times, sizes and priorities may be up to ``MAX_INT``."""
_BITS = {MAX_INT: 64, MAX_COUNT: 32}
LARGE = ("_ns", "size", "nbytes", "dropped", "priority")
"""How the names of fields end that may hold more than ``MAX_COUNT``."""

Decoder = Callable[[Any], Any]


# -- to JSON -------------------------------------------------------------------------------------------------


def encode(event: Event) -> str:
    """One line of strict ASCII JSON, so that lone surrogates survive as escapes."""
    data = {"type": type(event).__name__, **_fields(event)}
    try:
        return _dumps(data)
    except ValueError:  # NaN or infinity: rare enough to look for only now
        return _dumps(_finite(data))


def _dumps(data: dict[str, Any]) -> str:
    return json.dumps(data, default=_fields, allow_nan=False, separators=(",", ":"))


def _fields(record: Any) -> dict[str, Any]:
    if not is_dataclass(record):
        raise TypeError(f"{type(record).__name__} cannot be part of a trace")
    return {f.name: getattr(record, f.name) for f in fields(record)}


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if is_dataclass(value):
        return _finite(_fields(value))
    if isinstance(value, dict):
        return {key: _finite(v) for key, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, (list, tuple)) else value


# -- from JSON -----------------------------------------------------------------------------------------------


def parse(line: bytes | str) -> dict[str, Any]:
    """One JSON object; raises ``TraceFormatError`` for anything else."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceFormatError(f"a line is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise TraceFormatError(f"a line is a JSON {type(data).__name__}, not an object")
    return data


def decode(data: dict[str, Any]) -> Event:
    """The event of one JSON object; raises ``TraceFormatError`` for an unknown type or misfit field."""
    kinds = {kind.__name__: kind for kind in EVENT_TYPES}
    name = data.pop("type", None)
    if not isinstance(name, str) or name not in kinds:
        raise TraceFormatError(f"event type {name!r} is unknown: this version knows {', '.join(kinds)}")
    return _record(kinds[name], data)


def _record(kind: type, data: Any) -> Any:
    decoders, required = _decoders(kind)
    _require(isinstance(data, dict), kind.__name__, data)
    if not required <= data.keys() <= decoders.keys():
        wrong = sorted((required - data.keys()) | (data.keys() - decoders.keys()))
        raise TraceFormatError(f"{kind.__name__}: fields missing or unknown: {', '.join(wrong)}")
    try:
        return kind(**{name: decoders[name](value) for name, value in data.items()})
    except TraceFormatError as error:
        raise TraceFormatError(f"{kind.__name__}: {error}") from None


@cache
def _decoders(kind: type) -> tuple[dict[str, Decoder], frozenset[str]]:
    """Decoders of a record's fields, and the names of those without a default."""
    hints = get_type_hints(kind)
    required = frozenset(f.name for f in fields(kind) if f.default is MISSING)
    return {f.name: _decoder(hints[f.name], _most(f.name)) for f in fields(kind)}, required


def _most(name: str) -> int:
    return MAX_INT if name.endswith(LARGE) and name != "block_size" else MAX_COUNT


def _decoder(hint: Any, most: int) -> Decoder:
    if is_dataclass(hint):
        return lambda value: _record(hint, value)
    if hint is float:
        return _float
    if get_origin(hint) is tuple:
        return _tuple_decoder(get_args(hint), most)
    if get_origin(hint) is dict:
        return _dict_decoder(get_args(hint)[1], most)
    kinds = get_args(hint) if isinstance(hint, UnionType) else (get_origin(hint) or hint,)
    return lambda value: _scalar(value, kinds, most)


def _tuple_decoder(args: tuple[Any, ...], most: int) -> Decoder:
    if args[-1] is Ellipsis:
        item = _decoder(args[0], most)
        return lambda value: tuple(map(item, _list(value)))
    items = [_decoder(arg, most) for arg in args]
    return lambda value: tuple(item(v) for item, v in zip(items, _list(value, len(items)), strict=True))


def _dict_decoder(values: Any, most: int) -> Decoder:
    item = _decoder(values, most)

    def decode_dict(data: Any) -> dict[str, Any]:
        _require(isinstance(data, dict), "an object", data)
        return {key: item(value) for key, value in data.items()}

    return decode_dict


def _scalar(value: Any, kinds: tuple[type, ...], most: int) -> Any:
    # exact types: a JSON true must not pass for the number 1
    _require(type(value) in kinds, " or ".join(kind.__name__ for kind in kinds), value)
    _require(type(value) is not int or -most <= value <= most, f"an integer of {_BITS[most]} bits", value)
    return value


def _float(value: Any) -> float:
    is_number = type(value) in (int, float) or (type(value) is str and value in NON_FINITE)
    _require(is_number, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise TraceFormatError("an integer is too large for a float") from None


def _list(value: Any, length: int | None = None) -> list:
    _require(isinstance(value, list) and length in (None, len(value)), "an array", value)
    return value


def _require(condition: bool, expected: str, value: Any) -> None:
    if not condition:
        raise TraceFormatError(f"expected {expected}, found {repr(value)[:80]}")
