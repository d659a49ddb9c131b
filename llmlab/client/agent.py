"""The loop that makes a model an agent: ask, run the tools it wants, send back what they gave, until it is done.

Each step is a whole request with the whole history (article A, section 7); only the prompt cache keeps that cheap.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

from llmlab.client.agent_result import AgentResult, Reply, Sender, Turn, turn_of
from llmlab.client.assemble import Assembled, Options, SystemText, assemble
from llmlab.client.compaction import CompactionPolicy, ReadTracker, compaction_entry, compaction_request, split_kept
from llmlab.client.entry import Entry, is_empty_text, note, reply, synthetic, user
from llmlab.client.estimate import Layered, layered
from llmlab.client.output_limit import OutputLimit, limit_for
from llmlab.client.tool import LocalTool
from llmlab.client.tools import Toolbox, local_tools, tool_list
from llmlab.client.transcript import MemoryTranscript, Transcript
from llmlab.client.wire import new_wire_id
from llmlab.errors import CompactionFailed, InvalidParameter, LabError
from llmlab.trace.recorder import Recorder

MAX_TURNS = 20
FORCED = ("any", "tool")
"""Types of a tool choice that leave the model no way but to call."""


class Agent:
    """A session with a model that may use local tools.

    ``system`` is a text or blocks; ``first`` leads the first user message. ``tools`` defaults to the calculator and,
    given a ``root``, reading under it; ``external_tools`` are listed after them. ``limit`` sets ``max_tokens`` and
    takes the place of the options' own. Unless given, it fits the model's context: that of ``compaction``, or what the
    sender's ``models()`` says before the first request. ``tool_choices`` are those of a run's first requests, in order;
    the options' own holds for the rest. A choice that forces a call forces one, not several, unless it says
    ``disable_parallel_tool_use`` itself: a small model would not stop. ``compaction`` summarises old turns when they
    fill the window. Entries go to ``transcript``, so a session that was interrupted goes on from one that was loaded.

    With a ``recorder``, the sender's own unless given, assembling a request is the first stage of its exchange.

    Beta switches are headers, and headers are the sender's: give them to the client, not in ``options``.

    Raises ``InvalidParameter`` for what cannot work.
    """

    def __init__(
        self,
        sender: Sender,
        *,
        model: str,
        system: str | Sequence[SystemText] = "",
        tools: Iterable[LocalTool] | None = None,
        external_tools: Iterable[LocalTool] = (),
        root: str | PathLike[str] | None = None,
        first: Sequence[Mapping[str, Any]] = (),
        max_turns: int = MAX_TURNS,
        options: Options | None = None,
        tool_choices: Sequence[Mapping[str, Any]] = (),
        limit: OutputLimit | None = None,
        compaction: CompactionPolicy | None = None,
        transcript: Transcript | MemoryTranscript | None = None,
        recorder: Recorder | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        if max_turns < 1:
            raise InvalidParameter(f"max_turns={max_turns} must be at least 1")
        self.sender, self.model, self.max_turns = sender, model, max_turns
        self.system = [SystemText(system)] if isinstance(system, str) else list(system)
        self.first, self.tool_choices = list(first), list(tool_choices)
        self.recorder = recorder if recorder is not None else getattr(sender, "recorder", None)
        self.reads = ReadTracker()
        builtin = local_tools(root, self.reads) if tools is None else tool_list(tools)
        self.toolbox = Toolbox([*builtin, *tool_list(external_tools)])
        self._limit = _checked_limit(limit, compaction)
        options = options if options is not None else Options()
        if options.betas:
            raise InvalidParameter("betas are sent as a header: give them to the client that sends, not to the agent")
        self.options = replace(options, builtin_tools=tuple(tool.name for tool in builtin))
        self.compaction = compaction
        self.transcript = transcript if transcript is not None else MemoryTranscript()
        self._now = now
        self._forget_size()

    @property
    def limit(self) -> OutputLimit:
        """How much output the next request asks for. The sender is asked about the model once, if it has to be."""
        if self._limit is None:
            self._limit = limit_for(self.sender, self.model)
        return self._limit

    def run(self, prompt: str) -> AgentResult:
        """Answer one prompt. May be called again to go on with the session.

        A failing tool is an answer to the model, not the end. What the sender raises is raised here, after it was
        noted in the transcript, which stays fit to go on from; so does ``KeyboardInterrupt``.
        """
        self._record(user(prompt))
        turns: list[Turn] = []
        while True:
            self._compact_if_due(turns)
            message = self._ask(turns)
            if message is None:
                continue
            self._run_tools(message)
            if stopped := self._stopped(message, turns):
                return AgentResult(turns, message, stopped)

    # -- one request ----------------------------------------------------------------------------------------

    def assemble(
        self,
        entries: Sequence[Entry] | None = None,
        *,
        turn: int = 0,
        recorder: Recorder | None = None,
        wire_id: str = "",
    ) -> Assembled:
        """The request of a run's turn number ``turn`` (from 0), or that for other entries, without sending it.

        With a ``recorder`` it is a stage of the exchange ``wire_id``.
        """
        return assemble(
            self.model,
            self.transcript.entries if entries is None else entries,
            options=self._options(turn),
            system=self.system,
            first=self.first,
            tools=self.toolbox.definitions,
            previous=self._previous,
            recorder=recorder,
            wire_id=wire_id,
        )

    def _options(self, turn: int) -> Options:
        chosen = self.tool_choices[turn] if turn < len(self.tool_choices) else self.options.tool_choice
        return replace(self.options, max_tokens=self.limit.max_tokens, tool_choice=_one_call(chosen))

    def _ask(self, turns: list[Turn]) -> Reply | None:
        """Send the next request and record the answer; ``None`` if it was cut and is to be asked for again."""
        wire_id = new_wire_id()
        made = self.assemble(turn=_count(turns), recorder=self.recorder, wire_id=wire_id)
        estimated = self._size(made).total
        message = self._send(made.request, wire_id)
        self._previous = made.last_position
        is_cut = self.limit.escalate(message.stop_reason or "")
        turns.append(turn_of(_count(turns) + 1, "cut" if is_cut else "turn", estimated, message))
        if is_cut:
            self._record(note("display", f"cut at max_tokens, asked again: {message.text}"))
            return None
        self._keep(message, len(made.request["messages"]))
        return message

    def _keep(self, message: Reply, sent: int) -> None:
        """Record an answer; its usage is what later estimates start from."""
        content = sendable(message)
        self._record(
            reply(content, model=self.model, stop_reason=message.stop_reason or "", usage=message.usage, at=self._now())
        )
        if not all(map(is_empty_text, content)):
            self._usage, self._answered = message.usage, sent + 1

    def _send(self, request: dict[str, Any], wire_id: str) -> Reply:
        try:
            return self.sender.send(request, wire_id=wire_id)
        except KeyboardInterrupt:
            self._record(note("display", "interrupted while waiting for an answer"))
            raise
        except LabError as error:
            self._record(synthetic(f"{type(error).__name__}: {error}"))
            raise

    def _record(self, entry: Entry) -> None:
        self.transcript.append(entry if entry.at else replace(entry, at=self._now()))

    # -- tools ----------------------------------------------------------------------------------------------

    def _run_tools(self, message: Reply) -> None:
        """Run what was asked for, in order. Each result is recorded as it comes, so that none is lost."""
        if not wants_tools(message):
            return
        for block in message.content:
            if block.get("type") == "tool_use":
                self._record(Entry("user", (self.toolbox.run(block),)))

    def _stopped(self, message: Reply, turns: list[Turn]) -> str:
        if not wants_tools(message):
            return message.stop_reason or "unknown"
        return "max_turns" if _count(turns) >= self.max_turns else ""

    # -- size of the context --------------------------------------------------------------------------------

    def _forget_size(self) -> None:
        self._usage: Mapping[str, Any] | None = None
        self._answered = 0
        self._previous: int | None = None

    def _size(self, made: Assembled) -> Layered:
        return layered(self._usage, made.request, self._answered)

    def _compact_if_due(self, turns: list[Turn]) -> None:
        """Replace what came before the prompt by a summary, if the next request would be too long."""
        if self.compaction is None:
            return
        estimated = self._size(self.assemble(turn=_count(turns))).total
        covered, keeps = split_kept(self.transcript.entries)
        is_new = any(not entry.hidden_reason for entry in covered) and covered[-1].kind != "compaction"
        if is_new and self.compaction.is_due(estimated, self.limit.max_tokens):
            self._compact(covered, keeps, estimated, turns)

    def _compact(self, covered: Sequence[Entry], keeps: int, estimated: int, turns: list[Turn]) -> None:
        wire_id = new_wire_id()
        made = self.assemble(covered, turn=len(self.tool_choices), recorder=self.recorder, wire_id=wire_id)
        message = self._send(compaction_request(made.request, self.compaction.instruction), wire_id)
        turns.append(turn_of(0, "compaction", estimated, message))
        try:
            entry = compaction_entry(message.text, model=self.model, usage=message.usage, keeps=keeps)
        except CompactionFailed as error:
            self._record(note("display", str(error)))
            return
        self._record(entry)
        self.reads.forget()
        self._forget_size()


def _checked_limit(limit: OutputLimit | None, compaction: CompactionPolicy | None) -> OutputLimit | None:
    """The limit that is known from the start, if one is. Raises ``InvalidParameter`` for anything else."""
    if isinstance(limit, int):
        raise InvalidParameter(
            f"limit={limit!r} must be an OutputLimit: OutputLimit({limit}, {limit}) always asks for it"
        )
    if limit is not None and not isinstance(limit, OutputLimit):
        raise InvalidParameter(f"limit={limit!r} must be an OutputLimit, or None for one that fits the model")
    if compaction is not None and not isinstance(compaction, CompactionPolicy):
        raise InvalidParameter(f"compaction={compaction!r} must be a CompactionPolicy, such as CompactionPolicy(8_192)")
    return OutputLimit.for_context(compaction.window) if limit is None and compaction is not None else limit


def _one_call(choice: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """A forced choice with at most one call, unless it says how many."""
    if choice is None or choice.get("type") not in FORCED:
        return choice
    return dict(choice) | {"disable_parallel_tool_use": choice.get("disable_parallel_tool_use", True)}


def _count(turns: Sequence[Turn]) -> int:
    return sum(turn.kind == "turn" for turn in turns)


def wants_tools(message: Reply) -> bool:
    """Whether tools are to be run: the model stopped for them, or its stream broke after it had asked."""
    if message.stop_reason == "tool_use":
        return any(block.get("type") == "tool_use" for block in message.content)
    return bool(getattr(message, "cut_off", None)) and bool(getattr(message, "tool_uses", ()))


def sendable(message: Reply) -> list[dict[str, Any]]:
    """The blocks as they may be sent back.

    A tool use whose arguments are incomplete stays, with empty ones, if tools are answered; otherwise it goes.
    """
    kept = []
    for block in message.content:
        if block.get("type") != "tool_use":
            kept.append(dict(block))
        elif wants_tools(message):
            is_whole = "partial_json" not in block and isinstance(block.get("input"), dict)
            bare = {name: value for name, value in block.items() if name != "partial_json"}
            kept.append(bare if is_whole else bare | {"input": {}})
    return kept
