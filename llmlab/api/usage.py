"""One ledger of tokens per request, and the two protocols' views of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request. Every prompt token is in exactly one of the first four fields.

    ``uncached``: prompt tokens neither read from nor written to the prompt cache. ``cache_read``: served from it.
    ``cache_write_5m``, ``cache_write_1h``: computed and kept for later. ``output``: everything generated, thinking
    included, an ending EOS too. ``thinking``: the part of it inside thinking blocks. ``engine_cached``: prompt tokens
    the engine's prefix cache really held, whatever the request's breakpoints allowed to be counted (never on the wire).
    """

    uncached: int
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    thinking: int = 0
    engine_cached: int = 0

    @property
    def prompt(self) -> int:
        """All prompt tokens."""
        return self.uncached + self.cache_read + self.cache_write_5m + self.cache_write_1h

    def anthropic(self) -> dict[str, Any]:
        """Anthropic counts: ``input_tokens`` excludes what was read from or written to the cache."""
        return {
            "input_tokens": self.uncached,
            "cache_creation_input_tokens": self.cache_write_5m + self.cache_write_1h,
            "cache_read_input_tokens": self.cache_read,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.cache_write_5m,
                "ephemeral_1h_input_tokens": self.cache_write_1h,
            },
            "output_tokens": self.output,
            "output_tokens_details": {"thinking_tokens": self.thinking},
        }

    def openai(self) -> dict[str, Any]:
        """OpenAI counts: ``prompt_tokens`` includes what was read from the cache."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cache_read},
            "completion_tokens_details": {"reasoning_tokens": self.thinking},
        }
