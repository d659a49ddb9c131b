"""Do the copies between the pool and the host pool agree with each other and with the sizes?"""

from __future__ import annotations

from collections.abc import Iterator

from llmlab.trace.index import Index
from llmlab.trace.split_events import BlockTransfer

SWAPS = ("swap_out", "swap_in")


def swap_violations(index: Index) -> Iterator[str]:
    """Bytes are those of the blocks, tokens fit into them, and what comes in went out before.

    The last needs every event from the beginning: not in a part of a trace, nor after a gap.
    """
    is_whole = not index.gaps and not index.only
    filled: set[int] = set()
    for transfer in (t for t in index.transfers if t.action in SWAPS):
        yield from _sizes(index, transfer)
        if transfer.action == "swap_out":
            filled.update(transfer.host_blocks)
        elif is_whole and (empty := sorted(set(transfer.host_blocks) - filled)):
            yield f"{_name(transfer)}: host blocks {empty} were read, but nothing had been copied there"


def _sizes(index: Index, transfer: BlockTransfer) -> Iterator[str]:
    num_blocks, info = len(transfer.blocks), index.info
    if len(transfer.host_blocks) != num_blocks:
        yield f"{_name(transfer)}: {num_blocks} blocks, but {len(transfer.host_blocks)} host blocks"
    if info is None:
        return
    expected = num_blocks * info.block_size * info.kv_bytes_per_token
    if transfer.nbytes != expected:
        yield f"{_name(transfer)}: {transfer.nbytes} bytes, {num_blocks} blocks have {expected}"
    if not 0 < transfer.num_tokens <= num_blocks * info.block_size:
        yield f"{_name(transfer)}: {transfer.num_tokens} tokens in {num_blocks} blocks of {info.block_size}"
    if max(transfer.host_blocks, default=0) >= info.num_host_blocks:
        yield f"{_name(transfer)}: host block {max(transfer.host_blocks)}, the host pool has {info.num_host_blocks}"


def _name(transfer: BlockTransfer) -> str:
    whose = f"request {transfer.request_id}" if transfer.request_id else "evicted blocks"
    return f"step {transfer.step}: {transfer.action.replace('_', ' ')} of {whose}"
