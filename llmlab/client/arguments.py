"""Tool arguments arrive as fragments of a JSON text: two ways of putting them together, and what each costs."""

from __future__ import annotations

import json
from typing import Any

from llmlab.errors import LabError


class IncompleteArguments(LabError, ValueError):
    """The text of a tool's arguments is not a whole JSON object, so the tool must not run. ``text`` is what came."""

    def __init__(self, text: str, why: str) -> None:
        super().__init__(f"tool arguments are not a complete JSON object ({why}); do not run the tool")
        self.text = text


def parse_arguments(text: str) -> dict[str, Any]:
    """The arguments in ``text``; empty text, which a tool without parameters gets, is ``{}``.

    Raises ``IncompleteArguments``.
    """
    if not text:
        return {}
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise IncompleteArguments(text, str(error)) from None
    if not isinstance(value, dict):
        raise IncompleteArguments(text, f"it is a {type(value).__name__}")
    return value


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


class JoinOnce:
    """Keeps the fragments and parses their concatenation once, at the end of the block.

    The work is linear in the length of the text (article A, section 3.2). ``parsed_bytes`` counts the bytes given to
    a JSON parser, ``num_parses`` how often.
    """

    def __init__(self) -> None:
        self.fragments: list[str] = []
        self.parsed_bytes = 0
        self.num_parses = 0

    @property
    def text(self) -> str:
        """Everything that has arrived."""
        return "".join(self.fragments)

    def add(self, fragment: str) -> None:
        """Take the next fragment, which may end anywhere, inside an escape too."""
        self.fragments.append(fragment)

    def finish(self) -> dict[str, Any]:
        """The arguments. Raises ``IncompleteArguments``."""
        text = self.text
        self._count(text)
        return parse_arguments(text)

    def _count(self, text: str) -> None:
        self.num_parses += 1
        self.parsed_bytes += len(text.encode("utf-8", "surrogatepass"))


class ParseEachTime(JoinOnce):
    """Parses everything so far after every fragment, to show arguments early.

    ``value`` is the object as far as it is known. The work grows with the square of the length: with fragments of
    ``f`` bytes, ``n`` bytes cost about ``n * n / (2 * f)``. It is here to be measured beside :class:`JoinOnce`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.value: Any = {}

    def add(self, fragment: str) -> None:
        """Take the next fragment and parse what there is of the object."""
        from pydantic_core import from_json

        super().add(fragment)
        text = self.text
        self._count(text)
        try:
            self.value = from_json(text, allow_partial="trailing-strings") if text else {}
        except ValueError:
            return  # cut inside an escape or a number: the previous value still holds
