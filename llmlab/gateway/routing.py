"""Which backend serves a request."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from llmlab.api.conversation import Conversation, Text
from llmlab.api.errors import ApiError
from llmlab.gateway.backend import Backend, Model
from llmlab.gateway.balancing import is_overloaded, least_loaded, owner
from llmlab.gateway.settings import Settings

PREFIX_CHARS = 2048
"""Of system prompt, tools and first turn: what decides where requests that share a prefix go."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A backend, the model it serves, and why it was taken. ``index`` is its place among all backends."""

    backend: Backend
    index: int
    model: str
    reason: str
    details: dict[str, Any]


@dataclass(slots=True)
class Router:
    """Chooses among backends; all calls come from one event loop.

    A backend may have an attribute ``health`` (:class:`~llmlab.gateway.upstream_health.Health`): while it rests, it is
    not asked for its models, which stay those it last told, and is chosen only when every backend of a model rests.
    """

    backends: Sequence[Backend]
    settings: Settings
    _turn: int = 0
    _known: dict[int, list[Model]] = field(default_factory=dict)
    _errors: dict[str, str] = field(default_factory=dict)

    async def models(self) -> list[list[Model]]:
        """The models of each backend; none for one that has never told them."""
        return await asyncio.gather(*(self._models_of(index) for index in range(len(self.backends))))

    async def _models_of(self, index: int) -> list[Model]:
        backend = self.backends[index]
        if self._rest_s(index) > 0:
            return self._known.get(index, [])
        try:
            self._known[index] = await backend.models()
        except ApiError as error:
            self._errors[backend.name] = error.message
        else:
            self._errors.pop(backend.name, None)
        return self._known.get(index, [])

    def _rest_s(self, index: int) -> float:
        health = getattr(self.backends[index], "health", None)
        return 0.0 if health is None else health.rest_s

    async def pick(self, conversation: Conversation, salt: str = "") -> Choice:
        """The backend for a request. Raises ``ApiError`` 404 for a model that nobody has and nothing stands in for."""
        listed = [[model.id for model in models] for models in await self.models()]
        model, note = self._served_model(conversation.model, listed)
        able = [index for index, ids in enumerate(listed) if model in ids]
        return self._choice(model, able, conversation, salt, note)

    async def another(self, model: str, conversation: Conversation, salt: str, tried: Collection[int]) -> Choice | None:
        """A backend of ``model`` whose index is not among ``tried``; ``None`` when there is none left."""
        listed = await self.models()
        able = [i for i, models in enumerate(listed) if i not in tried and any(each.id == model for each in models)]
        return self._choice(model, able, conversation, salt, "") if able else None

    def _choice(self, model: str, able: list[int], conversation: Conversation, salt: str, note: str) -> Choice:
        resting = {self.backends[each].name: self._rest_s(each) for each in able if self._rest_s(each) > 0}
        awake = [each for each in able if self.backends[each].name not in resting] or able
        index, reason = self._choose(awake, conversation, salt)
        loads = {self.backends[each].name: self.backends[each].load for each in awake}
        details: dict[str, Any] = {"backend": self.backends[index].name, "model": model, "loads": loads}
        if resting:
            details["resting"] = {name: round(seconds, 3) for name, seconds in resting.items()}
            rested = f"{', '.join(resting)} rests after a failure"
            reason = f"{rested}: {reason}" if len(awake) < len(able) else f"all its backends rest: {reason}"
        return Choice(self.backends[index], index, model, "; ".join(filter(None, (note, reason))), details)

    def _served_model(self, asked: str, listed: list[list[str]]) -> tuple[str, str]:
        names = list(dict.fromkeys(name for ids in listed for name in ids))
        if asked in names:
            return asked, ""
        if not names:
            problem = "; ".join(f"{name}: {message}" for name, message in self._errors.items())
            raise ApiError("api_error", f"no backend can be reached: {problem}", status=503, should_retry=True)
        if self.settings.fallback_model:
            return names[0], f"unknown model {asked[:200]!r}, served by {names[0]}"
        message = f"model: {asked[:200]}. Available: {', '.join(names[:20])}"
        raise ApiError("not_found_error", message, param="model", code="model_not_found")

    def _choose(self, able: list[int], conversation: Conversation, salt: str) -> tuple[int, str]:
        if len(able) == 1:
            return able[0], "the only backend of this model"
        if self.settings.routing == "round_robin":
            self._turn += 1
            return able[(self._turn - 1) % len(able)], "round robin"
        if self.settings.routing == "prefix_affine":
            return self._affine(able, prefix_key(conversation, salt))
        return self._least_loaded(able), "least loaded"

    def _least_loaded(self, able: list[int]) -> int:
        return able[least_loaded([self.backends[index].load for index in able])]

    def _affine(self, able: list[int], key: bytes) -> tuple[int, str]:
        """The key's own backend, unless it has much more to do than the others."""
        place = owner(key, [self.backends[index].name for index in able])
        if is_overloaded(place, [self.backends[index].load for index in able]):
            return self._least_loaded(able), "the prefix's own backend is overloaded: least loaded"
        return able[place], "where prompts that begin like this go"


def prefix_key(conversation: Conversation, salt: str) -> bytes:
    """Equal for requests that are likely to share a cached prefix: the caller's own key, or how the prompt begins."""
    if conversation.cache_key is not None:
        return hashlib.sha256(f"{salt}\0{conversation.cache_key}".encode(errors="replace")).digest()
    tools = [[tool.name, tool.description, dict(tool.input_schema)] for tool in conversation.tools]
    first = conversation.turns[0].blocks if conversation.turns else ()
    texts = [block.text for block in (*conversation.system, *first) if isinstance(block, Text)]
    beginning = (json.dumps(tools)[:PREFIX_CHARS] if tools else "") + "\n".join(texts)
    return hashlib.sha256(f"{salt}\0{beginning[:PREFIX_CHARS]}".encode(errors="replace")).digest()
