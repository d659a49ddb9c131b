"""``llmlab models``: what can be fetched, and fetching it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from llmlab.commands.options import AsJson
from llmlab.commands.terminal import stdout_console
from llmlab.models.cache import MANIFEST, damaged_files, model_dir
from llmlab.models.catalogue import DEFAULT_MODEL, catalogue, lookup

app = typer.Typer(no_args_is_help=True, help="List and fetch the models of the catalogue.")


@app.command("list")
def list_models(as_json: AsJson = False) -> None:
    """Every model of the catalogue, and whether it is ready here."""
    from llmlab.installation import model_states

    states = model_states()
    if as_json:
        print(json.dumps([state.to_dict() for state in states]))
        return
    from rich.table import Table

    table = Table("name", "state", "on disk", "licence", "description")
    for state in states:
        entry = lookup(state.name)
        size = f"{state.disk_bytes / 1e6:,.0f} MB"
        table.add_row(state.name, state.state, size, entry.licence, entry.description)
    stdout_console().print(table)


@app.command("fetch")
def fetch_model(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(catalogue())}.")] = DEFAULT_MODEL,
) -> None:
    """Download a model, check its hash and convert it. One that is ready is checked; a damaged one is made again."""
    from llmlab.models.fetch import fetch

    entry = lookup(name)
    folder = model_dir(entry)
    if damaged_files(folder, hashes=True):
        (folder / MANIFEST).unlink(missing_ok=True)  # a folder without a manifest is made again
    typer.echo(fetch(entry))
