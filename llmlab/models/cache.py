"""The user's cache of converted models: where it is, what counts as whole, and how a folder appears in it.

Layout: ``downloads/`` holds wheels, ``models/NAME-VERSION-fN/`` holds finished folders. A finished folder
appears by one rename, so a folder under its final name was whole when it was put there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from llmlab.models.catalogue import CatalogueEntry

FORMAT = 2  # part of the folder's name: a change in what convert.py writes makes older folders unused
MANIFEST = "manifest.json"
CACHE_VARIABLE = "LLMLAB_CACHE"


def cache_dir() -> Path:
    """The cache's root: the environment variable ``LLMLAB_CACHE`` if set, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return Path(chosen).expanduser().absolute() if chosen else Path(platformdirs.user_cache_dir("llmlab", False))


def downloads_dir() -> Path:
    """Where wheels are kept until they are converted; one that is placed here by hand is used."""
    return cache_dir() / "downloads"


def model_dir(entry: CatalogueEntry) -> Path:
    """The folder of the converted model, whether or not it exists."""
    return cache_dir() / "models" / f"{entry.name}-{entry.version}-f{FORMAT}"


def lock_path(folder: Path) -> Path:
    """The lock file that guards the making of ``folder``."""
    return folder.with_name(f".{folder.name}.lock")


def is_ready(folder: Path) -> bool:
    """Whether ``folder`` is whole, by the sizes in its manifest (a few milliseconds)."""
    return not damaged_files(folder)


def damaged_files(folder: Path, *, hashes: bool = False) -> list[str]:
    """Names of files that are missing or differ from the manifest: in size, with ``hashes`` in content too.

    A folder that does not exist, or whose manifest cannot be read, gives the manifest's name.
    """
    try:
        files = json.loads((folder / MANIFEST).read_text("utf-8"))["files"]
        return [name for name, expected in files.items() if not _matches(folder / name, expected, hashes)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return [MANIFEST]


def _matches(path: Path, expected: dict, hashes: bool) -> bool:
    if not path.is_file() or path.stat().st_size != expected["size"]:
        return False
    return not hashes or sha256_of(path) == expected["sha256"]


def sha256_of(path: Path, report: Callable[[int], None] | None = None) -> str:
    """The file's sha256 in hexadecimal; ``report`` is told the bytes read so far."""
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            done += len(chunk)
            if report:
                report(done)
    return digest.hexdigest()


@contextmanager
def work_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside ``folder``, on its file system, removed at the end.

    The caller holds the lock of ``folder``: work folders that a killed process left behind are removed first.
    """
    prefix = f".{folder.name}.work-"
    for stale in folder.parent.glob(f"{prefix}*"):
        shutil.rmtree(stale, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=prefix, dir=folder.parent))
    try:
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def publish(built: Path, folder: Path, about: dict[str, str]) -> None:
    """Give the finished folder ``built`` the name ``folder``, whole or not at all.

    A manifest with ``about``, and with size (bytes) and sha256 of every file, is added first. ``built`` lies
    in a work folder: a damaged ``folder`` of that name is moved there and goes away with it.
    """
    files = {path.name: _describe(path) for path in sorted(built.iterdir())}
    (built / MANIFEST).write_text(json.dumps({**about, "files": files}, indent=2), "utf-8")
    mode = (built / MANIFEST).stat().st_mode
    for path in built.iterdir():
        path.chmod(mode)  # safetensors makes its file private, but a cache may be shared by a class
        _sync(path)
    _sync(built)
    if folder.exists():
        os.rename(folder, built.with_name("damaged"))
    os.rename(built, folder)
    _sync(folder.parent)


def _describe(path: Path) -> dict[str, int | str]:
    return {"size": path.stat().st_size, "sha256": sha256_of(path)}


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():
        return  # Windows cannot open a folder to flush it
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
