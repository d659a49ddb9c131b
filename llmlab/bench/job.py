"""What a worker is asked to do and what it answers; both travel as one line of JSON."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """What a worker serves and how: the first line it reads. ``dtype`` is ``float32`` or ``bfloat16``."""

    contender: str
    model: str
    device: str
    dtype: str
    threads: int = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """A worker's first answer: it is ready. ``vocab_size`` bounds the token ids it can be sent."""

    vocab_size: int


@dataclass(frozen=True, slots=True)
class Job:
    """Prompts (token ids) that arrive at once, each to be continued by exactly ``new_tokens`` tokens, EOS or not.

    ``prefix_cache=False`` turns sharing of computed prefixes off. Jobs of one ``salt`` may share, others may not:
    the first of a salt meets an empty cache. ``shared_tokens`` leading tokens are the same in all prompts.
    ``phases`` asks for the part of the step time that is outside the forward pass; ``record=False`` keeps no trace.
    """

    prompts: list[list[int]]
    new_tokens: int
    prefix_cache: bool = True
    salt: str = ""
    shared_tokens: int = 0
    phases: bool = False
    record: bool = True


@dataclass(frozen=True, slots=True)
class Served:
    """One job's result: wall ``seconds`` from submission to the last token, and the tokens of every prompt.

    ``first_token_s``: seconds to the first token of a job with one prompt, ``None`` for more.
    ``cached_tokens``: prompt tokens that were not computed, where the contender tells.
    ``outside_forward``: median share (0 to 1) of a step's time outside the forward pass, over steps that only
    decode the largest batch; only when asked for.
    """

    seconds: float
    token_ids: list[list[int]]
    first_token_s: float | None = None
    cached_tokens: int | None = None
    outside_forward: float | None = None
