"""OpenAI's Chat Completions: the request schema, its reading, and the frames and bodies of the replies."""

from llmlab.api.openai.codec import OpenAICodec

__all__ = ["OpenAICodec"]
