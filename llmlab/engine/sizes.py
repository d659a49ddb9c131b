"""What sizes a K/V pool may have."""

from __future__ import annotations

from llmlab.errors import InvalidParameter


def check_sizes(block_size: int, num_blocks: int | None) -> None:
    """Raise ``InvalidParameter`` for a block size or count that is not a positive integer (or ``None``)."""
    for name, value in (("block_size", block_size), ("num_blocks", num_blocks)):
        if value is not None and (type(value) is not int or value < 1):
            raise InvalidParameter(f"{name}={value!r} must be an integer of at least 1")
