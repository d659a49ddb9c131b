"""Log-probabilities as both protocols give them: with each token's text and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from llmlab.api.reply import TokenLogprob
from llmlab.engine.run import Output
from llmlab.models import token_bytes


class TokenBytes(token_bytes.TokenBytes):
    """The bytes of one tokenizer's tokens, and log-probabilities written with them."""

    def logprobs(
        self, output: Output, start: int, token_ids: Sequence[int], eos_token_ids: Sequence[int]
    ) -> tuple[TokenLogprob, ...]:
        """Log-probabilities of ``token_ids``, the output tokens from number ``start`` on; EOS, which is no text, is
        left out.
        """
        return tuple(
            TokenLogprob(
                self.text(token_id),
                tuple(self.bytes(token_id)),
                output.logprobs[i],
                tuple((self.text(other), tuple(self.bytes(other)), value) for other, value in output.top_logprobs[i]),
            )
            for i, token_id in enumerate(token_ids, start)
            if token_id not in eos_token_ids
        )
