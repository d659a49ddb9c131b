"""Who is asking: API keys, and protection of a server without any against web pages."""

from __future__ import annotations

import hashlib
import hmac
import stat
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from llmlab.api.errors import ApiError
from llmlab.errors import InvalidParameter

TIERS = ("standard", "priority", "batch")
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})


class ExposedKeysFile(UserWarning):
    """Others on this machine may read the keys file."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The holder of a key. ``salt`` keeps cached prefixes of different keys apart; nobody's is empty."""

    name: str
    tier: str = "standard"
    salt: str = ""


ANONYMOUS = Identity("anonymous")


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


class KeyRing:
    """The accepted API keys, kept as hashes only. An empty ring lets everybody in."""

    def __init__(self, keys: Mapping[str, Identity]) -> None:
        self._keys = [(_digest(key), identity) for key, identity in keys.items()]

    def __len__(self) -> int:
        return len(self._keys)

    @classmethod
    def load(cls, path: Path | None) -> KeyRing:
        """Read a keys file: ``KEY [NAME [TIER]]`` a line; blank lines and lines that start with ``#`` are skipped.

        Raises ``InvalidParameter`` for a file that cannot be read, holds no key, a key twice, or an unknown tier.
        Warns with :class:`ExposedKeysFile` when others on the machine may read it.
        """
        if path is None:
            return cls({})
        try:
            text = Path(path).read_text("utf-8-sig")
            mode = Path(path).stat().st_mode
        except (OSError, UnicodeError) as error:
            raise InvalidParameter(f"the keys file {path} cannot be read: {error}") from error
        if sys.platform != "win32" and mode & (stat.S_IRWXG | stat.S_IRWXO):
            message = f"other users may read the keys file {path}: use chmod 600"
            warnings.warn(message, ExposedKeysFile, stacklevel=2)
        return cls(_parse_keys(text, path))

    def identify(self, headers: Mapping[str, str]) -> Identity:
        """The holder of ``Authorization: Bearer KEY`` or ``x-api-key: KEY``; raises ``ApiError`` 401.

        Every key is compared, each in constant time, so the time taken tells nothing about them.
        """
        if not self._keys:
            return ANONYMOUS
        offered = [_digest(key) for key in _offered(headers)]
        if not offered:
            raise ApiError("authentication_error", "no API key: send authorization: Bearer KEY, or x-api-key: KEY")
        found = [identity for digest, identity in self._keys for each in offered if hmac.compare_digest(digest, each)]
        if not found:
            raise ApiError("authentication_error", "invalid API key")
        return found[0]


def _offered(headers: Mapping[str, str]) -> list[str]:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    bearer = token.strip() if scheme.lower() == "bearer" else ""
    return [key for key in (bearer, headers.get("x-api-key", "").strip()) if key]


def _parse_keys(text: str, path: Path) -> dict[str, Identity]:
    found: dict[str, Identity] = {}
    for number, line in enumerate(text.splitlines(), 1):
        fields = line.split()
        if not fields or fields[0].startswith("#"):
            continue
        key, name, tier = (*fields, *(f"key-{number}", "standard")[len(fields) - 1 :])[:3]
        if len(fields) > 3 or tier not in TIERS:
            raise InvalidParameter(f"{path}, line {number}: write KEY [NAME [TIER]], TIER one of {', '.join(TIERS)}")
        if not key.isascii() or not key.isprintable():
            raise InvalidParameter(f"{path}, line {number}: a key is sent in a header: use ASCII characters only")
        if key in found:
            raise InvalidParameter(f"{path}, line {number}: this key is already there")
        found[key] = Identity(name, tier, _digest(name).hex()[:32])
    if not found:
        raise InvalidParameter(f"{path} holds no key: write one a line")
    return found


def check_local(headers: Mapping[str, str]) -> None:
    """Refuse what a web page could have sent to a loopback server that asks for no key; raises ``ApiError`` 403.

    A page may reach it under a name of its own that resolves to 127.0.0.1 (DNS rebinding), which shows in ``Host``, or
    by a cross-site request, which shows in ``Origin`` or ``Sec-Fetch-Site``.
    """
    host = headers.get("host", "")
    if _host_name(f"//{host}") not in LOCAL_HOSTS:
        raise ApiError("permission_error", f"Host {host[:100]!r} is not this machine: use http://127.0.0.1, or keys")
    origin = headers.get("origin")
    if headers.get("sec-fetch-site") == "cross-site" or (origin and _host_name(origin) not in LOCAL_HOSTS):
        raise ApiError("permission_error", "requests from web pages of other sites are not accepted")


def _host_name(url: str) -> str | None:
    """The host in a URL; ``None`` where there is none, or where programs do not agree which it is."""
    if "@" in url or "\\" in url:
        return None
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
