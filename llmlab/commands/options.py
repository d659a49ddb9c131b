"""Options that several commands take."""

from __future__ import annotations

from typing import Annotated

import typer

Model = Annotated[str, typer.Option(help="A catalogue name, a folder, hub:ORG/NAME, or mock (no weights).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.", show_default="physical cores minus one")]
Speculative = Annotated[
    str | None,
    typer.Option(help="Guess tokens ahead, verify them exactly: ngram, early-exit or head.", show_default="off"),
]
Quantize = Annotated[
    str | None,
    typer.Option(help="Linear layers on integers, on the CPU: int8 or int4.", show_default="off"),
]
TensorParallel = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes that share every layer's heads (see llmlab.open).")
]
PipelineParallel = Annotated[
    int, typer.Option(min=1, metavar="N", help="Processes that share the layers, one stage each.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def check_speculative(name: str | None) -> None:
    """Raise ``InvalidParameter`` for a name that no proposer has, before a model is loaded."""
    if name is not None:
        from llmlab.engine.speculative.config import Speculation

        Speculation.of(name)


def check_quantize(name: str | None) -> None:
    """Raise ``InvalidParameter`` for a format that weights are not rounded to, before a model is loaded."""
    if name is not None:
        from llmlab.models.quantized_format import Quantization

        Quantization.of(name)
