"""What happens when one model runs in several processes, or its K/V lives in several places.

Times are ``time.perf_counter_ns()`` of the process it happened in: on one machine all processes share that clock.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RankWork:
    """A process of a group was busy, or waited, from ``t_ns`` to ``end_ns``.

    ``rank`` counts from 0; ``role`` is what the group is for (``tensor``, ``pipeline``, ``expert``). With role
    ``prefill`` it is the process that computes prompts for another one (rank 0, which decodes), and ``step`` is of its
    own engine. ``name``: ``forward`` (its share of the model's pass), ``wait`` (for another process) or ``experts``
    (within ``forward``: its experts of one layer). ``micro_batch`` is the part of the step's batch it worked on,
    ``first_layer .. last_layer`` the layers; -1 where there is none. ``num_tokens`` is the number of packed tokens; for
    ``experts`` of the rows they were sent, one for each token and expert.
    """

    t_ns: int
    end_ns: int
    step: int
    rank: int
    role: str
    name: str
    micro_batch: int = -1
    first_layer: int = -1
    last_layer: int = -1
    num_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Collective:
    """A process took part in a communication of its group, from the call to its return.

    ``kind``: ``all_reduce``, ``all_gather``, ``all_to_all``, ``broadcast``, ``send`` or ``receive``. ``layer`` is -1
    outside the layers; ``place`` says where in the model (``attention``, ``mlp``, ``embedding``, ``head``, ``stage``,
    ``counts``, ``dispatch``, ``combine``). ``nbytes`` is the size of this process's message: what it contributes, for
    ``receive`` what it gets. ``group_size`` is the number of processes.
    """

    t_ns: int
    end_ns: int
    step: int
    rank: int
    role: str
    kind: str
    layer: int
    place: str
    nbytes: int
    group_size: int


@dataclass(frozen=True, slots=True)
class BlockTransfer:
    """K/V blocks of a request were copied to another place, from ``t_ns`` to ``end_ns``.

    ``action``: ``swap_out`` and ``swap_in`` (between the pool and a second one), ``send`` and ``receive`` (between
    processes); ``request_id`` is empty for evicted cached blocks. ``source`` and ``target`` name the places
    (``device``, ``host``, ``prefill``, ``decode``), ``medium`` what carries the bytes (``memory``, ``shared memory``,
    ``socket``). ``blocks`` are ids in this process's pool (of a ``send``: in the sender's, and so is ``step``),
    ``num_tokens`` the positions they hold, ``nbytes`` what was copied.
    ``reason`` says why it was copied and not computed again; ``host_blocks`` are the ids in the second pool, for swaps.
    """

    t_ns: int
    end_ns: int
    step: int
    request_id: str
    action: str
    source: str
    target: str
    medium: str
    blocks: tuple[int, ...]
    num_tokens: int
    nbytes: int
    reason: str
    host_blocks: tuple[int, ...] = ()
