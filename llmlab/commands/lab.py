"""``llmlab lab``: copy the notebooks to a folder of your own and open one in JupyterLab."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

from llmlab.commands.terminal import stdout_console
from llmlab.labs.shipped import find, shipped
from llmlab.labs.working_copy import CHANGED, NEW, UPDATED, WorkingCopy

OPEN = "open"
FOLDER = Path("llmlab-labs")

Number = Annotated[str | None, typer.Argument(metavar="[NN]", help="Its number.", show_default="the first")]
Folder = Annotated[Path, typer.Option("--dir", metavar="D", help="Where your copies are.")]


class OpenByDefault(TyperGroup):
    """A group for which ``lab 03`` means ``lab open 03``."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        """Put ``open`` before arguments that name no command and ask for no help."""
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = [OPEN, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=OpenByDefault, help="Open the notebooks in JupyterLab: `llmlab lab`, or `llmlab lab 03`.")


@app.command(OPEN)
def open_lab(
    number: Number = None,
    folder: Folder = FOLDER,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open a browser, or print the link.")] = True,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, metavar="P", show_default="8888, or the next free one")
    ] = None,
) -> None:
    """Copy the notebooks and open one (what `llmlab lab` does by itself). Copies you changed are left as they are."""
    from llmlab.labs import jupyter
    from llmlab.labs.trust import trust

    notebooks = shipped()
    chosen = notebooks[0] if number is None else find(number, notebooks)
    copy = WorkingCopy(folder.resolve())
    path = copy.path(chosen)
    link = jupyter.hub_link(path, os.environ)
    if link is None:
        jupyter.prefer_this_environment()
        jupyter.check_jupyterlab()
        if port is not None:
            jupyter.check_port(port)
    _say_states(copy.update(notebooks), folder)
    trust(notebooks)
    if link is not None:
        typer.echo(f"Open {link}")
        return
    _say_start(browser, port)
    jupyter.run_jupyterlab(jupyter.jupyterlab_command(path, browser=browser, port=port))


@app.command("list")
def list_labs(folder: Folder = FOLDER) -> None:
    """Every notebook, and how your copy of it stands."""
    from rich.table import Table

    words = {NEW: "not copied yet", UPDATED: "an older one, to be updated", CHANGED: "changed by you"}
    copy = WorkingCopy(folder.resolve())
    table = Table("lab", "title", f"in {folder}")
    for notebook in shipped():
        state = copy.state(notebook)
        table.add_row(notebook.number, notebook.title, words.get(state, state))
    stdout_console().print(table)


@app.command("reset")
def reset_lab(
    number: Annotated[str, typer.Argument(metavar="NN", help="Its number.")], folder: Folder = FOLDER
) -> None:
    """Put a notebook back as it was shipped; your own is kept beside it."""
    from llmlab.labs.trust import trust

    notebook, copy = find(number, shipped()), WorkingCopy(folder.resolve())
    kept = copy.reset(notebook)
    trust((notebook,))
    typer.echo(f"{copy.path(notebook)} is as shipped" + (f"; yours is {kept.name}" if kept else ""))


def _say_states(states: dict[str, str], folder: Path) -> None:
    for name, state in states.items():
        if state in (NEW, UPDATED):
            typer.echo(f"{folder / name}: {state}")
        elif state == CHANGED:
            typer.echo(f"{folder / name}: {state} (`llmlab lab reset {name[:2]}` puts the shipped one back)")


def _say_start(browser: bool, port: int | None) -> None:
    typer.echo("Starting JupyterLab; Ctrl-C ends it.")
    if not browser or "SSH_CONNECTION" in os.environ:
        shown = port or 8888
        typer.echo(
            "Open the link with 127.0.0.1 that it prints next. From another machine, first: "
            f"ssh -N -L {shown}:127.0.0.1:{shown} THIS-MACHINE (with the link's port)"
        )
