"""Any OpenAI-compatible server as a backend: a conversation goes out as a chat completion, its stream comes back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from time import perf_counter_ns
from typing import Annotated, Any

import httpx2
from pydantic import BaseModel, Field, ValidationError

from llmlab.api.conversation import Conversation
from llmlab.api.errors import ApiError
from llmlab.api.ids import call_id, tool_use_id
from llmlab.errors import InvalidParameter
from llmlab.gateway.backend import Backend, Call, Model
from llmlab.gateway.upstream_errors import bad_gateway
from llmlab.gateway.upstream_gauges import read_gauges
from llmlab.gateway.upstream_generation import UpstreamGeneration
from llmlab.gateway.upstream_health import Health
from llmlab.gateway.upstream_http import UpstreamHttp
from llmlab.gateway.upstream_reader import ChunkReader
from llmlab.gateway.upstream_request import count_body, dropped_fields, request_body, tokenize_body
from llmlab.trace.events import Stage
from llmlab.trace.recorder import Recorder

READ_TIMEOUT_S = 600.0
"""Longest silence of an upstream; the public APIs' own SDKs wait as long."""
MODELS_TTL_S = 30.0
LIST_TIMEOUT_S = 5.0
"""A list of models that takes longer holds up everybody's requests."""
GAUGES_TIMEOUT_S = 1.0
MAX_METRICS_BYTES = 4 * 1024 * 1024
MAX_RESPONSE_BYTES = 64 * 1024 * 1024

Tokens = Annotated[int, Field(ge=0, lt=2**53)]


class _Entry(BaseModel):
    """A model of the upstream's list; ``max_model_len`` is vLLM's name of the context length."""

    id: str = Field(min_length=1)
    created: Annotated[int, Field(ge=0, lt=2**32)] = 0
    owned_by: str | None = None
    max_model_len: Tokens | None = None
    max_input_tokens: Tokens | None = None
    max_tokens: Tokens | None = None

    def model(self, owner: str) -> Model:
        window = self.max_input_tokens or self.max_model_len
        return Model(self.id, self.created, window, self.max_tokens or window, self.owned_by or owner)


class _Page(BaseModel):
    data: list[_Entry]


class _Tokenized(BaseModel):
    """Of ``/tokenize``."""

    tokens: Tokens = Field(alias="count")


class _Counted(BaseModel):
    """Of Anthropic's count."""

    tokens: Tokens = Field(alias="input_tokens")


