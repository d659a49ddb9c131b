"""Running what a model asks for: look up, check the arguments, run, and turn every failure into a result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from os import PathLike
from typing import Any

from jsonschema import Draft202012Validator, SchemaError, ValidationError
from jsonschema.exceptions import best_match
from referencing import Registry
from referencing.exceptions import Unresolvable

from llmlab.client.calculator import calculate
from llmlab.client.compaction import ReadTracker
from llmlab.client.file_tools import Root
from llmlab.client.tool import LocalTool, ToolFailed
from llmlab.errors import InvalidParameter

MAX_RESULT_CHARS = 100_000
MAX_ARGUMENT_CHARS = 120
"""Of a path or an expression: a small model held to the schema may otherwise go on with one for ever."""


class Toolbox:
    """Tools by name. The order in which they were given is that of the built-in prefix.

    Raises ``InvalidParameter`` for what is no ``LocalTool``, two tools of one name and a schema that is not one.
    """

    def __init__(self, tools: Iterable[LocalTool]) -> None:
        self._tools: dict[str, LocalTool] = {}
        for tool in tool_list(tools):
            self._add(tool)

    def _add(self, tool: LocalTool) -> None:
        if tool.name in self._tools:
            raise InvalidParameter(f"two tools are called {tool.name!r}")
        try:
            Draft202012Validator.check_schema(tool.schema)
        except SchemaError as error:
            raise InvalidParameter(f"the schema of {tool.name!r} is not a JSON Schema: {error.message}") from None
        self._tools[tool.name] = tool

    @property
    def names(self) -> tuple[str, ...]:
        """Names in order."""
        return tuple(self._tools)

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools as a request announces them."""
        return [tool.definition for tool in self._tools.values()]

    def run(self, tool_use: Mapping[str, Any]) -> dict[str, Any]:
        """The ``tool_result`` block for a ``tool_use`` block. Never raises for what a model wrote."""
        try:
            content = self._run(tool_use)
        except ToolFailed as error:
            return _result(tool_use, str(error), is_error=True)
        return _result(tool_use, content, is_error=False)

    def _run(self, tool_use: Mapping[str, Any]) -> str:
        tool = self._tools.get(str(tool_use.get("name")))
        if tool is None:
            raise ToolFailed(f"there is no tool {tool_use.get('name')!r}; there are: {', '.join(self._tools)}")
        arguments = checked_arguments(tool, tool_use)
        try:
            return str(tool.run(**arguments))
        except ToolFailed:
            raise
        except Exception as error:  # a tool's own bug must not end the conversation
            raise ToolFailed(f"{tool.name} failed: {type(error).__name__}: {error}") from error


def tool_list(tools: Iterable[LocalTool]) -> list[LocalTool]:
    """The tools, each of which must be one. Raises ``InvalidParameter`` saying how to make one of a function."""
    if callable(tools) or isinstance(tools, str | Mapping | LocalTool) or not isinstance(tools, Iterable):
        raise InvalidParameter(f"tools={tools!r} must be a list of LocalTool: put it into one")
    found = list(tools)
    for tool in found:
        if not isinstance(tool, LocalTool):
            name = getattr(tool, "__name__", "name")
            made = f"LocalTool({name!r}, description, schema, function)"
            raise InvalidParameter(
                f"{tool!r} is not a LocalTool: give {made}, where schema is a JSON Schema of an object"
            )
    return found


def checked_arguments(tool: LocalTool, tool_use: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, if they are complete and match the schema; raises ``ToolFailed`` otherwise."""
    arguments = tool_use.get("input")
    if tool_use.get("partial_json") is not None or not isinstance(arguments, dict):
        raise ToolFailed("the arguments are incomplete, so the tool was not run")
    try:
        checker = Draft202012Validator(tool.schema, registry=Registry())  # without it, a $ref would be fetched
        problem = best_match(checker.iter_errors(arguments))
    except (RecursionError, Unresolvable) as error:
        raise ToolFailed(f"the arguments could not be checked: {type(error).__name__}") from None
    if problem is not None:
        raise ToolFailed(_sentence(problem))
    return arguments


def _sentence(problem: ValidationError) -> str:
    where = ".".join(map(str, problem.absolute_path))
    return f"invalid arguments{f' at {where}' if where else ''}: {problem.message[:500]}"


def _result(tool_use: Mapping[str, Any], content: str, *, is_error: bool) -> dict[str, Any]:
    if len(content) > MAX_RESULT_CHARS:
        content = content[:MAX_RESULT_CHARS] + f"\n[cut after {MAX_RESULT_CHARS} characters]"
    result = {"type": "tool_result", "tool_use_id": tool_use.get("id", ""), "content": content}
    return result | {"is_error": True} if is_error else result


# -- the tools every lab has ---------------------------------------------------------------------------------


def _schema(required: tuple[str, ...] = (), **properties: str) -> dict[str, Any]:
    """An object of short strings with the given descriptions, and nothing else in it."""
    short = {"type": "string", "maxLength": MAX_ARGUMENT_CHARS}
    return {
        "type": "object",
        "properties": {name: short | {"description": text} for name, text in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }


def calculator_tool() -> LocalTool:
    """Arithmetic on numbers."""
    schema = _schema(("expression",), expression="Numbers, parentheses and + - * / // % **, such as (3 + 4) * 2")
    return LocalTool("calculator", "Compute an arithmetic expression exactly.", schema, _calculate)


def _calculate(expression: str) -> str:
    return str(calculate(expression))


def read_file_tool(root: Root, reads: ReadTracker | None = None) -> LocalTool:
    """A text file under ``root``; each read is noted in ``reads``."""
    schema = _schema(("path",), path="Path of the file, relative to the project folder")
    return LocalTool("read_file", "Read a UTF-8 text file of the project.", schema, partial(_read, root, reads))


def _read(root: Root, reads: ReadTracker | None, path: str) -> str:
    text = root.read_file(path)
    if reads is not None:
        reads.read(root.resolve(path).relative_to(root.path).as_posix())
    return text


def list_folder_tool(root: Root) -> LocalTool:
    """Names in a folder under ``root``."""
    schema = _schema(path="Path of the folder, relative to the project folder; the project folder itself if left out")
    return LocalTool("list_folder", "List the files and folders in a folder of the project.", schema, root.list_folder)


def local_tools(root: str | PathLike[str] | None = None, reads: ReadTracker | None = None) -> list[LocalTool]:
    """The calculator and, given a folder, the two that read under it."""
    if root is None:
        return [calculator_tool()]
    below = Root(root)
    return [calculator_tool(), read_file_tool(below, reads), list_folder_tool(below)]
