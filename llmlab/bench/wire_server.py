"""The serving process of the wire benchmark: the gateway before the model without weights.

It prints its address as one JSON line. Each further line of its input, ``{"streams": S, "tokens": T, "requests": R}``,
has the same work done without HTTP, by ``S`` tasks of one event loop, ``R`` requests each, and is answered with
``{"seconds": [...]}``: how long each request took.
"""

from __future__ import annotations

import asyncio
import json
import sys
from time import perf_counter

from llmlab.bench.worker import take_stdout
from llmlab.lab import Lab

MESSAGES = [{"role": "user", "content": "How long does it take?"}]


def main() -> None:
    """Serve until the input ends."""
    from llmlab.opening import open

    answers = take_stdout()
    with open("mock", num_blocks=4096, max_num_seqs=16) as lab, lab.serve(port=0) as server:
        _answer(answers, {"url": server.url})
        for line in sys.stdin:
            _answer(answers, {"seconds": asyncio.run(_direct(lab, **json.loads(line)))})


async def _direct(lab: Lab, streams: int, tokens: int, requests: int) -> list[float]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_one_after_the_other(lab, tokens, requests)) for _ in range(streams)]
    return [seconds for task in tasks for seconds in task.result()]


async def _one_after_the_other(lab: Lab, tokens: int, requests: int) -> list[float]:
    seconds = []
    for _ in range(requests):
        start = perf_counter()
        async for _delta in lab.submit(MESSAGES, max_tokens=tokens).adeltas():
            pass
        seconds.append(perf_counter() - start)
    return seconds


def _answer(answers, message: dict) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
