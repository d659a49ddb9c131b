"""Opening a notebook: JupyterLab in this environment, or a link when a hub's server already runs here."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from llmlab.errors import LabError, MissingExtra

HOST = "127.0.0.1"
KERNEL = "python3"
HUB_PREFIX, HUB_ROOT, HUB_URL = "JUPYTERHUB_SERVICE_PREFIX", "JUPYTERHUB_ROOT_DIR", "JUPYTERHUB_PUBLIC_URL"


def jupyterlab_command(notebook: Path, *, browser: bool = True, port: int | None = None) -> list[str]:
    """The command that serves the notebook's folder on loopback and opens, or prints, a link to the notebook itself.

    Naming the file as an argument would not do: the printed link would then be that of an empty workspace. Without
    ``port`` JupyterLab takes 8888 or the next free one.
    """
    command = [
        *(sys.executable, "-m", "jupyterlab", f"--ip={HOST}", "--log-level=WARN"),
        f"--ServerApp.root_dir={notebook.parent}",
        f"--LabApp.default_url=/lab/tree/{quote(notebook.name)}",
    ]
    if not browser:
        command.append("--no-browser")
    if port is not None:
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")  # the one account of many containers; the server still asks for its token
    return command


def prefer_this_environment() -> None:
    """In this process and in JupyterLab, let this environment's kernels come before those in the user's folder."""
    os.environ["JUPYTER_PREFER_ENV_PATH"] = "1"


def check_jupyterlab() -> None:
    """Raise ``MissingExtra`` without JupyterLab, ``LabError`` when its kernel would be another environment's Python."""
    if find_spec("jupyterlab") is None:
        raise MissingExtra(
            f"JupyterLab is not installed in this environment: {sys.executable} -m pip install jupyterlab"
        )
    python = kernel_python()
    if not _same_environment(python):
        raise LabError(
            f"the kernel {KERNEL!r} runs {python}, where llmlab may be missing: "
            f"{sys.executable} -m ipykernel install --sys-prefix makes one for this environment"
        )


def kernel_python() -> str:
    """The interpreter that a notebook of kernel ``python3`` would run in. Raises ``LabError`` when there is none."""
    from jupyter_client.kernelspec import NoSuchKernel
    from jupyter_client.manager import KernelManager

    try:
        return KernelManager(kernel_name=KERNEL).format_kernel_cmd()[0]
    except NoSuchKernel as error:
        raise LabError(f"there is no kernel {KERNEL!r}: {sys.executable} -m pip install ipykernel") from error


def check_port(port: int) -> None:
    """Raise ``LabError`` when nobody can listen there."""
    with socket.socket() as probe:
        if sys.platform != "win32":
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            problem = "the port is in use: give another, or leave out --port to take the next free one"
            raise LabError(f"cannot listen on {HOST}:{port}: {problem if in_use else error}") from error


def hub_link(notebook: Path, environ: Mapping[str, str]) -> str | None:
    """Where the notebook is on the hub's server that runs here; ``None`` outside a hub.

    Raises ``LabError`` when the server does not show the notebook's folder.
    """
    prefix = environ.get(HUB_PREFIX)
    if not prefix:
        return None
    root = Path(environ.get(HUB_ROOT) or Path.home()).resolve()
    if not notebook.resolve().is_relative_to(root):
        raise LabError(
            f"the hub's server shows {root} and what is below it: choose a --dir there, not {notebook.parent}"
        )
    inside = notebook.resolve().relative_to(root).as_posix()
    base = environ.get(HUB_URL) or prefix
    return f"{base.rstrip('/')}/lab/tree/{quote(inside)}"


def run_jupyterlab(command: list[str]) -> NoReturn:
    """Become JupyterLab: the same process, so Ctrl-C and whoever started it reach it."""
    sys.stdout.flush()
    if sys.platform == "win32":  # there exec returns to the shell at once
        raise SystemExit(subprocess.call(command))
    os.execv(command[0], command)


def _same_environment(python: str) -> bool:
    """Whether ``python`` is this interpreter under one of its names; one reached from elsewhere is not."""
    ours, theirs = Path(sys.executable), Path(python)
    return theirs.parent.resolve() == ours.parent.resolve() and theirs.resolve() == ours.resolve()
