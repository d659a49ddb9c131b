"""Identifiers that go over the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from llmlab.api import ids


@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (ids.message_id, "msg_"),
        (ids.tool_use_id, "toolu_"),
        (ids.request_id, "req_"),
        (ids.completion_id, "chatcmpl-"),
        (ids.call_id, "call_"),
    ],
)
def test_ids_have_their_prefix_and_do_not_repeat(make: Callable[[], str], prefix: str) -> None:
    found = {make() for _ in range(200)}
    assert len(found) == 200
    for value in found:
        tail = value.removeprefix(prefix)
        assert (value, len(tail), tail.isalnum() and tail.isascii()) == (prefix + tail, 24, True)
