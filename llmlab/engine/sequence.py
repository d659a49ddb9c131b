"""One request as the engine follows it: scheduler state, its detokenizer, and the handle it reports to."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmlab.engine.constraint import Constraint
from llmlab.engine.detokenizer import Detokenizer
from llmlab.engine.request import Request, StopReason
from llmlab.engine.run import Delta, Ending, Run
from llmlab.engine.sampler import Sampled, SampleInput


@dataclass(slots=True, eq=False)
class Sequence:
    """Pairs a :class:`Request` with its text and its :class:`Run`; ``new_text`` and ``new_ids`` wait to be sent.

    ``is_complete``: the constraint allows nothing but EOS after the tokens accepted so far.
    """

    request: Request
    run: Run
    detokenizer: Detokenizer
    eos_token_ids: tuple[int, ...]
    constraint: Constraint | None = None
    is_complete: bool = False
    new_text: str = ""
    new_ids: list[int] = field(default_factory=list)

    def sample_input(self) -> SampleInput:
        """What the sampler needs to choose this request's next token."""
        request = self.request
        return SampleInput(
            params=request.params,
            seed=request.seed,
            sample=request.sample,
            position=len(request.tokens),
            prompt_ids=request.prompt_token_ids,
            output_ids=request.output_token_ids if request.params.needs_adjustment else (),
            num_output=request.num_output,
            eos_token_ids=self.eos_token_ids,
            constraint=self.constraint,
            watch=request.probe.watch if request.probe is not None else None,
        )

    def accept(self, sampled: Sampled) -> None:
        """Append a chosen token to the request and to what the handle is owed."""
        self.request.tokens.append(sampled.token_id)
        self.new_ids.append(sampled.token_id)
        if self.request.params.logprobs is not None:
            output = self.run.outputs[self.request.sample]
            output.logprobs.append(sampled.logprob)
            output.top_logprobs.append(sampled.top)

    def constrain(self, token_id: int) -> str | None:
        """Tell the constraint, if any, which token was chosen; returns what went wrong."""
        if self.constraint is None:
            return None
        try:
            self.constraint.accept(token_id)
            self.is_complete = bool(self.constraint.is_finished)
        except Exception as error:  # not ours: it ends its own request only
            return f"its constraint failed: {type(error).__name__}: {error}"
        return None

    def stop_by_token(self, token_id: int) -> StopReason | None:
        """EOS first, then stop ids; neither before ``min_tokens``."""
        request, params = self.request, self.request.params
        if request.num_output < params.min_tokens:
            return None
        if token_id in self.eos_token_ids and not params.ignore_eos:
            return StopReason.EOS
        if token_id in params.stop_token_ids:
            request.stop_sequence = token_id
            return StopReason.STOP_TOKEN
        return None

    def detokenize(self, token_id: int) -> StopReason | None:
        """Turn the new token into text and say whether the request ends: EOS, stop ids, stop strings, the end of
        its constraint, length."""
        request, params = self.request, self.request.params
        stop = self.stop_by_token(token_id)
        if stop is None or params.include_stop:
            checked = request.num_output >= params.min_tokens
            self.new_text += self.detokenizer.push(token_id, check_stop=checked)
        if stop is None and self.detokenizer.stop_hit is not None:
            request.stop_sequence = self.detokenizer.stop_hit
            stop = StopReason.STOP_STRING
        if stop is None and self.is_complete:
            stop = StopReason.EOS
        if stop is None and request.num_output >= request.max_tokens:
            stop = StopReason.CONTEXT if params.max_tokens is None else StopReason.LENGTH
        return stop

    def _held_back(self) -> str:
        try:
            return self.detokenizer.finish()
        except Exception:  # a tokenizer that failed must not keep the end from being told
            return ""

    def take_delta(self, stop: StopReason | None) -> tuple[Delta, Ending | None]:
        """What to tell the handle now; at the end, held-back text is flushed."""
        if stop is not None:
            self.new_text += self._held_back()
        delta = Delta(self.request.sample, self.new_text, tuple(self.new_ids), stop is not None)
        self.new_text, self.new_ids = "", []
        if stop is None:
            return delta, None
        return delta, Ending(str(stop), self.request.stop_sequence, self.request.usage())
