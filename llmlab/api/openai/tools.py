"""Tools, tool choice and response format of a chat completion request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from llmlab.api.conversation import OutputFormat, Tool, ToolChoice
from llmlab.api.json_values import count_values
from llmlab.api.openai.problems import invalid, shorten
from llmlab.api.openai.schema import AllowedToolChoice, ChatRequest, FunctionTool, ResponseFormat, ToolReference

MAX_SCHEMA_VALUES = 10_000
"""Largest schema, in JSON values and keys: checking one against the standard takes a third of a millisecond a value."""
MAX_VALUES = 40_000
"""Of all schemas of a request together."""


def read_tools(request: ChatRequest) -> tuple[tuple[Tool, ...], ToolChoice]:
    """``(tools, tool choice)``. A choice of type ``allowed_tools`` keeps only the tools it names.

    Raises ``ApiError`` for a schema that is none, a name given twice, and a choice that names no tool.
    """
    tools = tuple(_tool(tool.function, f"tools[{i}].function") for i, tool in enumerate(request.tools or ()))
    _check_names(tools)
    _check_sizes(tools)
    for index, tool in enumerate(tools):
        _check_schema(tool.input_schema, f"tools[{index}].function.parameters")
    if not tools:
        _refuse_without_tools(request)
        return (), ToolChoice()
    parallel = request.parallel_tool_calls is not False
    if isinstance(request.tool_choice, AllowedToolChoice):
        return _allowed(tools, request.tool_choice, parallel)
    return tools, _choice(tools, request.tool_choice, parallel)


def read_format(wanted: ResponseFormat | None) -> OutputFormat | None:
    """``None`` for free text. Raises ``ApiError`` for a JSON Schema that is none."""
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return OutputFormat(None)
    if wanted.json_schema is None:
        raise invalid("response_format.json_schema", "it is needed when the type is json_schema")
    schema = wanted.json_schema.schema_
    if schema is not None:
        _check_size(schema, "response_format.json_schema.schema")
        _check_schema(schema, "response_format.json_schema.schema")
    return OutputFormat(schema)


def _tool(function: FunctionTool, path: str) -> Tool:
    schema = {"type": "object"} | (function.parameters or {})
    if schema["type"] != "object":
        raise invalid(f"{path}.parameters", "the type of a function's parameters must be 'object'")
    return Tool(function.name, function.description or "", schema, bool(function.strict))


def _check_schema(schema: Mapping[str, Any], path: str) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise invalid(path, f"it is not a JSON Schema: at {error.json_path}, {shorten(error.message)}") from error
    except Exception as error:  # what regular expressions raise on a hostile pattern is open
        raise invalid(path, f"it is not a JSON Schema: {shorten(str(error))}") from error


def _check_sizes(tools: tuple[Tool, ...]) -> None:
    sizes = [_check_size(tool.input_schema, f"tools[{i}].function.parameters") for i, tool in enumerate(tools)]
    if sum(sizes) > MAX_VALUES:
        raise invalid("tools", f"their parameters are more than {MAX_VALUES} JSON values and keys together")


def _check_size(schema: Mapping[str, Any], path: str) -> int:
    size = count_values(schema)
    if size > MAX_SCHEMA_VALUES:
        raise invalid(path, f"it has more than {MAX_SCHEMA_VALUES} JSON values and keys")
    return size


def _check_names(tools: tuple[Tool, ...]) -> None:
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise invalid(f"tools[{index}].function.name", f"two tools are called '{tool.name}'")
        seen.add(tool.name)


def _refuse_without_tools(request: ChatRequest) -> None:
    for name in ("tool_choice", "parallel_tool_calls"):
        if getattr(request, name) is not None:
            raise invalid(name, "it is only allowed together with tools")


def _choice(tools: tuple[Tool, ...], wanted: str | ToolReference | None, parallel: bool) -> ToolChoice:
    if isinstance(wanted, ToolReference):
        return ToolChoice("tool", _known(tools, wanted, "tool_choice.function.name"), parallel)
    return ToolChoice({"required": "any", "none": "none"}.get(wanted or "auto", "auto"), None, parallel)


def _allowed(tools: tuple[Tool, ...], wanted: AllowedToolChoice, parallel: bool) -> tuple[tuple[Tool, ...], ToolChoice]:
    path = "tool_choice.allowed_tools.tools[{}].function.name"
    names = {_known(tools, tool, path.format(i)) for i, tool in enumerate(wanted.allowed_tools.tools)}
    mode = "any" if wanted.allowed_tools.mode == "required" else "auto"
    return tuple(tool for tool in tools if tool.name in names), ToolChoice(mode, None, parallel)


def _known(tools: tuple[Tool, ...], wanted: ToolReference, path: str) -> str:
    name = wanted.function.name
    if all(tool.name != name for tool in tools):
        raise invalid(path, f"there is no tool '{shorten(name)}' in tools")
    return name
