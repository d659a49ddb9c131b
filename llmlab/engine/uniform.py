"""Random numbers that are a function of where they are used, not of what was drawn before."""

from __future__ import annotations

import struct
from hashlib import blake2b

MASK = 2**64 - 1


def uniform(seed: int, sample: int, position: int, draw: int = 0) -> float:
    """A number in [0, 1), the same whenever the arguments are the same, on every machine.

    ``seed`` is the request's (any integer, taken modulo 2**64), ``sample`` the index within ``n`` samples,
    ``position`` the absolute position of the token that is being chosen, ``draw`` tells several draws for one
    position apart.

    A generator's next number depends on how many were drawn before: on the neighbours in the batch if they
    share it, and on saved state if the request is preempted. Hashing the place instead leaves nothing to
    share or save, so a request gets the same numbers alone, batched, reordered or preempted.
    """
    place = struct.pack("<4Q", *(value & MASK for value in (seed, sample, position, draw)))
    bits = int.from_bytes(blake2b(place, digest_size=8).digest(), "little")
    # A double holds 53 bits exactly, so the result cannot round up to 1.
    return (bits >> 11) * 2.0**-53
