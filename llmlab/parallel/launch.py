"""Tensor parallel under ``accelerate``: the same program in every process, as frameworks for training start it.

Nobody schedules for the others here. Every process runs an engine of its own over its share of the model, and because
all of them are given the same requests, all make the same plans; the messages between the shares are all they need.

On a CPU, ``accelerate launch`` starts a single process (more only through MPI), and ``accelerate.notebook_launcher``
forks the kernel, which is not safe once torch has run threads in it. ``accelerate.debug_launcher`` forks too, so
:func:`launch` calls it in a fresh interpreter: that works from a notebook, at any time.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from llmlab.errors import InvalidParameter
from llmlab.models.catalogue import DEFAULT_MODEL
from llmlab.models.load import resolve
from llmlab.parallel.process import WorkerProcess

PROMPTS = ("The capital of France is", "One, two, three, four,")


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """What the processes found.

    ``tokens`` are the greedy tokens of each prompt and ``equal`` whether every process had those of the undivided
    model. ``all_reduces`` and ``all_reduce_bytes`` count rank 0's, ``num_tokens`` the positions computed in
    ``num_steps`` steps, ``num_parameters`` what each rank keeps of the weights.
    """

    num_processes: int
    equal: bool
    tokens: list[list[int]]
    num_steps: int
    num_tokens: int
    all_reduces: int
    all_reduce_bytes: int
    num_parameters: list[int]


def launch(
    num_processes: int = 2,
    *,
    model: str | Path = DEFAULT_MODEL,
    prompts: Sequence[str] = PROMPTS,
    max_tokens: int = 8,
    timeout_s: float = 600,
) -> LaunchReport:
    """Divide ``model`` over processes that ``accelerate`` launches, and compare their greedy tokens with its own.

    Works from a script and from a notebook. Raises ``InvalidParameter``, ``UnknownModel``, and ``RankFailed`` for a
    process that fails (the model cannot be divided so, for one) or is not done in ``timeout_s`` seconds.
    """
    if type(num_processes) is not int or num_processes < 2:
        raise InvalidParameter(f"num_processes={num_processes!r} must be an integer of at least 2")
    if isinstance(prompts, str) or not prompts:
        raise InvalidParameter(f"prompts={prompts!r} must be a list of at least one text")
    resolve(model)  # a wrong name fails before anything is started
    asked = {"model": str(model), "prompts": list(prompts), "max_tokens": max_tokens}
    with tempfile.TemporaryDirectory(prefix="llmlab-launch-") as folder:
        process = WorkerProcess("llmlab.parallel.launched", name="accelerate's processes")
        try:
            process.send({**asked, "num_processes": num_processes, "folder": folder})
            process.receive(timeout_s)
            return _merged([_read(Path(folder) / f"{rank}.json") for rank in range(num_processes)])
        finally:
            process.close()


def _read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text("utf-8"))


def _merged(found: list[dict[str, Any]]) -> LaunchReport:
    """Rank 0's counts, and whether all ranks had the tokens of the whole model."""
    first = found[0]
    equal = all(each["tokens"] == first["expected"] for each in found)
    counts = {name: first[name] for name in ("tokens", "num_steps", "num_tokens", "all_reduces", "all_reduce_bytes")}
    return LaunchReport(len(found), equal, **counts, num_parameters=[each["num_parameters"] for each in found])


def main() -> None:
    """``python -m llmlab.parallel.launch [NUM_PROCESSES]``: print the report as JSON."""
    report = launch(int(sys.argv[1]) if len(sys.argv) > 1 else 2)
    print(json.dumps(asdict(report), indent=1))
    sys.exit(0 if report.equal else 1)


if __name__ == "__main__":
    main()
