"""From the state of a session to the body of a request (article A, section 2).

A pure function: the same session gives the same bytes. What it decided on the way is in ``Assembled.notes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

from llmlab.api.conversation import Ttl
from llmlab.api.sse import to_json
from llmlab.client.betas import BetaLatch
from llmlab.client.breakpoints import Mark, marker_problems, place
from llmlab.client.entry import Entry, text_block
from llmlab.client.output_limit import DEFAULT_MAX_TOKENS
from llmlab.client.tool_order import order_tools
from llmlab.client.visibility import Visible, visible_messages
from llmlab.errors import InvalidParameter
from llmlab.trace.events import Stage
from llmlab.trace.recorder import Recorder

SAMPLING = ("temperature", "top_p", "top_k")
NO_SAMPLING_SINCE = "2026-10-21"
"""From this ``anthropic-version`` on, a sampling field is refused even at its default value."""


@dataclass(frozen=True, slots=True)
class SystemText:
    """A block of the system prompt. Blocks that change from turn to turn (``stable=False``) are sent last."""

    text: str
    stable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The policy half of a request: how it is to be handled. ``None`` and empty values are left out of the body.

    ``user_id`` is opaque; a mapping is packed into a JSON string. ``extra`` adds fields as they are, and may not
    replace one. ``cache=False`` places no markers; ``stable_ttl`` and ``messages_ttl`` are their times to live.
    """

    max_tokens: int = DEFAULT_MAX_TOKENS
    version: str = "2023-06-01"
    stream: bool = True
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: tuple[str, ...] = ()
    thinking: Mapping[str, Any] | None = None
    tool_choice: Mapping[str, Any] | None = None
    output_config: Mapping[str, Any] | None = None
    context_management: Mapping[str, Any] | None = None
    user_id: str | Mapping[str, Any] | None = None
    service_tier: str | None = None
    speed: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    betas: tuple[str, ...] = ()
    builtin_tools: tuple[str, ...] = ()
    cache: bool = True
    stable_ttl: Ttl = "5m"
    messages_ttl: Ttl = "5m"


@dataclass(frozen=True, slots=True)
class Assembled:
    """A request ready to be sent. ``last_position`` is passed as ``previous`` when the session's next one is made."""

    request: dict[str, Any]
    headers: dict[str, str]
    notes: list[str]
    marks: tuple[Mark, ...]
    last_position: int | None

    @property
    def body(self) -> bytes:
        """The request as it crosses the wire."""
        return to_json(self.request).encode()


def assemble(
    model: str,
    entries: Sequence[Entry],
    *,
    options: Options,
    system: Sequence[SystemText] = (),
    first: Sequence[Mapping[str, Any]] = (),
    tools: Sequence[Mapping[str, Any]] = (),
    latch: BetaLatch | None = None,
    previous: int | None = None,
    recorder: Recorder | None = None,
    wire_id: str = "",
) -> Assembled:
    """Body and headers for the next request of a session.

    ``first`` are text blocks that lead the first user message: project notes and the like, which do not belong into
    the system prompt. ``latch`` keeps beta switches on. ``previous`` is the former request's ``last_position``. With a
    ``recorder`` the work is one :class:`Stage` ``assemble`` on side ``client``.

    Raises ``InvalidParameter`` for options that contradict each other and when nothing is left to send.
    """
    start = perf_counter_ns()
    visible = visible_messages([Entry("user", tuple(first)), *entries] if first else entries)
    blocks = sorted(system, key=lambda block: not block.stable)
    notes = [*visible.notes, *_order_notes(system, blocks)]
    request = _body(model, blocks, visible, tools, options, notes)
    marks, last = (), None
    if options.cache:
        request, marks, last = _marked(request, blocks, options, previous, notes)
    done = Assembled(request, _headers(options, latch, notes), notes, marks, last)
    if recorder is not None and recorder.enabled:
        recorder.emit(_stage(start, done, wire_id))
    return done


def _order_notes(system: Sequence[SystemText], blocks: Sequence[SystemText]) -> list[str]:
    return ["moved changing system blocks behind the stable ones"] if list(system) != list(blocks) else []


