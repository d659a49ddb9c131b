"""The command line: what every command shares. The commands are in :mod:`llmlab.commands`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from llmlab import __version__
from llmlab.commands import lab, models
from llmlab.commands.ask import ask
from llmlab.commands.bench import bench
from llmlab.commands.doctor import doctor
from llmlab.commands.plan import plan
from llmlab.commands.send import send
from llmlab.commands.serve import serve
from llmlab.commands.terminal import print_error
from llmlab.commands.train_head import train_head
from llmlab.errors import InvalidParameter, LabError

FAILED, BAD_USAGE = 1, 2


class Commands(TyperGroup):
    """A group whose commands end with one line on standard error when they raise a named error."""

    def invoke(self, ctx: typer.Context) -> Any:
        """Run the command; a :class:`~llmlab.errors.LabError` becomes its message and an exit status."""
        try:
            return super().invoke(ctx)
        except LabError as error:
            print_error(str(error))
            raise typer.Exit(BAD_USAGE if isinstance(error, InvalidParameter) else FAILED) from error


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(ask)
app.command()(send)
app.command()(serve)
app.command()(bench)
app.command()(doctor)
app.command()(plan)
app.command()(train_head)
app.add_typer(lab.app, name="lab")
app.add_typer(models.app, name="models")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"llmlab {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Serve a real language model and watch every stage of a request.

    Exit status: 0 done, 1 failed, 2 wrong usage, 130 interrupted.
    """
