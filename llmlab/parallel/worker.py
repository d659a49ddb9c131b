"""``python -m llmlab.parallel.worker``: a rank above 0. Started by :class:`~llmlab.parallel.group.RankGroup` only.

It is told which model to load and which share of it to keep, then computes steps until its input ends.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from llmlab.parallel.channel import Channel

if TYPE_CHECKING:
    from llmlab.parallel.rank import Rank


def main() -> None:
    """Serve the parent until it is gone, or until something fails; then say what."""
    channel = Channel()
    # while the parent loads its own weights: these take most of the start
    import torch  # noqa: F401
    import transformers  # noqa: F401

    try:
        _serve(channel)
    except Exception as error:  # the parent names it
        channel.send({"error": f"{type(error).__name__}: {error}"})
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)  # threads of the group may still wait for others


def _serve(channel: Channel) -> None:
    rank = _joined(channel)
    channel.send({"joined": rank.comm.rank, "num_parameters": rank.num_parameters})
    while True:
        message = channel.receive()
        if "step" in message:
            channel.send(_stepped(rank, message))
        else:
            rank.allocate(message["num_blocks"], message["block_size"])
            channel.send({"allocated": rank.pool.nbytes})


def _joined(channel: Channel) -> Rank:
    """Load the model, meet the others, and keep the share that the first message names."""
    import torch

    from llmlab.models.load import load
    from llmlab.parallel.comm import Comm, join
    from llmlab.parallel.rank import Rank, shapes_from_json
    from llmlab.parallel.share import DivideOptions

    told = channel.receive()
    torch.set_num_threads(told["threads"])
    device = "cpu" if told["device"] == "cpu" else f"{told['device']}:{told['rank']}"
    loaded = load(told["model"], device=device, dtype=told["dtype"])
    channel.send({"loaded": told["rank"]})
    channel.receive()
    group = join(told["folder"], told["rank"], told["size"], told["backend"])
    comm = Comm(told["rank"], told["size"], told["role"], group)
    shapes = shapes_from_json(told["shapes"], loaded.device)
    return Rank(loaded, comm, DivideOptions(shapes, told["optimize"], told["micro_batches"]))


def _stepped(rank: Rank, message: dict[str, Any]) -> dict[str, Any]:
    from llmlab.parallel.sent_plan import SentPlan

    rank.step(SentPlan.from_json(message), message["recording"])
    events = [[type(event).__name__, *astuple(event)] for event in rank.comm.take_events()]
    return {"done": message["step"], "events": events}


if __name__ == "__main__":
    main()
