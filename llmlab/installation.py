"""What this machine has, what llmlab would choose on it, and what is missing before it can answer."""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.models.cache import CACHE_VARIABLE, cache_dir, damaged_files, model_dir
from llmlab.models.catalogue import DEFAULT_MODEL, CatalogueEntry, catalogue
from llmlab.models.hardware import cpu_dtype_seconds, cpu_name, default_threads, measured_cpu_dtype

if TYPE_CHECKING:
    from packaging.specifiers import SpecifierSet

READY, DAMAGED, MISSING = "ready", "damaged", "not fetched"
SHOWN_VERSIONS = ("llmlab", "torch", "transformers", "tokenizers")
NOT_INSTALLED = "not installed"
FETCH = "llmlab models fetch"


@dataclass(frozen=True, slots=True)
class Problem:
    """What keeps llmlab from answering, and the command that mends it."""

    what: str
    mend: str


@dataclass(frozen=True, slots=True)
class ModelState:
    """One catalogue model: ``state`` is ``ready``, ``damaged`` or ``not fetched``; ``disk_bytes`` what it occupies."""

    name: str
    state: str
    disk_bytes: int
    folder: str

    def to_dict(self) -> dict[str, Any]:
        """Its fields as JSON types."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Compute:
    """Where and how a model would run. ``dtype_seconds``: what was measured per number format on the CPU (s)."""

    device: str
    dtype: str
    dtype_seconds: dict[str, float]
    cpu: str
    physical_cores: int
    logical_cores: int
    threads: int
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything :func:`examine` found. ``compute`` is ``None`` when torch cannot be imported, ``pip`` when it
    cannot be run."""

    versions: dict[str, str]
    compute: Compute | None
    cache: str
    cache_writable: bool
    cache_free_bytes: int
    models: tuple[ModelState, ...]
    pip: str | None
    problems: tuple[Problem, ...]

    @property
    def ready(self) -> bool:
        """Whether a prompt would be answered now, without a network."""
        return not self.problems

    def to_dict(self) -> dict[str, Any]:
        """The findings as JSON types."""
        return asdict(self) | {"ready": self.ready}

    def to_rows(self) -> dict[str, str]:
        """Names and values to show."""
        rows = dict(self.versions)
        if self.compute is not None:
            rows |= _compute_rows(self.compute)
        writable = "writable" if self.cache_writable else "not writable"
        rows["model cache"] = f"{self.cache} ({writable}, {self.cache_free_bytes / 1e9:.1f} GB free)"
        for model in self.models:
            rows[f"model {model.name}"] = f"{model.state}, {model.disk_bytes / 1e6:,.0f} MB on disk"
        return rows | {"pip": self.pip or "cannot be run"}


def examine() -> Findings:
    """Look at this installation. Reads every file of every fetched model once; changes nothing but the remembered
    measurement of number formats."""
    versions, models, pip = _versions(), model_states(), _pip_version()
    problems = _package_problems()
    compute, broken = _compute()
    problems += broken or _memory_problems(compute)
    problems += _model_problems(models, pip)
    root = _nearest_folder(cache_dir())
    return Findings(
        versions=versions,
        compute=compute,
        cache=str(cache_dir()),
        cache_writable=os.access(root, os.W_OK),
        cache_free_bytes=shutil.disk_usage(root).free,
        models=models,
        pip=pip,
        problems=tuple(problems),
    )


# -- packages -------------------------------------------------------------------------------------------------


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: _version(name) for name in SHOWN_VERSIONS}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return NOT_INSTALLED


