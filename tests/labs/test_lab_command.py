"""`llmlab lab` as people run it: copies, links, refusals, and a JupyterLab that really starts."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer.testing import CliRunner

from llmlab.cli import app
from llmlab.errors import LabError, MissingExtra
from llmlab.labs import jupyter
from llmlab.labs.shipped import shipped

needs_jupyterlab = pytest.mark.skipif(find_spec("jupyterlab") is None, reason="JupyterLab is not installed")
LINK = re.compile(r"(http://127\.0\.0\.1:\d+)(/lab/tree/00_one_request\.ipynb)\?token=(\w+)")


def run(*arguments, **environ):
    """`llmlab lab ARGUMENTS` in this process: exit status and everything printed."""
    done = CliRunner().invoke(app, ["lab", *arguments], env={"JUPYTERHUB_SERVICE_PREFIX": None, **environ})
    return done.exit_code, done.output


@pytest.fixture(autouse=True)
def _own_data_folder(tmp_path_factory, monkeypatch):
    """No signature goes into the folder of whoever runs the tests."""
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path_factory.mktemp("data")))


@pytest.fixture
def executed(monkeypatch):
    """The command that would have replaced this process."""
    commands = []
    monkeypatch.setattr(jupyter, "run_jupyterlab", commands.append)
    return commands


def test_what_is_copied_is_trusted_and_what_was_changed_is_not(tmp_path, monkeypatch):
    sign = pytest.importorskip("nbformat.sign")
    nbformat = pytest.importorskip("nbformat")
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    run("reset", "00", "--dir", str(tmp_path))
    copied = nbformat.read(tmp_path / "00_one_request.ipynb", as_version=4)
    notary = sign.NotebookNotary()
    assert notary.check_signature(copied)
    copied.cells[-1].source += " changed"
    assert not notary.check_signature(copied)
    notary.store.close()


def test_list_says_how_each_copy_stands(tmp_path):
    status, said = run("list", "--dir", str(tmp_path))
    assert status == 0
    assert shipped()[0].title[:20] in said
    assert "not copied yet" in said
    assert list(tmp_path.iterdir()) == []


def test_reset_says_where_the_own_copy_went(tmp_path):
    run("reset", "00", "--dir", str(tmp_path))
    (tmp_path / "00_one_request.ipynb").write_text("mine")
    status, said = run("reset", "0", "--dir", str(tmp_path))
    assert status == 0
    assert "yours is 00_one_request.backup-1.ipynb" in said
    assert (tmp_path / "00_one_request.backup-1.ipynb").read_text() == "mine"


@needs_jupyterlab
@pytest.mark.parametrize("arguments", [(), ("00",), ("open", "00"), ("--no-browser",)])
def test_open_is_what_lab_does_by_itself(tmp_path, executed, arguments):
    status, said = run(*arguments, "--dir", str(tmp_path / "my labs"))
    assert status == 0, said
    assert (tmp_path / "my labs" / "00_one_request.ipynb").is_file()
    command = executed[0]
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={tmp_path / 'my labs'}" in command
    assert "--LabApp.default_url=/lab/tree/00_one_request.ipynb" in command
    assert "--ip=127.0.0.1" in command
    assert ("--no-browser" in command) is ("--no-browser" in arguments)


@needs_jupyterlab
def test_a_changed_copy_is_kept_and_said(tmp_path, executed):
    (tmp_path / "00_one_request.ipynb").write_text("mine")
    said = run("--dir", str(tmp_path))[1]
    assert "kept, you changed it (`llmlab lab reset 00` puts the shipped one back)" in said.replace("\n", " ")
    assert (tmp_path / "00_one_request.ipynb").read_text() == "mine"


@needs_jupyterlab
def test_a_port_in_use_is_refused_before_anything_is_copied(tmp_path, executed):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        status, said = run("--dir", str(tmp_path), "--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "leave out --port to take the next free one" in said
    assert list(tmp_path.iterdir()) == []
    assert executed == []


@needs_jupyterlab
def test_a_free_port_is_the_only_one_tried(tmp_path, executed):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    run("--dir", str(tmp_path), "--port", str(port))
    assert {f"--ServerApp.port={port}", "--ServerApp.port_retries=0"} <= set(executed[0])


def test_an_unknown_lab_is_wrong_usage(tmp_path):
    status, said = run("77", "--dir", str(tmp_path))
    assert status == 2
    assert "there is no lab '77': there are 00_one_request.ipynb" in said


def test_inside_a_hub_the_link_is_printed(tmp_path, executed):
    hub = {"JUPYTERHUB_SERVICE_PREFIX": "/user/ann/", "JUPYTERHUB_ROOT_DIR": str(tmp_path)}
    status, said = run("--dir", str(tmp_path / "my labs"), **hub)
    assert status == 0
    assert "Open /user/ann/lab/tree/my%20labs/00_one_request.ipynb" in said
    assert (tmp_path / "my labs" / "00_one_request.ipynb").is_file()
    assert executed == []


def test_a_folder_the_hub_does_not_show_is_refused(tmp_path):
    environ = {"JUPYTERHUB_SERVICE_PREFIX": "/user/ann/", "JUPYTERHUB_ROOT_DIR": str(tmp_path / "home")}
    with pytest.raises(LabError, match="choose a --dir there"):
        jupyter.hub_link(tmp_path / "labs" / "00_one_request.ipynb", environ)


def test_a_hub_that_says_its_address_gives_a_whole_link(tmp_path):
    environ = {
        "JUPYTERHUB_SERVICE_PREFIX": "/user/ann/",
        "JUPYTERHUB_ROOT_DIR": str(tmp_path),
        "JUPYTERHUB_PUBLIC_URL": "https://hub.example/user/ann/",
    }
    assert jupyter.hub_link(tmp_path / "a.ipynb", environ) == "https://hub.example/user/ann/lab/tree/a.ipynb"


def test_without_jupyterlab_the_command_that_installs_it_is_named(monkeypatch):
    monkeypatch.setattr(jupyter, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match="-m pip install jupyterlab"):
        jupyter.check_jupyterlab()


@needs_jupyterlab
def test_the_kernel_is_this_environments_python():
    assert Path(jupyter.kernel_python()) == Path(sys.executable)
    jupyter.check_jupyterlab()


@needs_jupyterlab
def test_another_environments_kernel_is_refused(monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    argv = ["/usr/bin/python3-of-another", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (folder / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Other", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    with pytest.raises(LabError, match=r"python3-of-another, where llmlab may be missing: .* ipykernel install"):
        jupyter.check_jupyterlab()


@needs_jupyterlab
@pytest.mark.skipif(sys.platform == "win32", reason="signals differ there")
def test_a_real_start_prints_a_link_that_opens_the_notebook_and_ends_with_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "llmlab", "lab", "00", "--no-browser", "--dir", str(tmp_path / "labs")]
    places = {"HOME": "", "JUPYTER_RUNTIME_DIR": "run", "JUPYTER_DATA_DIR": "data"}
    environ = {**os.environ, **{name: str(tmp_path / place) for name, place in places.items()}}
    environ.pop("JUPYTERHUB_SERVICE_PREFIX", None)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    server = subprocess.Popen(command, env=environ, text=True, **pipes)
    try:
        link = next(match for line in server.stdout if (match := LINK.search(line)))
        shown = _read(f"{link[1]}/api/contents/00_one_request.ipynb?content=0&token={link[3]}")
        assert json.loads(shown)["type"] == "notebook"
        server.send_signal(signal.SIGINT)  # without a terminal nobody is asked whether to end: one is enough
        assert server.wait(30) == 0
    finally:
        if server.poll() is None:
            server.kill()
        server.stdout.close()


def _read(url):
    """What is at ``url``; the link is printed before the port listens."""
    for _ in range(60):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                return answer.read()
        except OSError:
            time.sleep(0.25)
    raise AssertionError(f"nothing answers at {url}")
