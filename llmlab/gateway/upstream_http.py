"""The connection to another server: one place that knows its address, its key, and how much of an answer to read."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx2

from llmlab import __version__
from llmlab.api.errors import ApiError
from llmlab.errors import InvalidParameter
from llmlab.gateway.settings import LOOPBACK
from llmlab.gateway.upstream_errors import bad_gateway, from_exception, from_status

MAX_ERROR_BYTES = 64 * 1024
CONNECT_S = 5.0
VERSIONED = re.compile(r"/v\d\w*$")


def base_url(url: str) -> httpx2.URL:
    """The address that ``/chat/completions`` is appended to: ``/v1`` is added unless the path ends with a version.

    Raises ``InvalidParameter`` for anything but an http or https address without credentials, query and fragment.
    """
    try:
        found = httpx2.URL(url)
    except (httpx2.InvalidURL, TypeError) as error:
        raise InvalidParameter(f"upstream {url!r} is no address; one looks like http://127.0.0.1:8000/v1") from error
    if found.scheme not in ("http", "https") or not found.host:
        raise InvalidParameter(f"upstream {url!r} must begin with http:// or https:// and name a host")
    if found.userinfo:
        raise InvalidParameter("an upstream's address must not hold credentials; give api_key instead")
    if found.query or found.fragment:
        raise InvalidParameter(f"upstream {url!r} must not have a query or a fragment")
    path = found.path.rstrip("/")
    return found.copy_with(path=path if VERSIONED.search(path) else path + "/v1")


class UpstreamHttp:
    """HTTP to one upstream. Redirects are not followed, and no header of our own clients' is sent on.

    Bodies are read as they are on the wire, never decompressed, so that ``max_bytes`` bounds what is held.
    """

    def __init__(
        self, url: str, name: str, api_key: str | None, timeout: float, max_bytes: int, http: Any = None
    ) -> None:
        self.base, self.name, self.max_bytes = base_url(url), name, max_bytes
        self.secret = api_key
        self._timeout = timeout
        self._owned = http is None
        self._http: httpx2.AsyncClient | None = http

    def beside(self, name: str) -> httpx2.URL:
        """Address of an endpoint beside the base's version, where servers put what is no part of the public API."""
        return self.base.copy_with(path=f"{VERSIONED.sub('', self.base.path)}/{name}")

    async def send(self, method: str, url: httpx2.URL, body: Any = None) -> httpx2.Response:
        """A response with status 200 whose body has not been read. Raises ``ApiError`` for any other."""
        try:
            request = self._client().build_request(method, url, headers=self._headers(), content=_encode(body))
            response = await self._client().send(request, stream=True)
        except httpx2.HTTPError as error:
            raise from_exception(self.name, error) from error
        if response.status_code == 200 and _is_plain(response):
            return response
        raise await self._refused(response)

    async def get_json(self, method: str, url: httpx2.URL, body: Any = None) -> Any:
        """The JSON value of a whole response. Raises ``ApiError``."""
        response = await self.send(method, url, body)
        try:
            return json.loads(await self._read(response, self.max_bytes))
        except (ValueError, RecursionError) as error:
            raise bad_gateway(f"upstream {self.name} answered with something that is not JSON") from error
        except httpx2.HTTPError as error:
            raise from_exception(self.name, error) from error
        finally:
            await response.aclose()

    async def get_text(self, url: httpx2.URL, limit: int) -> str:
        """The text of a whole response of at most ``limit`` bytes. Raises ``ApiError``."""
        response = await self.send("GET", url)
        try:
            return (await self._read(response, limit)).decode("utf-8", "replace")
        except httpx2.HTTPError as error:
            raise from_exception(self.name, error) from error
        finally:
            await response.aclose()

    async def aclose(self) -> None:
        """Close the connections, unless the client was given from outside."""
        if self._owned and self._http is not None:
            await self._http.aclose()
            self._http = None

    def path(self, name: str) -> httpx2.URL:
        """Address of an endpoint below the base."""
        return self.base.copy_with(path=f"{self.base.path}/{name}")

    def _client(self) -> httpx2.AsyncClient:
        """Made at first use, inside the event loop that uses it. Proxies of the environment are for other machines."""
        if self._http is None:
            self._http = httpx2.AsyncClient(
                timeout=httpx2.Timeout(self._timeout, connect=CONNECT_S),
                follow_redirects=False,
                trust_env=self.base.host not in LOOPBACK,
                limits=httpx2.Limits(max_connections=None, max_keepalive_connections=20),
            )
        return self._http

    def _headers(self) -> dict[str, str]:
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        headers["user-agent"] = f"llmlab/{__version__}"
        return headers | {"authorization": f"Bearer {self.secret}"} if self.secret else headers

    async def _refused(self, response: httpx2.Response) -> ApiError:
        try:
            if response.status_code == 200:
                return bad_gateway(f"upstream {self.name} compressed its answer, which was not asked for")
            body = await self._read(response, MAX_ERROR_BYTES)
        except httpx2.HTTPError as error:
            return from_exception(self.name, error)
        except ApiError:
            body = b""
        finally:
            await response.aclose()
        return from_status(self.name, response.status_code, response.headers, body, self.secret)

    async def _read(self, response: httpx2.Response, limit: int) -> bytes:
        pieces, size = [], 0
        async for piece in response.aiter_raw():
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise bad_gateway(f"upstream {self.name} answered with more than {limit:,} bytes")
        return b"".join(pieces)


def _encode(body: Any) -> bytes | None:
    return None if body is None else json.dumps(body, ensure_ascii=False, default=dict).encode("utf-8", "replace")


def _is_plain(response: httpx2.Response) -> bool:
    return response.headers.get("content-encoding", "identity").lower() in ("", "identity")