class UpstreamBackend:
    """Implements :class:`llmlab.gateway.backend.Backend` over the server at ``url`` (with or without ``/v1``).

    ``api_key`` is sent to the upstream; nothing of our own clients' headers is. ``models`` names what is offered when
    the upstream's list should not be asked for. ``timeout`` is the longest silence (s). ``health`` tells the router
    whether the upstream is worth asking. ``max_tokens_field`` is
    ``max_completion_tokens`` for servers that take only that. ``send_salt`` sends the credential's salt as vLLM's
    ``cache_salt``, so that callers with different keys share no cached prefix there; other servers may refuse it.
    ``http`` is an own ``httpx2.AsyncClient``.

    Before the end most upstreams do not tell how long the prompt is: ``Started`` then counts 0, ``Ended`` has the
    truth, or ``usage_unknown`` in ``extra`` where it never comes. Raises ``InvalidParameter`` for an unusable address.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        name: str | None = None,
        models: Sequence[str] | None = None,
        timeout: float = READ_TIMEOUT_S,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        max_tokens_field: str = "max_tokens",
        send_salt: bool = False,
        recorder: Recorder | None = None,
        http: httpx2.AsyncClient | None = None,
    ) -> None:
        self._http = UpstreamHttp(url, name or "", api_key, timeout, max_response_bytes, http)
        self.name = self._http.name = name or self._http.base.netloc.decode("ascii", "replace")
        self._fixed = [Model(id, int(time.time()), owned_by=self.name) for id in models] if models else None
        self._max_bytes, self._limit_name, self._send_salt = max_response_bytes, max_tokens_field, send_salt
        self._recorder = recorder
        self.health = Health()
        self._listed: list[Model] = []
        self._listed_until = 0.0
        self._lock = asyncio.Lock()
        self._gauges: dict[str, float] = {}
        self._open = 0

    @property
    def load(self) -> int:
        """Requests open at this upstream, those it has not answered yet included."""
        return self._open

    async def models(self) -> list[Model]:
        """What the upstream lists, asked for at most every 30 s. Raises ``ApiError``."""
        if self._fixed is not None:
            return list(self._fixed)
        async with self._lock:
            if time.monotonic() >= self._listed_until:
                self._listed = await self._list()
                self._listed_until = time.monotonic() + MODELS_TTL_S
        return list(self._listed)

    def gauges(self) -> dict[str, float]:
        """What the upstream said about itself when it was last asked, about all its clients' requests."""
        return dict(self._gauges)

    async def ask_for_gauges(self) -> None:
        """Ask the upstream how it is. One that does not tell within a second has no gauges, and is no worse for it."""
        try:
            async with asyncio.timeout(GAUGES_TIMEOUT_S):
                text = await self._http.get_text(self._http.beside("metrics"), MAX_METRICS_BYTES)
        except (ApiError, TimeoutError):
            self._gauges = {}
        else:
            self._gauges = read_gauges(text)

    async def open(self, call: Call) -> UpstreamGeneration:
        """Send the request and wait for the head of the answer. Raises ``ApiError`` for a refusal."""
        salt = call.salt if self._send_salt else ""
        body = request_body(call.conversation, call.info.model, salt, self._limit_name)
        self._open += 1
        try:
            response = await self._send(call, body)
        except BaseException:
            self._open -= 1
            raise
        return self._generation(call, response)

    def ignores(self, conversation: Conversation) -> tuple[str, ...]:
        """Fields that are not passed on to the upstream."""
        return dropped_fields(conversation)

    async def count_tokens(self, conversation: Conversation) -> tuple[int, int]:
        """What the upstream counts, twice, for context edits are not carried out here.

        Asked are vLLM's ``/tokenize`` and, where that is missing, Anthropic's ``/v1/messages/count_tokens``, which
        several servers have. Raises ``ApiError``, 404 where the upstream has neither.
        """
        model = await self._known(conversation.model)
        count = await self._count(self._http.beside("tokenize"), tokenize_body(conversation, model), _Tokenized)
        if count is None:
            url = self._http.path("messages/count_tokens")
            count = await self._count(url, count_body(conversation, model), _Counted)
        if count is None:
            problem = "cannot count tokens; it has neither /tokenize nor /v1/messages/count_tokens"
            raise ApiError("not_found_error", f"upstream {self.name} {problem}")
        return count, count

    async def _count(self, url: httpx2.URL, body: dict[str, Any], form: type[_Tokenized | _Counted]) -> int | None:
        """The count in an answer of that form; ``None`` where there is no such endpoint."""
        try:
            return form.model_validate(await self._http.get_json("POST", url, body)).tokens
        except ApiError as error:
            self.health.failed(error)
            if error.kind != "not_found_error":
                raise
        except ValidationError:
            pass
        return None

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _send(self, call: Call, body: dict[str, Any]) -> httpx2.Response:
        started = perf_counter_ns()
        try:
            response = await self._http.send("POST", self._http.path("chat/completions"), body)
            await self._check_stream(response)
        except ApiError as error:
            self.health.failed(error)
            details = {"status": error.status, "rest_s": round(self.health.rest_s, 3)}
            self._record(call, "upstream", started, "refused", error.message, details)
            raise
        self._record(call, "upstream", started, "ok", "answered", {"status": response.status_code})
        return response

    async def _check_stream(self, response: httpx2.Response) -> None:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "text/event-stream":
            await response.aclose()
            raise bad_gateway(f"upstream {self.name} answered with {kind or 'no content type'}, not an event stream")

    def _generation(self, call: Call, response: httpx2.Response) -> UpstreamGeneration:
        started = perf_counter_ns()

        def closed(outcome: str, size: int, error: ApiError | None) -> None:
            self._open -= 1
            if error is not None:
                self.health.failed(error)
            elif outcome == "ok":
                self.health.succeeded()
            reason = "" if error is None else error.message
            self._record(call, "upstream stream", started, outcome, reason, {"bytes": size})

        new_id = tool_use_id if call.conversation.protocol == "anthropic" else call_id
        reader = ChunkReader(self.name, call.conversation.n, new_id, self._http.secret)
        return UpstreamGeneration(response, reader, self._max_bytes, closed)

    async def _list(self) -> list[Model]:
        try:
            models = await self._ask_for_models()
        except ApiError as error:
            self.health.failed(error)
            raise
        self.health.succeeded()
        return models

    async def _ask_for_models(self) -> list[Model]:
        try:
            async with asyncio.timeout(LIST_TIMEOUT_S):
                value = await self._http.get_json("GET", self._http.path("models"))
            return [entry.model(self.name) for entry in _Page.model_validate(value).data]
        except TimeoutError as error:
            raise ApiError("timeout_error", f"upstream {self.name} does not tell its models") from error
        except ValidationError as error:
            raise bad_gateway(f"upstream {self.name} sent a model list that cannot be read") from error

    async def _known(self, model: str) -> str:
        ids = [known.id for known in await self.models()]
        return model if model in ids or not ids else ids[0]

    def _record(self, call: Call, stage: str, start: int, outcome: str, reason: str, details: dict[str, Any]) -> None:
        if self._recorder is not None and self._recorder.enabled:
            details = details | {"backend": self.name}
            self._recorder.emit(
                Stage(start, perf_counter_ns(), call.wire_id, "gateway", stage, outcome, reason, details)
            )


def upstream_backends(
    upstreams: Sequence[str | Backend], recorder: Recorder, api_key: str | None = None
) -> list[Backend]:
    """A backend per base URL; what is a backend already stays as it is. Raises ``InvalidParameter``."""
    if isinstance(upstreams, str):
        raise InvalidParameter(f"upstreams={upstreams!r} must be a list of addresses: put it into one")
    found = [
        UpstreamBackend(each, api_key=api_key, recorder=recorder) if isinstance(each, str) else each
        for each in upstreams
    ]
    names = [backend.name for backend in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise InvalidParameter(f"upstream {twice[0]} is given twice: backends need different names")
    return found