def _package_problems() -> list[Problem]:
    """Requirements of llmlab that this environment does not meet; none when llmlab runs from a source folder."""
    try:
        stated = metadata.requires("llmlab") or []
    except metadata.PackageNotFoundError:
        return []
    from packaging.requirements import Requirement

    needed = [Requirement(line) for line in stated]
    needed = [need for need in needed if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [
        Problem(
            f"{need.name} is {_version(need.name)}, llmlab needs {need.specifier}",
            f"{sys.executable} -m pip install '{need.name}{need.specifier}'",
        )
        for need in needed
        if not _meets(_version(need.name), need.specifier)
    ]


def _meets(version: str, specifier: SpecifierSet) -> bool:
    return version != NOT_INSTALLED and specifier.contains(version, prereleases=True)


def _pip_version() -> str | None:
    command = [sys.executable, "-m", "pip", "--version", "--disable-pip-version-check"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return " ".join(done.stdout.split()[:2]) if done.returncode == 0 else None


# -- machine --------------------------------------------------------------------------------------------------


def _compute() -> tuple[Compute | None, list[Problem]]:
    """The machine as torch sees it, or why torch and transformers cannot be imported."""
    for package in ("torch", "transformers"):
        try:
            importlib.import_module(package)
        except (ImportError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            mend = f"{sys.executable} -m pip install --force-reinstall {package}"
            return None, [Problem(f"{package} cannot be imported: {reason}", mend)]
    import psutil

    memory, device = psutil.virtual_memory(), _device()
    dtype, seconds = _dtype(device)
    logical = psutil.cpu_count() or 1
    compute = Compute(
        device=device,
        dtype=dtype,
        dtype_seconds=seconds,
        cpu=cpu_name(),
        physical_cores=psutil.cpu_count(logical=False) or logical,
        logical_cores=logical,
        threads=default_threads(),
        total_bytes=memory.total,
        available_bytes=memory.available,
    )
    return compute, []


def _device() -> str:
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda ({torch.cuda.get_device_name()})"


def _dtype(device: str) -> tuple[str, dict[str, float]]:
    """The number format that ``dtype="auto"`` means, and on a CPU the seconds that decided it."""
    import torch

    from llmlab.models.load import choose_device, choose_dtype

    if device != "cpu":
        return str(choose_dtype("auto", choose_device("auto"))).removeprefix("torch."), {}
    threads = torch.get_num_threads()
    torch.set_num_threads(default_threads())
    try:
        return measured_cpu_dtype(), cpu_dtype_seconds()
    finally:
        torch.set_num_threads(threads)  # a setting of the whole process, which may be serving


def _compute_rows(compute: Compute) -> dict[str, str]:
    seconds = ", ".join(f"{name} {1e3 * value:.1f} ms" for name, value in compute.dtype_seconds.items())
    cores = f"{compute.physical_cores} physical and {compute.logical_cores} logical cores"
    return {
        "device": compute.device,
        "processor": f"{compute.cpu}, {cores}",
        "threads": f"{compute.threads} (physical cores minus one, at least 1: one is left for everything else)",
        "number format": f"{compute.dtype} ({f'measured: {seconds}' if seconds else 'not measured'})",
        "memory": f"{compute.available_bytes / 1e9:.1f} GB available of {compute.total_bytes / 1e9:.1f} GB",
    }


def _memory_problems(compute: Compute) -> list[Problem]:
    """Weights are loaded into the machine's memory first, wherever they go then."""
    width = 4 if compute.dtype == "float32" else 2
    needed = catalogue()[DEFAULT_MODEL].num_parameters * width
    if compute.available_bytes >= needed:
        return []
    have = f"{compute.available_bytes / 1e9:.2f} GB of memory are available"
    return [Problem(f"{have}, the default model's weights need {needed / 1e9:.2f} GB", "close other programs")]


# -- models ---------------------------------------------------------------------------------------------------


def model_states() -> tuple[ModelState, ...]:
    """Every catalogue model, its files compared with their hashes."""
    return tuple(_state(entry) for entry in catalogue().values())


def _state(entry: CatalogueEntry) -> ModelState:
    folder = model_dir(entry)
    if not folder.is_dir():
        return ModelState(entry.name, MISSING, 0, str(folder))
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return ModelState(entry.name, DAMAGED if damaged_files(folder, hashes=True) else READY, size, str(folder))


def _model_problems(models: tuple[ModelState, ...], pip: str | None) -> list[Problem]:
    default = next(model for model in models if model.name == DEFAULT_MODEL)
    if default.state == READY:
        return []
    what = f"the default model {default.name} is {default.state}"
    if not os.access(_nearest_folder(cache_dir()), os.W_OK):
        return [Problem(f"{what}, and {cache_dir()} is not writable", f"set {CACHE_VARIABLE}, then {FETCH}")]
    if pip is None:
        return [Problem(f"{what}, and pip cannot be run", f"{sys.executable} -m ensurepip, then {FETCH}")]
    return [Problem(what, FETCH)]


def _nearest_folder(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())
