"""Anthropic's Messages API: requests to the internal form, replies to its events and messages."""

from llmlab.api.anthropic.caching import place_automatic
from llmlab.api.anthropic.codec import AnthropicCodec

__all__ = ["AnthropicCodec", "place_automatic"]
