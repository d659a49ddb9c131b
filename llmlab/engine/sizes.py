"""What sizes a K/V pool may have, and how many threads there may be."""

from __future__ import annotations

from llmlab.errors import InvalidParameter


def check_sizes(block_size: int, num_blocks: int | None) -> None:
    """Raise ``InvalidParameter`` for a block size or count that is not a positive integer (or ``None``)."""
    for name, value in (("block_size", block_size), ("num_blocks", num_blocks)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidParameter(f"{name}={value!r} must be an integer of at least 1")


def check_threads(threads: int | None) -> None:
    """Raise ``InvalidParameter`` for what is neither a positive integer nor ``None``."""
    if threads is not None and (type(threads) is not int or threads < 1):
        raise InvalidParameter(f"threads={threads!r} must be an integer of at least 1")
