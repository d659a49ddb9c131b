"""One tool that runs on this machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from llmlab.errors import LabError


class ToolFailed(LabError, RuntimeError):
    """A tool could not do what it was asked; the message is for the model, which may try again."""


@dataclass(frozen=True, slots=True)
class LocalTool:
    """``run`` takes the checked arguments as keywords and returns text. ``schema`` is a JSON Schema of type object.

    ``run`` raises :class:`ToolFailed` for what the model can put right.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    run: Callable[..., str]

    @property
    def definition(self) -> dict[str, Any]:
        """The tool as a request announces it."""
        return {"name": self.name, "description": self.description, "input_schema": dict(self.schema)}
