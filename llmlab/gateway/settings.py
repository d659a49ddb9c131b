"""How one gateway behaves; every switch of ``llmlab serve`` that is not about the model."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

from llmlab.api.rules import Rules
from llmlab.errors import InvalidParameter
from llmlab.option_names import check_option_names

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of a gateway.

    ``host``, ``port``: where it listens; port 0 takes a free one. Any host but a loopback one needs ``keys_file``.
    ``keys_file``: one API key a line, optionally followed by a name and a service tier (``standard``, ``priority`` or
    ``batch``); without it nothing is asked. ``max_body_bytes``, ``max_depth``: limits of a request body and of its
    JSON nesting. ``requests_per_minute``, ``input_tokens_per_minute``, ``output_tokens_per_minute``: token-bucket
    rate limits per key, ``None`` for none. ``max_open``: requests open at the backends before new ones get 529.
    ``ping_s``: longest silence of a stream (s). ``drain_s``: how long a stop waits for open requests (s).
    ``routing``: how one of several backends of a model is chosen. ``fallback_model``: any unknown model name is
    served by the first model when true. ``overflow``: when input plus ``max_tokens`` exceed the context, refuse with
    the numbers (``refuse``), or serve and stop with ``model_context_window_exceeded`` (``stop``).
    ``cache_accounting``: count Anthropic cache reads by breakpoints (``breakpoints``) or as the engine's prefix cache
    had them (``engine``). ``min_cache_tokens``: shorter prefixes are silently not cached. ``thinking_budget``: tokens
    of an adaptive thinking phase. ``allow_faults``: honour the ``llmlab-fault`` request header, for teaching.
    ``rules``: validation switches.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    keys_file: Path | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    max_depth: int = 64
    requests_per_minute: int | None = None
    input_tokens_per_minute: int | None = None
    output_tokens_per_minute: int | None = None
    max_open: int = 64
    ping_s: float = 10.0
    drain_s: float = 10.0
    routing: Literal["round_robin", "least_loaded", "prefix_affine"] = "least_loaded"
    fallback_model: bool = True
    overflow: Literal["refuse", "stop"] = "refuse"
    cache_accounting: Literal["breakpoints", "engine"] = "breakpoints"
    min_cache_tokens: int = 64
    thinking_budget: int = 256
    allow_faults: bool = False
    rules: Rules = field(default_factory=Rules)

    @classmethod
    def from_kwargs(cls, **values: Any) -> Settings:
        """The constructor, but an unknown name raises ``InvalidParameter`` with what is known."""
        check_option_names(values, [each.name for each in fields(cls)], "a server")
        return cls(**values)

    def __post_init__(self) -> None:
        for name in ("routing", "overflow", "cache_accounting"):
            allowed = get_args(get_type_hints(Settings)[name])
            if getattr(self, name) not in allowed:
                raise InvalidParameter(f"{name}={getattr(self, name)!r} must be one of {', '.join(allowed)}")
        for name in ("requests_per_minute", "input_tokens_per_minute", "output_tokens_per_minute"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidParameter(f"{name}={getattr(self, name)!r} must be at least 1, or None for no limit")
        if not 0 <= self.port <= 65535:
            raise InvalidParameter(f"port={self.port!r} must be from 0 (any free one) to 65535")
        if self.drain_s < 0 or self.ping_s <= 0:
            raise InvalidParameter(f"drain_s={self.drain_s!r} must not be negative, ping_s={self.ping_s!r} above 0")
        if self.host not in LOOPBACK and self.keys_file is None:
            raise InvalidParameter(
                f"host={self.host!r} is reachable from outside: give keys_file (--keys FILE), or use 127.0.0.1"
            )
