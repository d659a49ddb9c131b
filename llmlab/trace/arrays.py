"""The arrays beside a trace: one ``.npz`` file of plain numbers next to the saved events.

``NAME.trace.jsonl.gz`` has its arrays in ``NAME.trace.jsonl.gz.npz``, a zip of ``.npy`` files that numpy reads too.
The n-th :class:`~llmlab.trace.events.Captured` event of the trace owns entry ``n``. Nothing is pickled, and what a
file claims about itself is checked before memory is taken for it.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO

import numpy as np

from llmlab.errors import TraceFormatError
from llmlab.trace.events import Captured
from llmlab.trace.store import replacing

DTYPES = frozenset({"float32", "float16", "int32"})
MAX_HEADER = 4096


def path_of(path: str | os.PathLike) -> Path:
    """Where the arrays of a saved trace lie."""
    return Path(os.fspath(path) + ".npz")


def save(path: str | os.PathLike, events: Iterable[Captured], arrays: Mapping[str, np.ndarray]) -> Path:
    """Write the events' arrays beside the trace at ``path``, all or nothing; those no longer there are left out."""
    target = path_of(path)
    held = {str(i): arrays[event.array_id] for i, event in enumerate(events) if event.array_id in arrays}
    with replacing(target) as file:
        np.savez_compressed(file, allow_pickle=False, **held)
    return target


def load(path: str | os.PathLike, events: Iterable[Captured], max_bytes: int) -> dict[str, np.ndarray]:
    """Arrays by ``array_id`` from beside the trace at ``path``; empty when there is no such file.

    Raises ``TraceFormatError`` when the file is damaged, does not fit the events, or unpacks to over ``max_bytes``.
    """
    source = path_of(path)
    if not source.is_file():
        return {}
    try:
        with zipfile.ZipFile(source) as archive:
            if sum(info.file_size for info in archive.infolist()) > max_bytes:
                raise TraceFormatError(f"{source} unpacks to more than {max_bytes:,} bytes: pass a larger max_bytes")
            names = set(archive.namelist())
            return {
                event.array_id: _read(archive, f"{i}.npy", event)
                for i, event in enumerate(events)
                if f"{i}.npy" in names
            }
    except TraceFormatError:
        raise
    except Exception as error:  # zipfile, its decompressors and numpy's header parser raise what they like
        raise TraceFormatError(f"{source} holds no arrays, or is damaged: {error}") from None


def _read(archive: zipfile.ZipFile, name: str, event: Captured) -> np.ndarray:
    """One entry, whose header must say what the event says before its numbers are read."""
    if not _is_consistent(event):
        raise TraceFormatError(f"event {event.array_id!r} contradicts itself: its dims, shape and labels do not fit")
    with archive.open(name) as file:
        shape, fortran, dtype = _header(file)
        if fortran or shape != event.shape or str(dtype) != event.dtype or event.dtype not in DTYPES:
            raise TraceFormatError(f"array {name} is {dtype}{shape}, its event says {event.dtype}{event.shape}")
        size = math.prod(shape) * dtype.itemsize
        # the entry's own size bounds what is read, whatever the shape claims
        data = file.read(min(size, archive.getinfo(name).file_size) + 1)
    if len(data) != size:
        raise TraceFormatError(f"array {name} has {len(data):,} bytes, its shape needs {size:,}")
    return np.frombuffer(data, dtype).reshape(shape)


def _is_consistent(event: Captured) -> bool:
    """Whether every labelled dimension has as many labels as entries."""
    sizes = dict(zip(event.dims, event.shape, strict=False))
    along = [dim for dim in ("position", "query") if dim in sizes]
    labelled = [dim for dim in ("head", "kv_head", "target", "stage") if dim in sizes]
    return (
        len(sizes) == len(event.shape) == len(event.dims)
        and [sizes[dim] for dim in along] == [len(event.positions)]
        and [sizes[dim] for dim in labelled] == ([len(event.labels)] if labelled else [])
        and sizes.get("layer", 0) == len(event.layers)
        and ("layer" not in sizes or event.dims[0] == "layer")
    )


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version != (1, 0):
        raise TraceFormatError(f"arrays of .npy version {version} are not written by llmlab")
    return np.lib.format.read_array_header_1_0(file, max_header_size=MAX_HEADER)
