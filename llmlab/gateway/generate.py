"""What happens to a request for a reply, stage by stage: from the key to the backend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from time import time
from typing import TYPE_CHECKING, Any

from llmlab.api import ids
from llmlab.api.codec import Codec
from llmlab.api.conversation import Conversation
from llmlab.api.reply import ReplyInfo
from llmlab.api.rules import Rules
from llmlab.gateway import faults
from llmlab.gateway.auth import Identity
from llmlab.gateway.backend import Call
from llmlab.gateway.body import parse_body, read_body
from llmlab.gateway.disconnect import stopping_error
from llmlab.gateway.exchange import Exchange
from llmlab.gateway.failover import Failover
from llmlab.gateway.priority import Grant, grant
from llmlab.gateway.reply import Reply
from llmlab.gateway.routing import Choice

if TYPE_CHECKING:
    from llmlab.gateway.app import Gateway

QUICK_BYTES = 4096
"""Bodies above this are decoded on another thread: checking a JSON Schema can take 50 ms a kilobyte."""

Decode = Callable[[Any, Mapping[str, str], Rules], Conversation]


async def authenticated(gateway: Gateway, exchange: Exchange) -> Identity:
    """Who asks; raises ``ApiError`` 401. Rate-limit headers are on the response from here on."""
    with exchange.log.stage("authenticate") as stage:
        identity = gateway.keys.identify(exchange.headers)
        stage.note("key accepted" if len(gateway.keys) else "no key is asked for", name=identity.name)
    exchange.writer.headers |= gateway.limiter.headers(identity.name, exchange.is_anthropic)
    return identity


async def read_json(gateway: Gateway, exchange: Exchange) -> Any:
    """The value in the body, recorded as it came; raises ``ApiError``."""
    settings = gateway.settings
    with exchange.log.stage("read body") as stage:
        body = await read_body(exchange.receive, exchange.headers, settings.max_body_bytes, gateway.read_timeout_s)
        exchange.record_request(body)
        exchange.body_bytes = len(body)
        stage.note("complete", bytes=len(body))
        return await parse_body(body, settings.max_depth)


async def decoded(gateway: Gateway, exchange: Exchange, decode: Decode, body: Any) -> Conversation:
    """The request in a body, checked by a codec; off the event loop when it may take long. Raises ``ApiError``."""
    arguments = (body, exchange.headers, gateway.settings.rules)
    with exchange.log.stage("decode") as stage:
        if exchange.body_bytes > QUICK_BYTES:
            conversation = await asyncio.to_thread(decode, *arguments)
        else:
            conversation = decode(*arguments)
        stage.note(
            "valid",
            turns=len(conversation.turns),
            tools=len(conversation.tools),
            stream=conversation.stream,
            ignored=len(conversation.ignored),
        )
    return conversation


@dataclass(frozen=True, slots=True)
class Generate:
    """Serves the endpoints that generate; one per wire format."""

    gateway: Gateway
    codec: Codec

    async def __call__(self, exchange: Exchange) -> None:
        """Serve one request; every failure is raised as ``ApiError`` for the caller to tell the client."""
        gateway = self.gateway
        if gateway.stopping:
            raise stopping_error()
        identity = await authenticated(gateway, exchange)
        plan = gateway.faults.plan_for(identity.name, exchange.headers.get(faults.HEADER))
        body = await read_json(gateway, exchange)
        await exchange.guarded(self._serve(exchange, identity, body, plan), gateway.stop)

    async def _serve(self, exchange: Exchange, identity: Identity, body: Any, plan: faults.Plan | None) -> None:
        if plan is not None:
            await self._apply(exchange, plan)
        conversation = await decoded(self.gateway, exchange, self.codec.decode, body)
        if exchange.asks_for_beta:
            conversation = replace(conversation, beta=True)
        charge = self._admit_key(exchange, identity)
        choice, granted = await self._route(exchange, conversation, identity)
        if conversation.model != choice.model:
            exchange.requested_model = conversation.model
        with self._slot(exchange, granted):
            metrics = self.gateway.metrics.follow(choice.model, choice.index, conversation)
            exchange.metrics = metrics
            call = self._call(exchange, conversation, choice, granted, identity)
            reply = Reply(
                exchange,
                self.codec,
                Failover(self.gateway.router, choice, identity.salt, exchange.log, metrics.move),
                call,
                (metrics, charge),
                lambda: self.gateway.limiter.headers(identity.name, exchange.is_anthropic),
                self.gateway.settings.ping_s,
            )
            try:
                await reply.send()
            except asyncio.CancelledError:
                metrics.break_off("abort")
                raise
            except Exception:
                metrics.break_off("error")
                raise

    async def _apply(self, exchange: Exchange, plan: faults.Plan) -> None:
        """Carry out what comes before the head, and arm what comes after it."""
        exchange.log.event("fault", plan.text)
        await asyncio.sleep(plan.delay)
        if plan.status is not None:
            raise faults.refusal(plan)
        exchange.break_with(plan)

    def _admit_key(self, exchange: Exchange, identity: Identity):
        limiter = self.gateway.limiter
        try:
            with exchange.log.stage("rate limit") as stage:
                charge = limiter.admit(identity.name)
                left = {kind: int(bucket.level) for kind, bucket in charge.buckets.items()}
                stage.note("within the limits" if left else "no limits are set", **left)
        finally:
            exchange.writer.headers |= limiter.headers(identity.name, exchange.is_anthropic)
        return charge

    async def _route(self, exchange: Exchange, conversation: Conversation, identity: Identity) -> tuple[Choice, Grant]:
        with exchange.log.stage("route") as stage:
            choice = await self.gateway.router.pick(conversation, identity.salt)
            stage.note(choice.reason, **choice.details)
        return choice, grant(identity, conversation)

    def _slot(self, exchange: Exchange, granted: Grant):
        admission = self.gateway.admission
        with exchange.log.stage("admit") as stage:
            slot = admission.slot()
            stage.note(granted.reason, open=admission.open, max_open=admission.max_open, tier=granted.tier)
            stage.details["priority"] = granted.priority
        return slot

    def _call(
        self, exchange: Exchange, conversation: Conversation, choice: Choice, granted: Grant, identity: Identity
    ) -> Call:
        info = ReplyInfo(
            message_id=ids.message_id() if conversation.protocol == "anthropic" else ids.completion_id(),
            model=choice.model,
            created=int(time()),
            service_tier=granted.tier,
        )
        return Call(exchange.wire_id, conversation, info, granted.priority, identity.salt)
