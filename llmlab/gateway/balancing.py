"""Which of several equal servers takes a request: rules on loads and keys alone, for a gateway and a simulation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

ROUTINGS = ("round_robin", "least_loaded", "prefix_affine")
"""The rules by name."""
OVERLOAD = 1.25
"""A server is overloaded above this multiple of the mean load (bounded-load hashing), one request of slack added."""


def least_loaded(loads: Sequence[float]) -> int:
    """The place of the smallest load, the first of equal ones."""
    return min(range(len(loads)), key=loads.__getitem__)


def owner(key: bytes, names: Sequence[str]) -> int:
    """The place of the server that a key belongs to: the highest hash (rendezvous hashing)."""
    return max(range(len(names)), key=lambda place: hashlib.sha256(key + names[place].encode()).digest())


def is_overloaded(place: int, loads: Sequence[float]) -> bool:
    """Whether a server has much more to do than the others."""
    return loads[place] > OVERLOAD * sum(loads) / len(loads) + 1
