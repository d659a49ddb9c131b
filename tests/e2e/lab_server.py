"""A real JupyterLab on loopback, with a home of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60


@dataclass(frozen=True)
class LabServer:
    """Where it listens, the folder it shows and the file its log goes to."""

    url: str
    folder: Path
    log: Path


@contextmanager
def serving(folder: Path, home: Path, names: tuple[str, ...]):
    """JupyterLab showing ``folder`` with the shipped notebooks of these names, which `llmlab lab` puts there.

    Nothing of the user's own settings is used, and no news pop-up lies over the page.
    """
    for name in names:
        command = [sys.executable, "-m", "llmlab", "lab", "reset", name, "--dir", str(folder)]
        subprocess.run(command, env=_environ(home), check=True, capture_output=True)
    settings = home / "settings" / "@jupyterlab" / "apputils-extension" / "notification.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(json.dumps({"fetchNews": "false", "checkForUpdates": False}))
    server = LabServer(f"http://127.0.0.1:{_free_port()}", folder, home / "server.log")
    with server.log.open("w") as log:
        process = subprocess.Popen(
            _command(server), cwd=folder, env=_environ(home), stdout=log, stderr=log, start_new_session=True
        )
    try:
        _wait(server, process)
        yield server
    finally:
        _stop(process)


def _command(server: LabServer) -> list[str]:
    return [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1"),
        *(f"--port={server.url.rpartition(':')[2]}", "--ServerApp.port_retries=0", "--ServerApp.allow_root=True"),
        *("--IdentityProvider.token=", "--ServerApp.password=", f"--ServerApp.root_dir={server.folder}"),
        *("--LabApp.expose_app_in_browser=True", "--LabApp.extension_manager=readonly"),
        "--ServerApp.terminals_enabled=False",
    ]


def _environ(home: Path) -> dict[str, str]:
    """Jupyter's places inside ``home``; the model cache stays the user's."""
    from llmlab.models.cache import CACHE_VARIABLE, cache_dir

    places = {
        "HOME": "home",
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "run",
        "IPYTHONDIR": "ipython",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
    }
    made = {name: str(home / place) for name, place in places.items()}
    return {**os.environ, **made, "JUPYTER_PREFER_ENV_PATH": "1", CACHE_VARIABLE: str(cache_dir())}


def _wait(server: LabServer, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{server.url}/api/status", timeout=2).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"JupyterLab did not start: {server.log.read_text()[-3000:]}")


def _stop(process: subprocess.Popen) -> None:
    """End it and its kernels."""
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]
