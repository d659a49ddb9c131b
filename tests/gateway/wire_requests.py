"""Asking a running server over a real socket, in either protocol."""

from __future__ import annotations

import json

import httpx2

MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


def post(server, path: str, **fields) -> httpx2.Response:
    """Send a small request with ``fields`` changed."""
    body = {"model": "m", "max_tokens": 5, "messages": HELLO} | fields
    return httpx2.post(f"{server.url}{path}", json=body, timeout=30)


def answer(server, path: str, **fields) -> dict:
    """The body of a response, which must be a success."""
    response = post(server, path, **fields)
    assert response.status_code == 200, response.text
    return response.json()


def count(server, **fields) -> dict:
    """The body of a response of ``count_tokens``."""
    response = httpx2.post(f"{server.url}{MESSAGES}/count_tokens", json={"model": "m", "messages": HELLO} | fields)
    assert response.status_code == 200, response.text
    return response.json()


def prompt_of(usage: dict) -> int:
    """All prompt tokens of an Anthropic usage object."""
    return usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]


def frames_of(text: str) -> list[dict]:
    """The JSON of every frame of a stream."""
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
