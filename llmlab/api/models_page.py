"""``GET /v1/models``: one object per model and one page that both protocols' SDKs accept."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from llmlab.api.errors import ApiError

DEFAULT_LIMIT = 20
MAX_LIMIT = 1000


def model_object(
    id: str,
    created: int,
    *,
    owned_by: str = "llmlab",
    display_name: str | None = None,
    max_input_tokens: int | None = None,
    max_tokens: int | None = None,
) -> dict[str, Any]:
    """A model with both protocols' fields. ``created`` is in seconds since the epoch; token counts may be null."""
    return {
        "id": id,
        "object": "model",
        "created": created,
        "owned_by": owned_by,
        "type": "model",
        "display_name": display_name or id,
        "created_at": datetime.fromtimestamp(created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "lifecycle": "active",
        "max_input_tokens": max_input_tokens,
        "max_tokens": max_tokens,
    }


def find_model(models: Sequence[dict[str, Any]], id: str) -> dict[str, Any]:
    """The object of one model. Raises ``ApiError`` (404) for an unknown id."""
    for model in models:
        if model["id"] == id:
            return model
    known = ", ".join(model["id"] for model in models[:5]) or "none"
    shown = id if len(id) <= 80 else id[:77] + "..."
    message = f"The model '{shown}' does not exist here; known are: {known}"
    raise ApiError("not_found_error", message, param="model", code="model_not_found")


def models_page(
    models: Sequence[dict[str, Any]],
    limit: int | None = None,
    after_id: str | None = None,
    before_id: str | None = None,
) -> dict[str, Any]:
    """One page of a list of model objects, in Anthropic's and OpenAI's form at once.

    Without any paging argument the page holds everything, as OpenAI's list does; with one, ``limit`` is from 1 to 1000
    and 20 unless given. ``after_id`` and ``before_id`` exclude the model they name. Raises ``ApiError``.
    """
    if limit is None and after_id is None and before_id is None:
        return _page(models, False)
    return _slice(models, _checked_limit(limit), after_id, before_id)


def _checked_limit(limit: int | None) -> int:
    wanted = DEFAULT_LIMIT if limit is None else limit
    if not 1 <= wanted <= MAX_LIMIT:
        raise ApiError("invalid_request_error", f"limit: it must be from 1 to {MAX_LIMIT}", param="limit")
    return wanted


def _slice(models: Sequence[dict[str, Any]], limit: int, after: str | None, before: str | None) -> dict[str, Any]:
    if after is not None and before is not None:
        raise ApiError("invalid_request_error", "after_id and before_id cannot be given together", param="before_id")
    if before is not None:
        end = _position(models, before, "before_id")
        start = max(0, end - limit)
        return _page(models[start:end], start > 0)
    start = 0 if after is None else _position(models, after, "after_id") + 1
    return _page(models[start : start + limit], len(models) > start + limit)


def _position(models: Sequence[dict[str, Any]], id: str, param: str) -> int:
    for index, model in enumerate(models):
        if model["id"] == id:
            return index
    raise ApiError("invalid_request_error", f"{param}: no model has this id", param=param)


def _page(models: Sequence[dict[str, Any]], has_more: bool) -> dict[str, Any]:
    return {
        "object": "list",
        "data": list(models),
        "has_more": has_more,
        "first_id": models[0]["id"] if models else None,
        "last_id": models[-1]["id"] if models else None,
    }
