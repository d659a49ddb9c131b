"""The engine of a process that decodes, while another one computes the prompts (disaggregated prefill).

A prompt of P tokens goes to the prefill process, which computes its first P - 1 positions with a scheduler, a pool and
a prefix cache of its own, and copies the K/V blocks over. Here they are written into blocks of this pool, and the last
position is computed in a step among the decoding requests: it chooses the first token. No position is computed twice. A
request that is preempted here is recomputed here.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from bisect import insort
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from operator import attrgetter
from time import perf_counter_ns
from typing import Any

from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.request import Request, Status, StopReason
from llmlab.engine.run import POLL_S, Run
from llmlab.engine.runner import Runner
from llmlab.engine.sequence import Sequence
from llmlab.errors import InvalidParameter, PrefillLost
from llmlab.parallel.disaggregated_scheduler import DecodeScheduler
from llmlab.parallel.kv_link import Buffer
from llmlab.parallel.kv_link_blocks import block_port
from llmlab.parallel.prefill_process import PrefillProcess, PrefillSettings
from llmlab.trace.events import Span
from llmlab.trace.split_events import BlockTransfer, RankWork


@dataclass(slots=True)
class Handoff:
    """A request whose prompt is computed elsewhere. ``place`` is its range of the shared memory, ``data`` where its K/V
    arrives and ``header`` what describes it then. ``request`` is ``None`` once nobody waits for it."""

    name: str
    request: Request | None
    link: PrefillProcess
    place: tuple[int, int] | None
    data: Buffer | None
    header: dict[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> tuple[int, int]:
        """As the request's."""
        return self.request.order


