"""The order in which the chunks of a Chat Completions stream may come."""

from __future__ import annotations

from typing import Any

from llmlab.client.stream_errors import ProtocolViolation

DONE = "[DONE]"


class ChoiceState:
    """What one choice has shown so far."""

    def __init__(self) -> None:
        self.has_role = False
        self.num_calls = 0
        self.finish_reason: str | None = None


class ChunkLifecycle:
    """Checks each chunk of one stream.

    Per choice: the role once and first, tool calls with contiguous indices whose id and name come in their first
    fragment only, one ``finish_reason``, nothing after it. The stream ends with ``[DONE]``.
    """

    def __init__(self) -> None:
        self.choices: dict[int, ChoiceState] = {}
        self.is_done = False

    @property
    def is_complete(self) -> bool:
        """Whether ``[DONE]`` came and every choice had a finish reason."""
        return self.is_done and bool(self.choices) and all(c.finish_reason for c in self.choices.values())

    def check(self, chunk: Any) -> None:
        """Take the next chunk, or the string ``[DONE]``. Raises ``ProtocolViolation``."""
        if self.is_done:
            raise ProtocolViolation("something came after [DONE]")
        if chunk == DONE:
            self.is_done = True
            return
        if not isinstance(chunk, dict) or not isinstance(chunk.get("choices"), list):
            raise ProtocolViolation("a chunk is not a JSON object with a list of choices")
        for choice in chunk["choices"]:
            self._check_choice(choice)

    def _check_choice(self, choice: Any) -> None:
        index = choice.get("index") if isinstance(choice, dict) else None
        if type(index) is not int or not isinstance(choice.get("delta"), dict):
            raise ProtocolViolation("a choice has no index or no delta")
        state, delta = self.choices.setdefault(index, ChoiceState()), choice["delta"]
        if state.finish_reason is not None:
            raise ProtocolViolation(f"choice {index} went on after its finish_reason")
        self._check_role(state, delta, index)
        self._check_calls(state, delta.get("tool_calls") or [])
        state.finish_reason = choice.get("finish_reason")
        if not isinstance(state.finish_reason, str | None):
            raise ProtocolViolation(f"choice {index} has a finish_reason that is not a string")

    def _check_role(self, state: ChoiceState, delta: dict, index: int) -> None:
        has_role = delta.get("role") is not None
        if has_role and state.has_role:
            raise ProtocolViolation(f"choice {index} repeats its role, which belongs to its first chunk alone")
        if delta and not has_role and not state.has_role:
            raise ProtocolViolation(f"choice {index} begins without a role")
        state.has_role = state.has_role or has_role

    def _check_calls(self, state: ChoiceState, calls: Any) -> None:
        if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
            raise ProtocolViolation("tool_calls is not a list of objects")
        for call in calls:
            self._check_call(state, call)

    def _check_call(self, state: ChoiceState, call: dict) -> None:
        index = call.get("index")
        if not isinstance(call.get("function"), dict | None):
            raise ProtocolViolation(f"the function of tool call {index!r} is not an object")
        if type(index) is not int or not 0 <= index <= state.num_calls:
            raise ProtocolViolation(f"a tool call has index {index!r} where at most {state.num_calls} was due")
        is_first = index == state.num_calls
        if is_first is not bool(call.get("id")):
            raise ProtocolViolation(f"tool call {index} must have its id in its first fragment and in no other")
        state.num_calls += is_first
