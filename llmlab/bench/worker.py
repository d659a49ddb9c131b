"""The worker process: serves one contender, one JSON line in, one JSON line out, until its input ends."""

from __future__ import annotations

import gc
import json
import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TextIO

from llmlab.bench.job import Hello, Job, Settings

if TYPE_CHECKING:
    from llmlab.bench.contenders import Contender


def main() -> None:
    """Read settings, then jobs; answer each with ``{"ok": ...}`` or ``{"error": ...}``."""
    answers = take_stdout()
    settings = Settings(**json.loads(sys.stdin.readline()))
    try:
        contender = _prepare(settings)
    except Exception as error:  # the parent decides what becomes of it
        _answer(answers, {"error": _describe(error)})
        return
    _answer(answers, {"ok": asdict(Hello(contender.vocab_size))})
    try:
        for line in sys.stdin:
            _answer(answers, _serve(contender, Job(**json.loads(line))))
    finally:
        contender.close()


def _serve(contender: Contender, job: Job) -> dict[str, Any]:
    gc.collect()  # what earlier jobs left behind is not this one's to collect
    try:
        return {"ok": asdict(contender.serve(job))}
    except Exception as error:
        return {"error": _describe(error)}


def take_stdout() -> TextIO:
    """Standard output as a private stream; what libraries print goes to standard error instead."""
    private = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return private


def _prepare(settings: Settings) -> Contender:
    import torch
    from transformers.utils import logging

    from llmlab.bench.contenders import make_contender

    torch.set_num_threads(settings.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    return make_contender(settings)


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _answer(answers: TextIO, message: dict[str, Any]) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
