"""Tools and the choice among them (article A, sections 2.7 and 2.8)."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.api.anthropic.content import marker
from llmlab.api.anthropic.json_schema import check_example, check_schema
from llmlab.api.anthropic.schema import BuiltInTool, ChoiceNone, ChoiceTool, CustomTool, ToolChoiceUnion, ToolUnion
from llmlab.api.anthropic.validate import invalid
from llmlab.api.conversation import Tool, ToolChoice
from llmlab.api.errors import ApiError
from llmlab.api.json_values import count_values

SERVER_TOOLS = ("web_search", "web_fetch", "code_execution", "tool_search_tool", "advisor", "mcp_toolset")
MAX_VALUES = 40_000
"""Of all input schemas of a request together, in JSON values and keys; each costs a third of a millisecond."""
CLIENT_TOOLS = ("bash", "text_editor", "computer", "memory", "browser_toolset")


def read_tools(tools: Sequence[ToolUnion]) -> tuple[Tool, ...]:
    """The tools in their order. Raises ``ApiError`` for one that cannot be served, and for two of one name."""
    _check_sizes(tools)
    names: set[str] = set()
    for index, tool in enumerate(tools):
        if isinstance(tool, BuiltInTool):
            raise _built_in(f"tools.{index}.type", tool.type)
        if tool.name in names:
            raise invalid("tools", f"Tool names must be unique, but {tool.name!r} is there twice")
        names.add(tool.name)
        _check_schemas(tool, f"tools.{index}.custom")
    return tuple(
        Tool(tool.name, tool.description, tool.input_schema, tool.strict, marker(tool.cache_control)) for tool in tools
    )


def read_choice(choice: ToolChoiceUnion | None, tools: Sequence[Tool]) -> ToolChoice:
    """Who decides about calls: the model when there are tools, unless the request says otherwise."""
    if choice is None:
        return ToolChoice("auto" if tools else "none")
    if isinstance(choice, ChoiceNone):
        return ToolChoice("none")
    if not tools and choice.type != "auto":
        raise invalid("tool_choice", f"{choice.type!r} needs tools to choose from; send tools too")
    name = choice.name if isinstance(choice, ChoiceTool) else None
    if name is not None and name not in [tool.name for tool in tools]:
        raise invalid("tool_choice.tool.name", f"Tool {name!r} not found in provided tools")
    return ToolChoice(choice.type, name, parallel=not choice.disable_parallel_tool_use)


def ignored_fields(tools: Sequence[ToolUnion]) -> list[str]:
    """Paths of fields that say how a provider loads, calls or streams a tool, and of examples no prompt shows."""
    names = ("input_examples", "eager_input_streaming", "defer_loading", "allowed_callers")
    return [
        f"tools.{index}.{name}"
        for index, tool in enumerate(tools)
        if isinstance(tool, CustomTool)
        for name in names
        if getattr(tool, name)
    ]


def _check_sizes(tools: Sequence[ToolUnion]) -> None:
    if sum(count_values(tool.input_schema) for tool in tools if isinstance(tool, CustomTool)) > MAX_VALUES:
        raise invalid("tools", f"their input schemas are more than {MAX_VALUES} JSON values and keys together")


def _check_schemas(tool: CustomTool, path: str) -> None:
    schema = tool.input_schema
    if schema.get("type") != "object":
        raise invalid(f"{path}.input_schema.type", "Input should be 'object'")
    check_schema(schema, f"{path}.input_schema")
    for index, example in enumerate(tool.input_examples):
        check_example(example, schema, f"{path}.input_examples.{index}")


def _built_in(path: str, kind: str) -> ApiError:
    if kind.startswith(SERVER_TOOLS):
        return invalid(path, f"{kind!r} runs on a provider's servers, not here; run it yourself as a custom tool")
    if kind.startswith(CLIENT_TOOLS):
        return invalid(path, f"{kind!r} is known to hosted models only; describe it as a custom tool with input_schema")
    return invalid(path, f"{kind!r} is not a type of tool; leave type out, or use 'custom'")
