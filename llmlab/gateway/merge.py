"""Several runs as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from llmlab.api.reply import BlockStart, ReplyEvent, SampleEnd
from llmlab.engine.run import Delta, Run

Source = tuple[int, Run]
"""A run, and the number of its first sample in the reply."""


async def merged(sources: list[Source]) -> AsyncIterator[tuple[int, Run, Delta]]:
    """The deltas of runs as they come: sample of the reply, run, delta. Raises the first error of a run."""
    if len(sources) == 1:
        ((first, run),) = sources
        async with aclosing(run.adeltas()) as deltas:
            async for delta in deltas:
                yield first + delta.sample, run, delta
        return
    queue: asyncio.Queue[tuple[int, Run, Delta] | Exception | None] = asyncio.Queue()
    pumps = [asyncio.create_task(_pump(source, queue)) for source in sources]
    try:
        open_sources = len(pumps)
        while open_sources:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                open_sources -= 1
            else:
                yield item
    finally:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


async def _pump(source: Source, queue: asyncio.Queue) -> None:
    try:
        async with aclosing(merged([source])) as deltas:
            async for item in deltas:
                queue.put_nowait(item)
        queue.put_nowait(None)
    except Exception as error:  # handed to the reader, who raises it
        queue.put_nowait(error)


async def first_sample_first(events: AsyncIterator[ReplyEvent]) -> AsyncIterator[ReplyEvent]:
    """The same events, those of other samples held back until sample 0 has begun a block or ended."""
    held: list[ReplyEvent] = []
    waiting = True
    async with aclosing(events):
        async for event in events:
            if waiting and getattr(event, "sample", 0) > 0:
                held.append(event)
                continue
            yield event
            if waiting and isinstance(event, BlockStart | SampleEnd):
                waiting = False
                for late in held:
                    yield late
