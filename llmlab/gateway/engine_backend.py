"""Our own engine behind the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import time
from typing import Any

from llmlab.api.conversation import Conversation
from llmlab.api.usage import Usage
from llmlab.engine.run import Output, Run
from llmlab.errors import LabError
from llmlab.gateway.backend import Call, Model
from llmlab.gateway.cache_diagnostics import CacheDiagnostics, fingerprint
from llmlab.gateway.failures import to_api_error
from llmlab.gateway.generation import EngineGeneration, Work
from llmlab.gateway.grammar import Grammars
from llmlab.gateway.preparation import Preparation, Prepared, is_quick
from llmlab.gateway.prompt_cache import PromptCache
from llmlab.gateway.recording import ExchangeLog
from llmlab.gateway.rendering import Renderer
from llmlab.gateway.settings import Settings
from llmlab.gateway.signatures import Signer
from llmlab.gateway.thinking import closed_thinking
from llmlab.gateway.token_bytes import TokenBytes
from llmlab.lab import Lab
from llmlab.trace.events import Span
from llmlab.trace.recorder import Recorder


class EngineBackend:
    """Implements :class:`llmlab.gateway.backend.Backend` on a lab's engine. Used from one event loop.

    ``context`` is the longest sequence in tokens that both the model and the K/V pool can hold. ``signer`` signs
    thinking; ``prompt_cache`` is the ledger of cache breakpoints.
    """

    def __init__(
        self,
        lab: Lab,
        settings: Settings,
        recorder: Recorder | None = None,
        *,
        signer: Signer | None = None,
        prompt_cache: PromptCache | None = None,
    ) -> None:
        self.engine, self.settings = lab.engine, settings
        self.recorder = lab.engine.recorder if recorder is None else recorder
        self.name = lab.model
        self.created = int(time())
        self.signer = Signer() if signer is None else signer
        self.prompt_cache = PromptCache(settings.min_cache_tokens) if prompt_cache is None else prompt_cache
        self.diagnostics = CacheDiagnostics()
        capacity = self.engine.capacity
        self.context = min(capacity.max_model_len, capacity.num_blocks * capacity.block_size)
        self._preparation = Preparation(
            Renderer(lab.tokenizer),
            self.signer,
            self.name,
            self.context,
            settings.overflow,
            settings.thinking_budget,
        )
        self.token_bytes = TokenBytes(lab.tokenizer)
        self._grammars: Grammars | None = None
        self._open: set[EngineGeneration] = set()
        self._totals = {"preemptions": 0, "queries": 0, "hits": 0}

    # -- the backend ----------------------------------------------------------------------------------------

    async def models(self) -> list[Model]:
        """The one model of the lab; both limits are the context less one token, as either side needs one."""
        most = self.context - 1
        limit = self.settings.rules.max_output_tokens
        return [Model(self.name, self.created, most, most if limit is None else min(limit, most))]

    async def open(self, call: Call) -> EngineGeneration:
        """Render and queue a request. Raises ``ApiError`` for everything that can be refused."""
        request_id = self.engine.new_id()
        salt = _joined_salt(call)
        try:
            log = ExchangeLog(self.recorder, call.wire_id)
            prepared, constraint = await self._off_loop(
                call.conversation, lambda: self._prepare(call.conversation, salt, log)
            )
            self._record_spans(prepared, request_id)
            work = Work(call, prepared, self._look_up(prepared, salt, log), constraint)
            generation = EngineGeneration(self, work, request_id)
        except LabError as error:
            raise to_api_error(error) from error
        self._open.add(generation)
        return generation

    async def count_tokens(self, conversation: Conversation) -> tuple[int, int]:
        """``(prompt tokens after context edits, before them)``; raises ``ApiError``."""

        def count() -> tuple[int, int]:
            edited = self._preparation.edit(conversation)
            after = self._preparation.count(edited.conversation) if edited.after is None else edited.after
            return after, after if edited.before is None else edited.before

        try:
            return await self._off_loop(conversation, count)
        except LabError as error:
            raise to_api_error(error) from error

    @property
    def load(self) -> int:
        """Requests open here, waiting ones included."""
        return len(self._open)

    def gauges(self) -> dict[str, float]:
        """``running`` and ``waiting`` requests, ``kv_usage`` (0 to 1), and totals of finished runs: ``preemptions``,
        ``queries`` and ``hits`` of the prefix cache (tokens). With speculation also totals since the beginning:
        ``drafts``, ``draft_tokens`` and ``accepted_tokens``. Any thread may ask.
        """
        pool, scheduler = self.engine.pool, self.engine.scheduler
        return {
            "running": float(len(scheduler.running)),
            "waiting": float(len(scheduler.waiting)),
            "kv_usage": pool.num_used / pool.num_blocks,
            **{name: float(total) for name, total in (self._totals | self._drafted()).items()},
        }

    def _drafted(self) -> dict[str, int]:
        return {} if self.engine.speculator is None else self.engine.speculator.totals

    async def aclose(self) -> None:
        """End what is still open. The lab's engine is its owner's to close."""
        for generation in list(self._open):
            await generation.aclose()

    # -- opening --------------------------------------------------------------------------------------------

    async def _off_loop(self, conversation: Conversation, work) -> Any:
        """Run ``work``, in a thread when it may take long, so that other requests go on."""
        return work() if is_quick(conversation) else await asyncio.to_thread(work)

    def _prepare(self, conversation: Conversation, salt: str, log: ExchangeLog) -> tuple[Prepared, Any]:
        prepared = self._preparation.prepare(conversation, salt, log)
        calls_tools = bool(conversation.tools) and conversation.tool_choice.mode != "none"
        if conversation.prewarm or not (calls_tools or conversation.format is not None):
            return prepared, None
        grammars = self._read_vocabulary(log)
        with log.stage("compile grammar") as stage:
            if calls_tools:
                factory = grammars.tool_calls(conversation.tools, conversation.tool_choice)
            else:
                factory = grammars.json(conversation.format.schema)
            stage.note("cached" if factory.was_cached else "first use", tools=len(conversation.tools))
        return prepared, factory

    def _read_vocabulary(self, log: ExchangeLog) -> Grammars:
        """The compiler of grammars. The first request that needs it waits for it, so that the others need not."""
        if self._grammars is None:
            with log.stage("read vocabulary") as stage:
                vocab_size = self.engine.capacity.vocab_size
                self._grammars = Grammars(self.engine.tokenizer, vocab_size, self.engine.eos_token_ids)
                stage.note("first use of a grammar", tokens=vocab_size)
        return self._grammars

    def _look_up(self, prepared: Prepared, salt: str, log: ExchangeLog):
        """The ledger's answer, or ``None`` when reads are counted as the engine has them."""
        if prepared.conversation.protocol != "anthropic" or self.settings.cache_accounting == "engine":
            return None
        rendered = prepared.rendered
        plan = self.prompt_cache.look_up(salt, rendered.ids, rendered.positions)
        if plan.marked:
            with log.stage("prompt cache") as stage:
                reason = "an earlier prefix was found" if plan.found else "no earlier prefix was found"
                stage.note(reason, found=plan.found, markers=len(plan.marked))
        return plan

    def _record_spans(self, prepared: Prepared, request_id: str) -> None:
        if self.recorder.enabled:
            start, rendered, done = prepared.rendered.times
            self.recorder.emit(Span(start, rendered, "render template", request_id))
            self.recorder.emit(Span(rendered, done, "tokenize", request_id))

    # -- for generations ------------------------------------------------------------------------------------

    def begin(self, work: Work, run: Run) -> Usage:
        """The reply begins: what it marked can be read from now on. Returns the prompt's usage."""
        cached = run.num_cached or 0
        if work.cache is None:
            return Usage(len(run.prompt_token_ids) - cached, cached, engine_cached=cached)
        self.prompt_cache.begin(work.cache)
        return work.cache.usage(cached)

    def diagnose(self, work: Work) -> dict[str, Any] | None:
        """Anthropic's ``diagnostics`` object when it was asked for; remembers this prompt for the next request."""
        conversation, rendered = work.prepared.conversation, work.prepared.rendered
        if conversation.protocol != "anthropic":
            return None
        now = fingerprint(conversation, self.name, len(rendered.ids))
        self.diagnostics.remember(work.call.info.message_id, now, work.call.salt)
        if not conversation.wants_diagnostics:
            return None
        skipped = len(conversation.tools) + len(conversation.system)
        ends = [rendered.tools_end, rendered.system_end, *(p.tokens for p in rendered.positions[skipped:])]
        return self.diagnostics.compare(
            conversation.previous_message_id,
            now,
            ends,
            available=self.engine.pool.prefix_cache,
            salt=work.call.salt,
        )

    def closed_thinking(self, output: Output) -> list[int]:
        """Token ids of a thinking phase and its closing mark, to go on from."""
        encoder = self._preparation.renderer.encoder
        return closed_thinking(output, self.engine.tokenizer, encoder, self.engine.eos_token_ids)

    def closed(self, generation: EngineGeneration, runs: Sequence[Run]) -> None:
        """A generation let go of its runs; called once or more."""
        if generation not in self._open:
            return
        self._open.discard(generation)
        for run in runs:
            usage = run.usage
            self._totals["queries"] += usage.get("prompt_tokens", 0)
            self._totals["hits"] += usage.get("cached_tokens", 0)
            self._totals["preemptions"] += usage.get("preemptions", 0)


def _joined_salt(call: Call) -> str:
    """The credential's salt and the request's own, kept apart."""
    own = call.conversation.cache_salt
    return f"{call.salt}\0{own}" if own else call.salt
