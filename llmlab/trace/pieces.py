"""The bytes of the tokens a trace mentions, so that it can be read without a tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from llmlab.errors import TraceFormatError
from llmlab.trace.events import Captured, DraftRound, Event, PromptLogprobs, RequestFinished, RequestSubmitted, Token

TOKEN_ARRAYS = frozenset({"lens_top", "neighbours", "distribution_ids"})
"""Kinds of captured arrays whose numbers are token ids."""
MAX_DIGITS = 10


def mentioned(
    events: Iterable[Event], arrays: Mapping[str, np.ndarray], pieces: Mapping[int, bytes]
) -> dict[int, bytes]:
    """Those of ``pieces`` whose token ids occur in the events or in their arrays, by ascending id."""
    found = set(chain.from_iterable(_ids(event, arrays) for event in events))
    return {token_id: piece for token_id in sorted(found) if (piece := pieces.get(token_id)) is not None}


def _ids(event: Event, arrays: Mapping[str, np.ndarray]) -> Iterable[int]:
    match event:
        case Token():
            return (event.token_id, *(token_id for token_id, _ in event.top))
        case RequestSubmitted():
            return event.prompt_token_ids
        case PromptLogprobs():
            return (token_id for top in event.top for token_id, _ in top)
        case DraftRound():
            return (*event.tokens, event.token_id)
        case RequestFinished():
            return (event.stop_sequence,) if isinstance(event.stop_sequence, int) else ()
        case Captured():
            return _captured_ids(event, arrays)
    return ()


def _captured_ids(event: Captured, arrays: Mapping[str, np.ndarray]) -> Iterator[int]:
    if "target" in event.dims:
        yield from event.labels
    if event.kind in TOKEN_ARRAYS and event.array_id in arrays:
        yield from np.unique(arrays[event.array_id]).tolist()


def to_json(pieces: Mapping[int, bytes]) -> dict[str, str]:
    """Token ids to their bytes, each byte as the character of that number."""
    return {str(token_id): piece.decode("latin-1") for token_id, piece in pieces.items()}


def from_json(data: Any) -> dict[int, bytes]:
    """What :func:`to_json` wrote. Raises ``TraceFormatError`` for anything else."""
    if not isinstance(data, dict):
        raise TraceFormatError("'pieces' in the header must be an object: token ids and their bytes")
    return dict(_piece(key, value) for key, value in data.items())


def _piece(key: str, value: Any) -> tuple[int, bytes]:
    if not (key.isascii() and key.isdecimal() and len(key) <= MAX_DIGITS):
        raise TraceFormatError(f"'pieces' in the header: {key[:40]!r} is no token id")
    try:
        return int(key), value.encode("latin-1")
    except (AttributeError, UnicodeEncodeError):
        raise TraceFormatError(f"'pieces' in the header: token {key} has no bytes but {repr(value)[:40]}") from None
