"""The tokens of one request with what the trace knows about each: the facts of the token strip."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmlab.trace.events import TextEmitted, Token
from llmlab.trace.requests import cached_tokens, num_prompt
from llmlab.trace.trace import Trace
from llmlab.views.choose import token_label

HALF, STOP, UNSURE, NEVER = "half a character", "may begin a stop string", "not certain yet", "never shown"


@dataclass(frozen=True, slots=True)
class TokenFact:
    """One position.

    ``source``: ``prompt``, ``cached`` (served, not computed), ``shared`` (taken over from the first sample),
    ``target``, ``accepted``, ``recovered`` or ``bonus``. ``step`` computed a prompt token, or chose an output token;
    ``shown`` is the step in which an output token's text was emitted (each -1: none recorded). ``held`` says why its
    text came later than the token, or never though the request is over; empty when it came at once. ``logprob`` is NaN
    when it was not recorded.
    """

    position: int
    token_id: int
    label: str
    source: str
    step: int = -1
    logprob: float = float("nan")
    shown: int = -1
    held: str = ""
    t_ns: int = 0

    @property
    def is_output(self) -> bool:
        return self.source not in ("prompt", "cached", "shared")


def prompt_facts(trace: Trace, request_id: str) -> list[TokenFact]:
    """The prompt's positions; none when the submission is not in the trace."""
    index, labels = trace.index, _Labels(trace)
    submitted = index.submitted.get(request_id)
    if submitted is None:
        return []
    ids = submitted.prompt_token_ids
    steps, logprobs = _prompt_steps(trace, request_id, len(ids)), _prompt_logprobs(trace, request_id, len(ids))
    cached = cached_tokens(index)[request_id]
    rest = "shared" if submitted.parent_id else "prompt"
    sources = ["cached"] * cached + [rest] * (len(ids) - cached)
    return [
        TokenFact(i, token_id, labels[token_id], source, -1 if source == "cached" else step, logprob)
        for i, (token_id, source, step, logprob) in enumerate(zip(ids, sources, steps, logprobs, strict=True))
    ]


def _prompt_steps(trace: Trace, request_id: str, size: int) -> list[int]:
    """The step that first computed each position of the prompt."""
    index, steps = trace.index, np.full(size, -1)
    rows = index.rows
    mine = np.flatnonzero((rows.request == index.code[request_id]) & rows.is_prefill)
    for i in mine[::-1].tolist():
        start = int(rows.start[i])
        steps[start : start + int(rows.num_tokens[i])] = index.steps[rows.step[i]].step
    return steps.tolist()


def _prompt_logprobs(trace: Trace, request_id: str, size: int) -> list[float]:
    values = np.full(size, np.nan)
    for event in trace.index.prompt_logprobs:
        if event.request_id == request_id:
            part = event.logprobs[: max(size - event.start, 0)]
            values[event.start : event.start + len(part)] = part
    return values.tolist()


def output_facts(trace: Trace, request_id: str) -> list[TokenFact]:
    """The output's positions, in the order in which they were chosen."""
    labels = _Labels(trace)
    tokens = [event for event in trace.index.tokens if event.request_id == request_id]
    texts = [event for event in trace.index.texts if event.request_id == request_id]
    pieces = [trace.piece(token.token_id) for token in tokens]
    shown, reasons = _shown(tokens, texts, pieces), _reasons(pieces, _has_stops(trace, request_id))
    unshown = NEVER if request_id in trace.index.finished else ""
    return [
        TokenFact(
            token.position,
            token.token_id,
            labels[token.token_id],
            token.source,
            token.step,
            token.logprob,
            step,
            unshown if step < 0 else reason if step > token.step else "",
            token.t_ns,
        )
        for token, step, reason in zip(tokens, shown, reasons, strict=True)
    ]


def _shown(tokens: Sequence[Token], texts: Sequence[TextEmitted], pieces: Sequence[bytes | None]) -> list[int]:
    """The step in which all of each token's text was out, -1 for a token whose text never was.

    Byte by byte where the tokens' bytes are the text; else (a decoder that changes them) the first text after it.
    """
    emitted = "".join(event.text for event in texts)
    if None in pieces or "\ufffd" in emitted or not _text(pieces).startswith(emitted):
        ends, reached = np.arange(1, len(tokens) + 1), [event.num_tokens for event in texts]
    else:
        ends, reached = _ends(pieces), _ends([event.text.encode() for event in texts])
    steps = np.array([*(event.step for event in texts), -1])
    return steps[np.searchsorted(np.maximum.accumulate(np.asarray(reached, dtype=np.int64)), ends)].tolist()


def _text(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", errors="replace")


def _ends(parts: Sequence[bytes]) -> np.ndarray:
    return np.cumsum([len(part) for part in parts], dtype=np.int64)


def _has_stops(trace: Trace, request_id: str) -> bool:
    submitted = trace.index.submitted.get(request_id)
    return submitted is None or bool(submitted.params.get("stop"))


def _reasons(pieces: Sequence[bytes | None], has_stops: bool) -> list[str]:
    """Why text may be held back after each token: its bytes end within a character, or it may begin a stop string."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    reasons = []
    for piece in pieces:
        decoder.decode(piece or b"")
        reasons.append(HALF if decoder.getstate()[0] else STOP if has_stops else UNSURE)
    return reasons


class _Labels(dict[int, str]):
    """Labels of a trace's tokens, each made once."""

    def __init__(self, trace: Trace) -> None:
        super().__init__()
        self._trace = trace

    def __missing__(self, token_id: int) -> str:
        self[token_id] = label = token_label(self._trace, token_id)
        return label


def prompt_size(trace: Trace, request_id: str) -> int:
    """Prompt tokens, also when only the usage is left to say so."""
    return num_prompt(trace.index, request_id)