def _body(
    model: str,
    system: Sequence[SystemText],
    visible: Visible,
    tools: Sequence[Mapping[str, Any]],
    options: Options,
    notes: list[str],
) -> dict[str, Any]:
    """All fields in the order in which they are sent; what is empty is not sent."""
    if not visible.messages:
        raise InvalidParameter("no entry of the session is to be sent; add a user entry first")
    fields: dict[str, Any] = {
        "model": model,
        "max_tokens": options.max_tokens,
        "stream": options.stream or None,
        "tools": order_tools(tools, options.builtin_tools),
        "tool_choice": options.tool_choice,
        "system": [text_block(block.text) for block in system if block.text],
        "messages": visible.messages,
        "thinking": _thinking(options),
        **_sampling(options, notes),
        "stop_sequences": list(options.stop_sequences),
        "output_config": options.output_config,
        "context_management": options.context_management,
        "metadata": _metadata(options.user_id),
        "service_tier": options.service_tier,
        "speed": options.speed,
    }
    kept = {name: value for name, value in fields.items() if value is not None and value not in ([], {}, ())}
    return kept | _extra(options.extra, kept, notes)


def _extra(extra: Mapping[str, Any], taken: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    clash = sorted(set(extra) & set(taken))
    if clash:
        raise InvalidParameter(f"extra fields may only add, and {', '.join(clash)} is there already")
    notes += [f"added the extra field {name!r} unchecked" for name in extra]
    return dict(extra)


def _thinking(options: Options) -> dict[str, Any] | None:
    if options.thinking is None:
        return None
    budget = options.thinking.get("budget_tokens")
    if budget is not None and budget >= options.max_tokens:
        raise InvalidParameter(
            f"thinking.budget_tokens={budget} must be below max_tokens={options.max_tokens}: thinking is output too"
        )
    return dict(options.thinking)


def _sampling(options: Options, notes: list[str]) -> dict[str, Any]:
    """Sampling fields that the server would accept; the others are left out with a note."""
    kept = {}
    for name in SAMPLING:
        value = getattr(options, name)
        if value is None:
            continue
        if reason := _refusal(name, value, options):
            notes.append(f"left out {name}: {reason}")
        else:
            kept[name] = value
    return kept


def _refusal(name: str, value: float, options: Options) -> str:
    if options.version >= NO_SAMPLING_SINCE:
        return f"version {options.version} refuses it"
    if (options.thinking or {}).get("type", "disabled") == "disabled":
        return ""
    if name == "top_p":
        return "" if 0.95 <= value <= 1 else "with thinking only 0.95 to 1 is accepted"
    return "thinking fixes it"


def _metadata(user_id: str | Mapping[str, Any] | None) -> dict[str, str] | None:
    if user_id is None:
        return None
    return {"user_id": user_id if isinstance(user_id, str) else to_json(user_id)}


def _marked(
    request: dict[str, Any],
    system: Sequence[SystemText],
    options: Options,
    previous: int | None,
    notes: list[str],
) -> tuple[dict[str, Any], tuple[Mark, ...], int | None]:
    marked = place(
        request,
        stable_system=sum(block.stable and bool(block.text) for block in system),
        previous=previous,
        stable_ttl=options.stable_ttl,
        messages_ttl=options.messages_ttl,
    )
    assert not marker_problems(marked.request), "the placement keeps the protocol's rules"
    notes += [f"marked {'.'.join(map(str, mark.path))} for {mark.ttl}: {mark.why}" for mark in marked.marks]
    return marked.request, marked.marks, marked.last_position


def _headers(options: Options, latch: BetaLatch | None, notes: list[str]) -> dict[str, str]:
    latch = latch if latch is not None else BetaLatch()
    known = len(latch.held)
    betas = latch.header(options.betas)
    notes += [f"kept a beta: {held.reason}" for held in latch.held[known:]]
    headers = {"anthropic-version": options.version}
    return headers if betas is None else headers | {"anthropic-beta": betas}


def _stage(start: int, done: Assembled, wire_id: str) -> Stage:
    details = {"bytes": len(done.body), "messages": len(done.request["messages"]), "notes": list(done.notes)}
    return Stage(start, perf_counter_ns(), wire_id, "client", "assemble", "ok", "session to request body", details)
