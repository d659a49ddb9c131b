"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option(help="A catalogue name, a folder, hub:ORG/NAME, or mock (no weights).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="physical cores minus one")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
