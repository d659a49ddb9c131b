"""A client of the Messages API: any server that speaks it."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import quote

import httpx2

from llmlab.client.attempt import Tap
from llmlab.client.exchange import Exchange, describe
from llmlab.client.message import Message
from llmlab.client.overflow import Healing
from llmlab.client.recovery import Recovery
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import ClientError, ProtocolViolation
from llmlab.client.timeouts import Timeouts
from llmlab.client.wire import NO_HEADERS, Identity, Wire, check_header, checked_headers, new_wire_id, to_body
from llmlab.errors import InvalidParameter
from llmlab.option_names import check_option_names
from llmlab.trace.recorder import Recorder

COUNTED = (
    "model",
    "messages",
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "output_config",
    "cache_control",
    "context_management",
)
"""Fields that ``count_tokens`` takes; the others do not change the input."""

MAX_PAGES = 100


class Client:
    """Sends requests to ``url`` and reads what comes back; retries, repairs and records on the way.

    The key is never taken from the environment: it would go to whatever ``url`` says. ``timeouts`` hold for each
    attempt, ``retries`` (:data:`~llmlab.client.retry.INTERACTIVE` unless given) and ``healing`` for a request.
    ``fallback_model`` takes over from an overloaded model. ``recorder`` gets the client's side of every exchange.
    ``http`` replaces the connections this client would make; ``sleep`` and ``rng`` its waits and their jitter. May be
    used from several threads. Raises ``InvalidParameter``.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        auth: Literal["x-api-key", "bearer"] = "x-api-key",
        version: str = "2023-06-01",
        betas: Sequence[str] = (),
        session_id: str | None = None,
        timeouts: Timeouts | None = None,
        retries: RetryPolicy | None = None,
        healing: Healing | None = None,
        fallback_model: str | None = None,
        recorder: Recorder | None = None,
        http: httpx2.Client | None = None,
        sleep: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
        **unknown: Any,
    ) -> None:
        check_option_names(unknown, _option_names(), "a client")
        identity = Identity(api_key=api_key, auth=auth, version=version, betas=betas, session_id=session_id)
        self.wire = Wire(url, identity, timeouts or Timeouts(), recorder, http)
        self.retries, self.healing, self.fallback_model = retries or RetryPolicy(), healing or Healing(), fallback_model
        self.sleep, self.rng = sleep, rng or random.Random()

    @property
    def recorder(self) -> Recorder | None:
        """What gets the client's side of every exchange."""
        return self.wire.recorder

    @property
    def url(self) -> str:
        """Where requests go, without ``/v1``."""
        return self.wire.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Client of {self.url}>"

    def close(self) -> None:
        """Close the connections that are kept; further requests are refused, open ones end on their own."""
        self.wire.close()

    def stream(
        self,
        request: dict[str, Any],
        headers: Mapping[str, str] | None = None,
        *,
        wire_id: str | None = None,
        tap: Tap | None = None,
    ) -> Exchange:
        """An exchange for the body ``request``, not begun yet: use it in a ``with`` statement and iterate over it.

        ``headers`` are this request's own, such as a set of betas that grew since the client was made. ``wire_id`` is
        the client's id of its first attempt: what was recorded under it beforehand, such as how the request was
        assembled, is part of the exchange. ``tap`` is called with each piece of the response's body, bytes as they
        came. Raises ``InvalidParameter``.
        """
        _check_request(request)
        check_header("wire_id", wire_id)
        return Exchange(self.wire, self._recovery(), request, checked_headers(headers), wire_id, tap)

    def send(
        self, request: dict[str, Any], headers: Mapping[str, str] | None = None, *, wire_id: str | None = None
    ) -> Message:
        """The whole answer to the body ``request``, always streamed underneath: its ``stream`` field is set to true.

        Raises ``InvalidParameter`` for a request that is no dict, and ``ClientError``.
        """
        with self.stream(request, headers, wire_id=wire_id) as exchange:
            for _ in exchange:
                pass
            return exchange.message

    def count_tokens(self, request: dict[str, Any], headers: Mapping[str, str] | None = None) -> int:
        """Input tokens of the body ``request`` as the server counts them. Raises ``ClientError``."""
        _check_request(request)
        body = {name: request[name] for name in COUNTED if name in request}
        answer = self._call("POST", "/v1/messages/count_tokens", body, checked_headers(headers))
        count = answer.get("input_tokens")
        if type(count) is not int or count < 0:
            raise ProtocolViolation("the answer to count_tokens has no input_tokens")
        return count

    def models(self) -> list[dict[str, Any]]:
        """The models the server offers, as it describes them. Raises ``ClientError``."""
        found: list[dict[str, Any]] = []
        path = "/v1/models?limit=1000"
        for _ in range(MAX_PAGES):
            page = self._call("GET", path)
            found += [model for model in page.get("data") or () if isinstance(model, dict)]
            if not page.get("has_more") or not isinstance(page.get("last_id"), str):
                return found
            path = f"/v1/models?limit=1000&after_id={quote(page['last_id'], safe='')}"
        raise ProtocolViolation(f"the list of models has more than {MAX_PAGES} pages")

    def _recovery(self) -> Recovery:
        return Recovery(self.retries, self.healing, self.fallback_model, self.rng, self.sleep)

    def _call(
        self, method: str, path: str, request: dict[str, Any] | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> dict[str, Any]:
        recovery, number, wire_id = self._recovery(), 0, new_wire_id()
        while True:
            body = None if request is None else to_body(request)
            attempt = self.wire.open(method, path, body, number, "application/json", headers, wire_id)
            try:
                return _object(attempt.json())
            except ClientError as failure:
                describe(failure, attempt, None)
                self.wire.release(attempt)
                wire_id = new_wire_id()
                step = recovery.after(failure, "nothing", attempt.log, wire_id, was_reached=self.wire.was_reached)
                request = None if request is None else request | step.changes
                number += 1
            finally:
                self.wire.release(attempt)


def _option_names() -> list[str]:
    parameters = inspect.signature(Client).parameters.values()
    return [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]


def _check_request(request: Any) -> None:
    if not isinstance(request, dict):
        raise InvalidParameter(
            f"the request is of type {type(request).__name__}: give the body as a dict, such as "
            '{"model": "NAME", "max_tokens": 64, "messages": [{"role": "user", "content": "Hello"}]}'
        )


def _object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise ProtocolViolation("the answer is not a JSON object")
    return answer
