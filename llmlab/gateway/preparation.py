"""Everything about a request that can be decided, or refused, before the engine sees it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmlab.api.anthropic.caching import place_automatic
from llmlab.api.conversation import Conversation, Text, Thinking, ToolResult, ToolUse
from llmlab.api.errors import ApiError
from llmlab.engine.params import SamplingParams
from llmlab.gateway.context_edits import Edited, apply_edits
from llmlab.gateway.failures import prompt_too_long, room_for
from llmlab.gateway.recording import ExchangeLog
from llmlab.gateway.rendering import Rendered, Renderer
from llmlab.gateway.signatures import Signer, check_thinking
from llmlab.gateway.thinking import THINK_STOP

QUICK_TEXT = 100_000
"""Characters that are tokenized in a moment, so that a refusal can name the true number."""
QUICK_RENDER, QUICK_BLOCKS = 8_000, 100
"""Characters and blocks of a conversation that may be rendered while other requests wait."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request ready for the engine.

    ``conversation`` is the one that was rendered: markers placed, context edits applied, thinking restored.
    ``params`` are for one run without a thinking phase; ``thinking_budget`` is ``None`` without one. ``capped``:
    ``max_tokens`` is less than was asked for, because the context ends there.
    """

    conversation: Conversation
    edited: Edited
    rendered: Rendered
    params: SamplingParams
    capped: bool
    thinking_budget: int | None

    def thinking_params(self) -> SamplingParams:
        """For the run that thinks: it ends with the closing mark or the budget; other stops are for the answer."""
        return replace(
            self.params,
            max_tokens=self.thinking_budget,
            min_tokens=0,
            stop=(THINK_STOP,),
            stop_token_ids=(),
            include_stop=False,
            ignore_eos=False,
            logprobs=None,
        )

    def answer_params(self, sample: int, spent: int, room: int) -> SamplingParams:
        """For the run that answers after ``spent`` tokens of thinking, with at most ``room`` tokens of context left.

        Samples that thought the same must not draw the same, so a given seed is moved on by the sample's number.
        """
        most = min(self.params.max_tokens - spent, room)
        seed = self.params.seed
        if seed is not None:
            seed = (seed + sample + 2**63) % 2**64 - 2**63
        least = min(self.params.min_tokens, most)
        return replace(self.params, n=1, seed=seed, max_tokens=most, min_tokens=least)


@dataclass(frozen=True, slots=True)
class Preparation:
    """Prepares requests for one model. ``context`` is the longest sequence in tokens. May be used in any thread."""

    renderer: Renderer
    signer: Signer
    model: str
    context: int
    overflow: str
    default_budget: int

    def prepare(self, conversation: Conversation, salt: str, log: ExchangeLog) -> Prepared:
        """Check, edit and render a request; raises ``ApiError`` and ``InvalidParameter``."""
        if conversation.format is not None and conversation.tools and conversation.tool_choice.mode != "none":
            raise ApiError(
                "invalid_request_error",
                "a JSON output format and tools cannot be used together here: leave out one, or set tool_choice none",
            )
        edited = self.edit(place_automatic(conversation), log)
        current = self._with_thinking(edited.conversation)
        self._check_length(current)
        with log.stage("render") as stage:
            rendered = self.renderer.render(current, self._check_characters)
            stage.note("chat template", tokens=len(rendered.ids), characters=len(rendered.text))
        max_tokens, capped = self._room(conversation, len(rendered.ids))
        params = SamplingParams.from_kwargs(
            **dict(conversation.sampling) | {"max_tokens": max_tokens, "cache_salt": salt}
        )
        budget = current.thinking and min(current.thinking.budget_tokens or self.default_budget, max_tokens - 1)
        if budget == 0:
            return self.prepare(replace(conversation, thinking=None), salt, log)
        return Prepared(current, edited, rendered, params, capped, budget)

    def edit(self, conversation: Conversation, log: ExchangeLog | None = None) -> Edited:
        """The conversation with hidden thinking restored and context edits applied; raises ``ApiError``."""
        edited = apply_edits(check_thinking(conversation, self.signer, self.model), self.count)
        if log is not None and edited.applied is not None:
            with log.stage("edit context") as stage:
                stage.note(
                    "cleared" if edited.applied else "nothing to clear", before=edited.before, after=edited.after
                )
        return edited

    def count(self, conversation: Conversation) -> int:
        """Length of the prompt in tokens."""
        return len(self.renderer.render(conversation).ids)

    def _check_length(self, conversation: Conversation) -> None:
        """Refuse what is too long however it is split into tokens, without the time that splitting it takes."""
        self._check_characters(text_length(conversation))

    def _check_characters(self, length: int) -> None:
        longest = self.renderer.encoder.max_token_length
        if longest is None or length <= QUICK_TEXT:
            return
        if (least := -(-length // longest)) >= self.context:
            raise prompt_too_long(least, self.context, at_least=True)

    def _with_thinking(self, conversation: Conversation) -> Conversation:
        """The conversation, without thinking where there is no room for it or an answer is to be continued."""
        impossible = conversation.prewarm or conversation.continue_last or conversation.sampling.get("max_tokens") == 1
        return replace(conversation, thinking=None) if impossible else conversation

    def _room(self, conversation: Conversation, prompt: int) -> tuple[int, bool]:
        wanted = 0 if conversation.prewarm else conversation.sampling.get("max_tokens")
        return room_for(prompt, wanted, self.context, self.overflow)


def is_quick(conversation: Conversation) -> bool:
    """Whether rendering takes a moment only: little text, few blocks, nothing to compile, nothing to do twice."""
    if conversation.tools or conversation.format is not None or conversation.edits:
        return False
    blocks = [*conversation.system, *(block for turn in conversation.turns for block in turn.blocks)]
    if len(blocks) > QUICK_BLOCKS or any(isinstance(block, ToolUse) for block in blocks):
        return False
    texts = [text for block in blocks for text in (block.content if isinstance(block, ToolResult) else (block,))]
    return len(texts) <= QUICK_BLOCKS and sum(len(text.text) for text in texts) <= QUICK_RENDER


def text_length(conversation: Conversation) -> int:
    """Characters of text, without white space at the ends of blocks, which a template may drop.

    Tools are left out, and so are the assistant's turns, of which templates drop more.
    """
    texts = [*conversation.system]
    for turn in conversation.turns:
        if turn.role != "assistant":
            for block in turn.blocks:
                texts += block.content if isinstance(block, ToolResult) else [block]
    return sum(len(text.text.strip()) for text in texts if isinstance(text, Text | Thinking))
