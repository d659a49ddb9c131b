"""Draws ``lanes.svg`` and ``lanes-dark.svg``: six questions to the default model, in a pool too small for them all."""

from __future__ import annotations

from pathlib import Path

import llmlab
from llmlab import views

QUESTIONS = (
    "Why is the sky blue?",
    "Name three primary colours.",
    "How does a bicycle stay upright while it moves? Explain it to a child, with an example from the playground.",
    "What is the capital of France?",
    "Write a line about the sea.",
    "Why do leaves fall in autumn? Give the reason in one short sentence.",
)


def main() -> None:
    """Serve the questions, step by step, and write both pictures beside this file."""
    options = {"dtype": "float32", "num_blocks": 9, "max_num_batched_tokens": 64, "max_num_seqs": 4}
    with llmlab.open(background=False, **options) as lab:
        runs = [lab.submit(question, max_tokens=12 + 3 * i) for i, question in enumerate(QUESTIONS)]
        for run in runs:
            run.wait()
        view = views.batch_lanes(lab.trace, first_step=0)
    for theme, name in (("light", "lanes.svg"), ("dark", "lanes-dark.svg")):
        view.save(Path(__file__).with_name(name), theme)
    print(view.text)


if __name__ == "__main__":
    main()