class DecodeEngine(Engine):
    """An :class:`Engine` that never runs a prompt, but for its last position.

    Raises what :class:`PrefillProcess` raises. When the prefill process ends, requests it was working for end with
    ``PrefillLost``, others go on, and the next request starts another.
    """

    scheduler_type = DecodeScheduler
    scheduler: DecodeScheduler

    def __init__(self, runner: Runner, tokenizer: Any, *, prefill: PrefillSettings, **options: Any) -> None:
        if options.get("host_blocks"):
            raise InvalidParameter("host_blocks= and disaggregated= do not go together: leave out one of them")
        self.split = f"prefill and decode, K/V by {prefill.medium}"
        super().__init__(runner, tokenizer, **options)
        self._check_speculation()
        self._settings, self.port = prefill, block_port(runner)
        self._numbers = count()
        self._handoffs: dict[str, Handoff] = {}  # all the other process has not answered for
        self._arrived: list[Handoff] = []  # sorted by the requests' order
        self._starting = threading.Lock()
        self.prefill = self._start_prefill()

    def _check_speculation(self) -> None:
        if self.speculator is not None and self.speculator.proposer.name != "ngram":
            raise InvalidParameter(
                f"speculative={self.speculator.proposer.name!r} reads more of the prompt than its K/V, and that is all "
                "the prefill process hands over: use speculative='ngram', or leave out disaggregated="
            )

    def _start_prefill(self) -> PrefillProcess:
        link = PrefillProcess(self._settings, partial(_hear, weakref.ref(self)))
        self._end_prefill = weakref.finalize(self, link.close)
        if link.block_bytes != self.port.nbytes(1):
            link.close()
            raise PrefillLost(f"a block has {link.block_bytes} bytes there and {self.port.nbytes(1)} here")
        return link

    # -- requests -------------------------------------------------------------------------------------------

    def submit(self, prompt_token_ids: list[int], params: SamplingParams | None = None, **options: Any) -> Run:
        """:meth:`Engine.submit`. Refuses by ``InvalidParameter`` what needs every prompt position computed here, and
        starts another prefill process (some seconds) when the last one was lost."""
        if params is not None and params.prompt_logprobs is not None:
            raise _not_here("prompt_logprobs=")
        for name in ("capture", "intervene"):
            if options.get(name):
                raise _not_here(f"{name}=")
        with self._starting:
            if self.prefill.is_lost and not self._closed:
                self._end_prefill()  # and forget it, so that its memory goes with its last handoff
                self.prefill = self._start_prefill()
        return super().submit(prompt_token_ids, params, **options)

    def queue(self, request: Request) -> None:
        """Give the prompt to the prefill process. One of a single token has nothing to hand over."""
        ready = request.num_prompt - 1
        if ready == 0:
            super().queue(request)
            return
        link, name = self.prefill, f"{request.id}#{next(self._numbers)}"
        place, data = None, None
        if link.memory is not None:
            place = link.memory.take(self.port.nbytes(self.pool.blocks_for(ready)))
            data = link.memory.map(place)
        self._handoffs[name] = Handoff(name, request, link, place, data)
        self.scheduler.leave(request)
        salt = request.params.cache_salt
        tokens = {"tokens": request.prompt_token_ids[:ready], "salt": salt, "priority": request.priority}
        link.send({"type": "prefill", "id": name, "place": place, **tokens})
        if link.is_lost:  # it may have been lost before this request was known
            self._on_lost(link)

    def end(self, sequence: Sequence, reason: StopReason) -> None:
        """Also tell the prefill process, or drop what it handed over."""
        self._forget(sequence.request)
        super().end(sequence, reason)

    def _forget(self, request: Request) -> None:
        for handoff in [h for h in self._arrived if h.request is request]:
            self._arrived.remove(handoff)
            self._release(handoff)
        for handoff in self._handoffs.values():
            if handoff.request is request:
                handoff.request = None
                handoff.link.send({"type": "abort", "id": handoff.name})

    # -- what the prefill process says ------------------------------------------------------------------------

    def hear(self, header: dict[str, Any], payload: Buffer) -> None:
        """A message; called by the thread that reads them."""
        if header["type"] != "work":
            self._post(partial(self._on_reply, header, payload, perf_counter_ns()))
        elif self.recorder.enabled:
            self.recorder.emit(_rank_work(header))

    def _on_reply(self, header: dict[str, Any], payload: Buffer, now: int) -> None:
        if header["type"] == "lost":
            self._on_lost(header["link"])
            return
        handoff = self._handoffs.pop(header["id"], None)
        if handoff is None:
            return
        if handoff.request is None or header["type"] == "dropped":
            self._release(handoff)
            if handoff.request is not None:
                self._fail(handoff.request, f"the prefill process gave up this prompt: {header['reason']}")
            return
        handoff.header = header
        handoff.data = payload if handoff.place is None else handoff.data
        self._record_sent(handoff, now)
        insort(self._arrived, handoff, key=attrgetter("order"))

    def _on_lost(self, link: PrefillProcess) -> None:
        for name in [name for name, handoff in self._handoffs.items() if handoff.link is link]:
            handoff = self._handoffs.pop(name)
            self._release(handoff)
            if handoff.request is not None:
                self._fail(handoff.request, "the prefill process ended while it had this prompt: ask again")

    def _fail(self, request: Request, problem: str) -> None:
        run = self.sequence(request).run
        self.end_run(run, StopReason.ERROR, PrefillLost(f"run {run.id}: {problem}"))

    def _release(self, handoff: Handoff) -> None:
        """Let go of the bytes of a handoff that the prefill process has answered for."""
        if isinstance(handoff.data, mmap.mmap):
            handoff.data.close()
        handoff.data = None
        if handoff.place is not None:
            handoff.link.memory.give_back(handoff.place)

    # -- stepping ---------------------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step. Stepped by hand, it waits for the prefill process where there is nothing else to do."""
        if super().step():
            return True
        if not self._handoffs or self._thread is threading.current_thread():
            return False
        self._wake.clear()
        if not self._inbox:
            self._wake.wait(POLL_S)
        return True

    def _drain_inbox(self) -> None:
        super()._drain_inbox()
        while self._arrived and self._land(self._arrived[0]):
            self._release(self._arrived.pop(0))

    def _land(self, handoff: Handoff) -> bool:
        """Write what arrived into blocks of this pool, if there is room for the request."""
        header, begin = handoff.header, perf_counter_ns()
        landing = self.scheduler.land(handoff.request, header["num_tokens"], header["num_cached"])
        if landing is None:
            return False
        self.port.write(landing.blocks, handoff.data, len(header["blocks"]), landing.first)
        self.pool.register(handoff.request)
        self._record_received(handoff, landing.blocks, begin)
        return True

    # -- trace ------------------------------------------------------------------------------------------------

    def _record_sent(self, handoff: Handoff, now: int) -> None:
        header, request_id = handoff.header, handoff.request.id
        if self.recorder.enabled:
            self.recorder.emit(Span(header["scheduled"], header["send"], "prefill process", request_id))
            blocks, step = tuple(header["blocks"]), header["step"]
            self._transfer(header["send"], now, step, request_id, "send", blocks, header["num_tokens"])

    def _record_received(self, handoff: Handoff, blocks: list[int], begin: int) -> None:
        if self.recorder.enabled:
            num_tokens = handoff.header["num_tokens"]
            here = (len(handoff.header["blocks"]) - len(blocks)) * self.pool.block_size
            now, step = perf_counter_ns(), self.journal.step
            self._transfer(begin, now, step, handoff.request.id, "receive", tuple(blocks), num_tokens - here)

    def _transfer(
        self, begin: int, end: int, step: int, request_id: str, action: str, blocks: tuple[int, ...], num_tokens: int
    ) -> None:
        nbytes = self.port.nbytes(len(blocks))
        reason = "prompts are computed by the prefill process"
        where = ("prefill", "decode", self._settings.medium)
        transfer = BlockTransfer(begin, end, step, request_id, action, *where, blocks, num_tokens, nbytes, reason)
        self.recorder.emit(transfer)

    # -- end --------------------------------------------------------------------------------------------------

    def check_integrity(self) -> None:
        """Also assert that no shared memory is kept for a request that has ended."""
        with self._step_lock:
            super().check_integrity()
            waiting = [h.request for h in (*self._handoffs.values(), *self._arrived) if h.request is not None]
            assert all(request.status is Status.WAITING and not request.block_table for request in waiting)
            if not self._handoffs and not self._arrived and self.prefill.memory is not None:
                assert self.prefill.memory.nbytes_taken == 0

    def close(self) -> None:
        """End open requests with :class:`~llmlab.errors.EngineStopped`, then the prefill process."""
        try:
            super().close()
        finally:
            with self._starting:
                self.prefill.close()
            for handoff in (*self._handoffs.values(), *self._arrived):
                self._release(handoff)
            self._handoffs, self._arrived = {}, []
            if self.prefill.memory is not None:
                self.prefill.memory.close()


def _hear(reference: weakref.ref[DecodeEngine], link: PrefillProcess, header: dict[str, Any], payload: Buffer) -> None:
    engine = reference()
    if engine is not None:
        engine.hear({**header, "link": link} if header["type"] == "lost" else header, payload)


def _rank_work(header: dict[str, Any]) -> RankWork:
    return RankWork(
        header["begin"], header["end"], header["step"], 1, "prefill", "forward", num_tokens=header["num_tokens"]
    )


def _not_here(what: str) -> InvalidParameter:
    return InvalidParameter(
        f"{what} needs the prompt computed in this process, and with disaggregated= another one computes it: "
        "open the lab without"
    )
