"""``llmlab ask``: one prompt, its answer as it is generated, and where the time went."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from llmlab.commands.arguments import check_trace_target, clean, prompt_text, save_trace
from llmlab.commands.options import (
    Device,
    Model,
    PipelineParallel,
    Quantize,
    Speculative,
    TensorParallel,
    Threads,
    check_quantize,
    check_speculative,
)
from llmlab.commands.summary import as_object, as_rows
from llmlab.commands.terminal import TextStream, stderr_console, two_columns
from llmlab.engine.params import SamplingParams
from llmlab.models.catalogue import DEFAULT_MODEL

if TYPE_CHECKING:
    from llmlab.engine.run import Run


def ask(
    prompt: Annotated[str, typer.Argument(help="One user message; - reads it from standard input.")],
    system: Annotated[str | None, typer.Option(help="System message put before the prompt.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Most output tokens.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 takes the likeliest token every time.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="Sample from the likeliest tokens of this total.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes sampling repeatable.")] = None,
    model: Model = DEFAULT_MODEL,
    device: Device = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    threads: Threads = None,
    speculative: Speculative = None,
    quantize: Quantize = None,
    tensor_parallel: TensorParallel = 1,
    pipeline_parallel: PipelineParallel = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")] = False,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the trace, e.g. to ask.trace.jsonl.gz.")
    ] = None,
) -> None:
    """Ask a model. The answer streams to standard output; timings follow on standard error."""
    import llmlab

    sampling = {"max_tokens": max_tokens, "temperature": temperature, "top_p": top_p, "seed": seed}
    SamplingParams.from_kwargs(**sampling)  # a mistake shows before the model is loaded
    check_speculative(speculative)
    check_quantize(quantize)
    check_trace_target(trace)
    text = prompt_text(prompt)
    split = {"tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel}
    weights = {"dtype": dtype, "quantize": quantize}
    with llmlab.open(model, device=device, threads=threads, speculative=speculative, **weights, **split) as lab:
        with lab.submit(text, system=system and clean(system), **sampling) as run:
            _stream(run, silent=as_json)
        recorded = run.trace
        if trace is not None:
            save_trace(lab.trace, trace)
    if as_json:
        print(json.dumps(as_object(run, recorded)))
    else:
        stderr_console().print(two_columns(as_rows(run, recorded)))


def _stream(run: Run, silent: bool) -> None:
    """Follow the run to its end, showing its text unless ``silent``."""
    if silent:
        run.wait()
        return
    stream = TextStream(sys.stdout)
    try:
        for text in run:
            stream.write(text)
    finally:
        stream.end_line()
