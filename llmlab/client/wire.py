"""Where requests go and what every one of them carries."""

from __future__ import annotations

import ipaddress
import ssl
import threading
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx2

from llmlab import __version__
from llmlab.api.sse import to_json
from llmlab.client.attempt import Attempt, Tap
from llmlab.client.recording import Log
from llmlab.client.timeouts import Timeouts
from llmlab.client.transfer import Lane, Transfer
from llmlab.errors import InvalidParameter
from llmlab.trace.recorder import Recorder

MAX_IDLE_LANES = 4
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who asks, in headers (article A, section 3.7).

    ``auth``: ``x-api-key`` sends the key in that header, ``bearer`` in ``Authorization``. ``session_id`` goes into
    ``x-llmlab-session-id`` and groups the requests of one session in a server's log. Raises ``InvalidParameter`` for
    a value that cannot be a header.
    """

    api_key: str | None = field(default=None, repr=False)
    auth: Literal["x-api-key", "bearer"] = "x-api-key"
    version: str = "2023-06-01"
    betas: Sequence[str] = ()
    session_id: str | None = None

    def __post_init__(self) -> None:
        if self.auth not in ("x-api-key", "bearer"):
            raise InvalidParameter(f"auth={self.auth!r} must be 'x-api-key' or 'bearer'")
        if isinstance(self.betas, str):
            raise InvalidParameter("betas must be a sequence of names, not one string")
        for name in ("api_key", "version", "session_id"):
            check_header(name, getattr(self, name))
        for beta in self.betas:
            check_header("betas", beta)

    def headers(self) -> dict[str, str]:
        """The headers that are the same for every request of a client."""
        found = {
            "user-agent": f"llmlab/{__version__}",
            "accept-encoding": "identity",
            "anthropic-version": self.version,
        }
        if self.api_key is not None:
            bearer = self.auth == "bearer"
            found["authorization" if bearer else "x-api-key"] = f"Bearer {self.api_key}" if bearer else self.api_key
        if self.betas:
            found["anthropic-beta"] = ",".join(self.betas)
        if self.session_id is not None:
            found["x-llmlab-session-id"] = self.session_id
        return found


def check_header(name: str, value: str | None) -> None:
    """Raises ``InvalidParameter`` for a value, called ``name``, that cannot be a header; ``None`` is no header."""
    if value is not None and not (isinstance(value, str) and value and value.isascii() and value.isprintable()):
        raise InvalidParameter(f"{name} must be a non-empty string of printable ASCII, since it becomes a header")


class Wire:
    """Opens attempts on one server, each on a connection that no other attempt uses meanwhile.

    Connections are kept for later attempts. ``was_reached``: whether there ever was an answer, of any kind. Raises
    ``InvalidParameter`` for a URL that is none.
    """

    def __init__(
        self,
        url: str,
        identity: Identity,
        timeouts: Timeouts,
        recorder: Recorder | None = None,
        http: httpx2.Client | None = None,
    ) -> None:
        self.url, self.identity, self.timeouts, self.recorder = base_url(url), identity, timeouts, recorder
        self.was_reached = False
        self._http = http
        self._idle: list[Lane] = []
        self._is_closed = False
        self._lock = threading.Lock()

    def open(
        self,
        method: str,
        path: str,
        body: bytes | None,
        number: int,
        accept: str,
        extra: Mapping[str, str] = NO_HEADERS,
        wire_id: str | None = None,
        tap: Tap | None = None,
    ) -> Attempt:
        """Send a request as attempt ``number`` (from 0). Returns before anything has arrived.

        ``extra``: headers of this request, in place of the client's own of the same (lower-case) name. ``wire_id``:
        its ``x-client-request-id`` and name in the trace, a new one unless given.
        """
        wire_id = wire_id or new_wire_id()
        log = Log(self.recorder, wire_id, self.identity.api_key)
        lane = self._take_lane()
        headers = self.identity.headers() | {"accept": accept, "x-client-request-id": wire_id}
        headers |= (
            {"x-llmlab-retry-count": str(number)} | ({"content-type": "application/json"} if body else {}) | extra
        )
        limits = httpx2.Timeout(self.timeouts.total_s, connect=self.timeouts.connect_s, pool=None)
        request = lane.http.build_request(method, self.url + path, headers=headers, content=body, timeout=limits)
        log.sent(f"{method} {path}", request.headers.items(), body or b"")
        return Attempt(Transfer(lane, request), self.timeouts, log, number, tap)

    def release(self, attempt: Attempt) -> None:
        """Take back the connection of an attempt that is over, or end the one of an attempt that is not.

        Harmless when repeated.
        """
        transfer = attempt.transfer
        if attempt.is_closed:
            return
        attempt.close()
        self.was_reached = self.was_reached or bool(attempt.headers)
        if not transfer.has_ended:
            return
        with self._lock:
            keep = len(self._idle) < MAX_IDLE_LANES and not self._is_closed
            if keep:
                self._idle.append(transfer.lane)
        if not keep:
            transfer.lane.close()

    def close(self) -> None:
        """Close the connections that are kept; attempts still open end on their own."""
        with self._lock:
            self._is_closed = True
            lanes, self._idle = self._idle, []
        for lane in lanes:
            lane.close()

    def _take_lane(self) -> Lane:
        with self._lock:
            if self._is_closed:
                raise InvalidParameter(f"this client of {self.url} was closed: make another")
            if self._idle:
                return self._idle.pop()
        if self._http is not None:
            return Lane(self._http, is_owned=False)
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=60.0)
        return Lane(httpx2.Client(limits=limits, verify=self._trust(), trust_env=not is_loopback(self.url)), True)

    def _trust(self) -> ssl.SSLContext | bool:
        return ssl.create_default_context() if self.url.startswith("https:") else False


def new_wire_id() -> str:
    """An id for one request, unique in the world."""
    return str(uuid.uuid4())


def checked_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """``headers`` with lower-case names. Raises ``InvalidParameter`` for what cannot be one."""
    for name, value in (headers or {}).items():
        check_header("the name of a header", name)
        check_header(name, value)
    return {name.lower(): value for name, value in (headers or {}).items()}


def to_body(request: dict[str, Any]) -> bytes:
    """``request`` as JSON in UTF-8, keys in their order. Raises ``InvalidParameter`` if it cannot be JSON."""
    try:
        return to_json(request).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidParameter(f"the request cannot be written as JSON: {error}") from None


def base_url(url: str) -> str:
    """``url`` without a trailing slash or ``/v1``, which the paths begin with. Raises ``InvalidParameter``."""
    try:
        parts = urlsplit(url)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except (ValueError, AttributeError, TypeError):
        is_usable = False
    if not is_usable or parts.query or parts.fragment or parts.username is not None:
        raise InvalidParameter(
            "url must be like http://127.0.0.1:8000: http or https, a host, no query and no password"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def is_loopback(url: str) -> bool:
    """Whether ``url`` is on this machine: then no proxy of the environment comes between."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
