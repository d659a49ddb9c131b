"""One request's tokens in the engine and in the usage objects of both protocols, on one axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import wrap

import pandas as pd

from llmlab.api.usage import Usage
from llmlab.trace.index import Index
from llmlab.trace.requests import num_prompt
from llmlab.trace.trace import Trace
from llmlab.views.choose import choose_request
from llmlab.views.glyphs import fit
from llmlab.views.missing import missing_view
from llmlab.views.scene import Key, Line, Mark, Rect, Scene, Text
from llmlab.views.usage_counts import CHAT, MESSAGES, Counts, Said, counts_of, said_on_the_wire
from llmlab.views.view import View

NAMES, VALUES, ROW, HEAD = 268, 96, 19, 28
ENGINE = "engine"
COLUMNS = ("ledger", "field", "tokens", "source")
NOTES = {
    "wire": "as it crossed the wire",
    "computed": "computed from the same counts",
    "recorded": "what was done for this request",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """A count of a ledger, and which tokens it counts: ``start`` is the first one's place on the axis, where the prompt
    comes first, then the output, then what was computed for nothing. ``is_lost`` says that it is of the last kind."""

    ledger: str
    field: str
    tokens: int
    source: str
    start: int
    fill: str
    is_lost: bool = False


def usage_ledger(trace: Trace, request_id: str | None = None, *, width: float = 960) -> View:
    """What was computed, cached and generated for a request, and how both protocols count it.

    The usage of the protocol that was spoken is read from the wire's record; the other's, or both without an exchange,
    is computed from the same counts and marked so. Raises ``UnknownRequest``.
    """
    index = trace.index
    if request_id is None and not index.request_ids:
        what = (
            "There is no request in this trace: lab.ask('...'), or lab.client().send({...}) over the wire, records one."
        )
        return missing_view("usage_ledger", "Usage", what, COLUMNS, width)
    request_id = choose_request(trace, request_id)
    counts = counts_of(index, request_id)
    exchange = index.exchanges.by_request_id.get(request_id)
    said = None if exchange is None else said_on_the_wire(exchange)
    usage = said.usage if said and said.usage else _own_usage(counts)
    entries = [*_engine(counts), *_protocols(usage, said)]
    verdict = _verdict(index, request_id, counts, usage, said)
    notes = tuple(_notes(index, request_id, counts, said))
    key = {"request": request_id} | ({"wire": exchange.id} if exchange else {})
    return View(
        "usage_ledger",
        f"Usage of request {request_id}",
        f"The tokens of request {request_id} in the engine and in both protocols' usage objects on one axis: {verdict}",
        _text(request_id, counts, entries, verdict),
        _scene(entries, counts, usage, verdict, key, width),
        pd.DataFrame([(e.ledger, e.field, e.tokens, e.source) for e in entries], columns=list(COLUMNS)),
        notes,
    )


def _own_usage(counts: Counts) -> Usage:
    return Usage(counts.prompt - counts.cached, counts.cached, output=counts.output, engine_cached=counts.cached)


# -- entries -------------------------------------------------------------------------------------------------


def _engine(counts: Counts) -> Iterator[Entry]:
    prompt, end = counts.prompt, counts.prompt + counts.output
    rows = [
        ("prompt from the prefix cache", counts.cached, 0, "c4"),
        ("prompt computed", counts.computed, counts.cached, "c0"),
        (f"prompt {counts.rest_name}", counts.rest, counts.cached + counts.computed, ""),
        ("output", counts.output, prompt, "c2"),
        ("accepted drafts in the output", counts.accepted, prompt, "c2"),
        ("rejected drafts", counts.rejected, end, "c5"),
        ("recomputed after preemption", counts.again, end + counts.rejected, "c5"),
    ]
    always = {"prompt from the prefix cache", "prompt computed", "output"}
    for field, tokens, start, fill in rows:
        if tokens or field in always:
            yield Entry(ENGINE, field, tokens, "recorded", start, fill, fill == "c5")


def _protocols(usage: Usage, said: Said | None) -> Iterator[Entry]:
    spoken = said.protocol if said and said.usage else None
    for protocol, fields in ((MESSAGES, _messages(usage)), (CHAT, _chat(usage))):
        source = "wire" if protocol == spoken else "computed"
        for field, tokens, start, fill in fields:
            # who thinks is known to the gateway only: without its word there is no such number
            if spoken or field not in ("thinking_tokens", "reasoning_tokens"):
                yield Entry(protocol, field, tokens, source, start, fill)


def _messages(usage: Usage) -> list[tuple[str, int, int, str]]:
    fields = usage.anthropic()
    read, written = fields["cache_read_input_tokens"], fields["cache_creation_input_tokens"]
    return [
        ("cache_read_input_tokens", read, 0, "c4"),
        ("cache_creation_input_tokens", written, read, "c1"),
        ("input_tokens", fields["input_tokens"], read + written, "c0"),
        ("output_tokens", fields["output_tokens"], usage.prompt, "c2"),
        ("thinking_tokens", fields["output_tokens_details"]["thinking_tokens"], usage.prompt, "c3"),
    ]


def _chat(usage: Usage) -> list[tuple[str, int, int, str]]:
    fields = usage.openai()
    return [
        ("prompt_tokens", fields["prompt_tokens"], 0, "c0"),
        ("cached_tokens", fields["prompt_tokens_details"]["cached_tokens"], 0, "c4"),
        ("completion_tokens", fields["completion_tokens"], usage.prompt, "c2"),
        ("reasoning_tokens", fields["completion_tokens_details"]["reasoning_tokens"], usage.prompt, "c3"),
        ("total_tokens", fields["total_tokens"], 0, "muted"),
    ]


# -- words ---------------------------------------------------------------------------------------------------


def _verdict(index: Index, request_id: str, counts: Counts, usage: Usage, said: Said | None) -> str:
    total = f"{usage.prompt:,} prompt + {usage.output:,} output = {usage.prompt + usage.output:,} tokens"
    prompt, output = _expected(index, request_id, counts, said)
    if said is None or said.usage is None:
        return f"the engine counts {total}; both protocols' usage is computed from that."
    if (usage.prompt, usage.output) == (prompt, output):
        return f"the wire, the other protocol and the engine count {total}."
    return f"the wire counts {total}, but the engine {prompt:,} prompt + {output:,} output."


def _expected(index: Index, request_id: str, counts: Counts, said: Said | None) -> tuple[int, int]:
    """The engine's counts of everything that one answer was made of: the first request's prompt, all outputs."""
    exchange = index.exchanges.by_request_id.get(request_id)
    if said is None or said.usage is None or exchange is None:
        return counts.prompt, counts.output
    mine = set(exchange.request_ids)
    return num_prompt(index, exchange.request_ids[0]), sum(token.request_id in mine for token in index.tokens)


def _notes(index: Index, request_id: str, counts: Counts, said: Said | None) -> Iterator[str]:
    exchange = index.exchanges.by_request_id.get(request_id)
    if exchange is None:
        yield "No exchange carried this request, so no thinking is told apart; lab.client().send({...}) records one."
    elif said is None:
        yield "No usage is in the exchange's record: the answer had none, it was cut, or it has not ended."
    elif said.usage is None:
        yield f"The {said.protocol} usage on the wire has fields that are no counts, so both are computed."
    elif len(exchange.request_ids) > 1:
        yield f"The wire counts {len(exchange.request_ids)} engine requests of one answer; the engine's rows are one's."
    if said and said.usage and said.usage.cache_read != counts.cached:
        yield (
            f"The prefix cache held {counts.cached:,} tokens; the wire counts {said.usage.cache_read:,} as read, "
            "up to the request's cache markers."
        )


def _text(request_id: str, counts: Counts, entries: Sequence[Entry], verdict: str) -> str:
    lines = []
    for ledger in dict.fromkeys(entry.ledger for entry in entries):
        mine = [entry for entry in entries if entry.ledger == ledger]
        fields = ", ".join(f"{entry.field} {entry.tokens:,}" for entry in mine)
        lines.append(f"{ledger} ({NOTES[mine[0].source]}): {fields}")
    return "\n".join([*lines, f"{request_id}: {verdict}", _computed(counts)])


def _computed(counts: Counts) -> str:
    parts = f"{counts.computed:,} prompt + {counts.fed_back:,} output fed back"
    lost = f"{counts.again:,} again + {counts.rejected:,} rejected"
    return f"its rows in all steps: {parts} + {lost} = {counts.total:,} tokens computed"


# -- the picture ---------------------------------------------------------------------------------------------


def _scene(entries: Sequence[Entry], counts: Counts, usage: Usage, verdict: str, key: Key, width: float) -> Scene:
    last = max([1, *(entry.start + entry.tokens for entry in entries)])
    per = (width - NAMES - VALUES) / last
    marks: list[Mark] = []
    y = 14.0
    for ledger in dict.fromkeys(entry.ledger for entry in entries):
        mine = [entry for entry in entries if entry.ledger == ledger]
        marks.append(Text(0, y + 16, f"{ledger}" if ledger == ENGINE else f"{ledger} usage", 12, bold=True, key=key))
        marks.append(Text(NAMES, y + 16, NOTES[mine[0].source], 10.5, "muted"))
        y += HEAD
        for entry in mine:
            marks += _entry(entry, per, y, key)
            y += ROW
        y += 6
    guides = list(_guides(counts, usage, per, y))
    for line in wrap(verdict[0].upper() + verdict[1:], int(width / 7.5)):
        y += 18
        marks.append(Text(0, y, line, 12, bold=True, key=key))
    for line in wrap(_computed(counts), int(width / 6.6)):
        y += 17
        marks.append(Text(0, y, line, 11, "muted", key=key))
    return Scene(width, y + 10, (*guides, *marks))


def _guides(counts: Counts, usage: Usage, per: float, bottom: float) -> Iterator[Mark]:
    """Where the prompt begins and ends, and the output."""
    end = usage.prompt + usage.output
    x = [NAMES, NAMES + usage.prompt * per, NAMES + end * per]
    for at in x:
        yield Line(((at, 16), (at, bottom)), "line", 0.8)
    for left, right, word in ((x[0], x[1], "prompt"), (x[1], x[2], "output")):
        shown = fit(word, right - left - 4, 10.5)
        if shown == word:
            yield Text((left + right) / 2, 11, word, 10.5, "muted", anchor="middle")
    if counts.again + counts.rejected:
        yield Text(x[2] + 4, 11, "in no usage", 10.5, "muted")


def _entry(entry: Entry, per: float, y: float, key: Key) -> Iterator[Mark]:
    x, w = NAMES + entry.start * per, entry.tokens * per
    is_protocol = entry.ledger != ENGINE
    name = fit(entry.field, NAMES - 24, 11.5, is_protocol)
    yield Text(12, y + 13, name, 11.5, mono=is_protocol, key=key)
    tip = f"{entry.ledger}: {entry.field} {entry.tokens:,}, {NOTES[entry.source]}"
    if entry.tokens:
        computed = entry.source == "computed"
        outline = "muted" if computed or not entry.fill else ""
        # a computed field is outlined and paler, what no usage counts is struck through
        opacity = 0.55 if computed else 1
        box = Rect(x, y + 3, max(w, 1.5), 13, entry.fill, outline, 1, entry.is_lost, computed, opacity, tip, key)
        yield box
    yield Text(x + max(w, 1.5) + 6, y + 13, f"{entry.tokens:,}", 11, "ink", bold=True, tip=tip, key=key)
