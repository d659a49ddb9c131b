"""``llmlab doctor``: what this machine has, what llmlab chooses on it, and what is missing."""

from __future__ import annotations

import json

import typer

from llmlab.commands.options import AsJson
from llmlab.commands.terminal import stdout_console, two_columns


def doctor(as_json: AsJson = False) -> None:
    """Check this installation. Exit status 0 when `llmlab ask` would work now, without a network; else 1."""
    from llmlab.installation import examine

    findings = examine()
    if as_json:
        print(json.dumps(findings.to_dict()))
    else:
        console = stdout_console()
        console.print(two_columns(findings.to_rows()))
        for problem in findings.problems:
            console.print(f"\nProblem: {problem.what}\n  Mend:  {problem.mend}", soft_wrap=True)
        if findings.ready:
            console.print("\nReady: `llmlab ask` works here, without a network.")
    raise typer.Exit(0 if findings.ready else 1)
