"""A pydantic-ai agent with one tool, over either protocol; prints what happened as one JSON object."""

import json
import sys

from pydantic_ai import Agent, UsageLimits
from pydantic_ai.exceptions import UnexpectedModelBehavior, UsageLimitExceeded
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, protocol, name = sys.argv[1:4]
if protocol == "anthropic":
    model = AnthropicModel(name, provider=AnthropicProvider(base_url=url, api_key="x"))
else:
    model = OpenAIChatModel(name, provider=OpenAIProvider(base_url=url + "/v1", api_key="x"))
calls = []


def weather(city: str) -> str:
    """The weather of a city."""
    calls.append(city)
    return "21 degrees"


plain = Agent(model, model_settings={"max_tokens": 40}).run_sync("hello")
agent = Agent(model, tools=[weather], output_type=int, model_settings={"max_tokens": 400})
try:
    result = agent.run_sync("What is the weather in Rome?", usage_limits=UsageLimits(request_limit=3))
    outcome, messages = result.output, result.all_messages()
except (UnexpectedModelBehavior, UsageLimitExceeded) as error:
    outcome, messages = type(error).__name__, []
tool_calls = [
    p.tool_name for m in messages if isinstance(m, ModelResponse) for p in m.parts if isinstance(p, ToolCallPart)
]
print(
    json.dumps(
        {
            "text": plain.output,
            "input_tokens": plain.usage.input_tokens,
            "output_tokens": plain.usage.output_tokens,
            "outcome": outcome,
            "weather_calls": len(calls),
            "tool_calls": tool_calls,
        }
    )
)
