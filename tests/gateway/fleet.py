"""Gateways in front of real servers on the model without weights, and the public SDKs in strict mode."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import anthropic
import openai

import llmlab
from llmlab.gateway.app import Gateway
from llmlab.gateway.server import Server
from llmlab.gateway.settings import Settings
from llmlab.gateway.upstream import UpstreamBackend
from llmlab.lab import Lab
from llmlab.trace.events import Stage
from llmlab.trace.recorder import Recorder

MESSAGES = [{"role": "user", "content": "hello"}]
NUMBER = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}
TOOL = {"name": "note", "description": "Notes it.", "input_schema": NUMBER}
FUNCTION = {"type": "function", "function": {"name": "note", "description": "Notes it.", "parameters": NUMBER}}


@dataclass
class Fleet:
    """``front`` has no engine; ``servers`` are its upstreams and ``labs`` their engines."""

    front: Server
    servers: list[Server]
    labs: list[Lab]

    def stages(self, name: str) -> list[Stage]:
        """Recorded by the front, in order."""
        events = self.front.gateway.recorder.snapshot()
        return [event for event in events if isinstance(event, Stage) and event.name == name]


@contextmanager
def fleet(labs: list[Lab], **settings) -> Iterator[Fleet]:
    """A gateway on a server for each lab."""
    with ExitStack() as stack:
        servers = [stack.enter_context(lab.serve(drain_s=0)) for lab in labs]
        front = stack.enter_context(front_of(*(server.url for server in servers), **settings))
        yield Fleet(front, servers, labs)


def front_of(*urls: str, **settings) -> Server:
    """A gateway on those upstreams alone, not started."""
    recorder = Recorder()
    backends = [UpstreamBackend(url, recorder=recorder) for url in urls]
    return Server(Gateway(backends, Settings(**{"port": 0, "drain_s": 0} | settings), recorder))


@contextmanager
def two_labs() -> Iterator[list[Lab]]:
    """Two engines."""
    with llmlab.open("mock") as one, llmlab.open("mock") as two:
        yield [one, two]


def claude(url: str, **options) -> anthropic.Anthropic:
    """Anthropic's SDK, which checks every response and does not try again."""
    settings = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True} | options
    return anthropic.Anthropic(base_url=url, **settings)


def chat(url: str, **options) -> openai.OpenAI:
    """OpenAI's SDK, likewise."""
    settings = {"api_key": "none", "max_retries": 0, "_strict_response_validation": True} | options
    return openai.OpenAI(base_url=f"{url}/v1", **settings)


def ask(client: anthropic.Anthropic, **changes):
    """A small message with its response."""
    body = {"model": "mock", "max_tokens": 12, "messages": MESSAGES} | changes
    return client.messages.with_raw_response.create(**body)


def backends_of(client: anthropic.Anthropic, count: int, **changes) -> list[str]:
    """Who served each of ``count`` requests."""
    return [ask(client, **changes).headers["llmlab-backend"] for _ in range(count)]


def wait_for(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Until it holds; fails when it does not within ``seconds``."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()
