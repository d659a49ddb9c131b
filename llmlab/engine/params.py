"""How one request wants its tokens chosen."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

from llmlab.errors import InvalidParameter

GREEDY_BELOW = 1e-5
"""Temperatures below this are treated as 0: dividing by them would only round to the same choice."""
MAX_LOGPROBS = 20
MAX_SAMPLES = 128
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 256


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling and stopping rules of one request. Greedy by default, so that a run repeats.

    ``max_tokens``: most output tokens; ``None`` means until the context (or the pool) is full; 0 computes and caches
    the prompt and samples nothing (pre-warming), which needs ``n=1``.
    ``min_tokens``: EOS and stop ids are forbidden, stop strings ignored, before this many output tokens.
    ``temperature``: 0 (or below 1e-5) is greedy; at most 100.
    ``top_k``: 0 (or -1) is off. ``top_p``: 1 is off. ``min_p``: 0 is off.
    ``repetition_penalty`` (0.01 to 100) divides the logits of tokens in prompt and output, or multiplies
    negative ones; ``presence_penalty`` and ``frequency_penalty`` (-2 to 2) are subtracted for output tokens.
    ``logit_bias``: token id -> added to its logit (-100 to 100); ids may be decimal strings, as in JSON.
    ``seed``: ``None`` draws one; the tokens of a seeded request do not depend on its neighbours, their order,
    or preemption. ``n``: number of samples that share the prompt's blocks.
    ``stop``: a string, or at most 16, that end the output (excluded from it unless ``include_stop``).
    ``stop_token_ids``: ids that end the output. ``ignore_eos``: the model's own EOS ids do not.
    ``logprobs``: number of alternatives to report per output token, at most 20 (0: only the chosen one;
    ``None``: none); ``prompt_logprobs``: the same for prompt tokens, for which the prefix cache is not read.
    ``cache_salt``: requests share cached prefixes only with requests of the same salt.

    Raises :class:`InvalidParameter` for a value of the wrong type, out of its range, or against another one.
    """

    max_tokens: int | None = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    include_stop: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    cache_salt: str = ""

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_numbers()
        self._check_flags()
        self._set("logit_bias", _logit_bias(self.logit_bias))
        self._set("stop", _stop_strings(self.stop))
        self._set("stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidParameter(
                f"min_tokens={self.min_tokens} is more than max_tokens={self.max_tokens}; "
                "lower min_tokens or raise max_tokens"
            )
        if self.max_tokens == 0 and self.n > 1:
            raise InvalidParameter(f"n={self.n} samples need max_tokens of at least 1; max_tokens=0 samples nothing")

    def _check_counts(self) -> None:
        self._set_integer("max_tokens", 0, optional=True)
        self._set_integer("min_tokens", 0)
        self._set_integer("top_k", -1)
        self._set_integer("n", 1, MAX_SAMPLES)
        self._set_integer("seed", -(2**63), 2**63 - 1, optional=True)
        self._set_integer("logprobs", 0, MAX_LOGPROBS, optional=True)
        self._set_integer("prompt_logprobs", 0, MAX_LOGPROBS, optional=True)
        self._set("top_k", max(self.top_k, 0))

    def _check_numbers(self) -> None:
        self._set_number("temperature", 0.0, 100.0)
        self._set_number("top_p", 0.0, 1.0)
        self._set_number("min_p", 0.0, 1.0)
        self._set_number("repetition_penalty", 0.01, 100.0)
        self._set_number("presence_penalty", -2.0, 2.0)
        self._set_number("frequency_penalty", -2.0, 2.0)
        if self.top_p == 0.0:
            raise InvalidParameter(
                "top_p=0 keeps no token; it must be above 0 and at most 1 (temperature=0 takes the likeliest)"
            )

    def _check_flags(self) -> None:
        for name in ("ignore_eos", "include_stop"):
            if not isinstance(getattr(self, name), bool):
                raise _wrong(name, getattr(self, name), "True or False")
        if not isinstance(self.cache_salt, str):
            raise _wrong("cache_salt", self.cache_salt, "a string")

    def _set_integer(self, name: str, low: int, high: int | None = None, optional: bool = False) -> None:
        value = getattr(self, name)
        if value is not None or not optional:
            self._set(name, _integer(name, value, low, high, " or None" if optional else ""))

    def _set_number(self, name: str, low: float, high: float) -> None:
        self._set(name, _number(name, getattr(self, name), low, high))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> SamplingParams:
        """The constructor, but an unknown name raises :class:`InvalidParameter` with the closest ones."""
        names = [f.name for f in dataclasses.fields(cls)]
        for name in kwargs:
            if name not in names:
                close = difflib.get_close_matches(name, names, cutoff=0.5)
                hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(names)}"
                raise InvalidParameter(f"unknown sampling parameter {name!r}; {hint}")
        return cls(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Every field as JSON types: equal after a trip through JSON, and accepted by :meth:`from_kwargs`."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        bias = {str(token_id): value for token_id, value in self.logit_bias.items()}
        return values | {
            "logit_bias": bias,
            "stop": list(self.stop),
            "stop_token_ids": list(self.stop_token_ids),
        }

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken, without a draw."""
        return self.temperature < GREEDY_BELOW

    @property
    def needs_adjustment(self) -> bool:
        """Whether penalties or biases change the logits (``min_tokens`` is separate: it ends)."""
        return bool(
            self.repetition_penalty != 1.0 or self.presence_penalty or self.frequency_penalty or self.logit_bias
        )

    def check_vocab(self, vocab_size: int) -> None:
        """Raise :class:`InvalidParameter` if a token id given here is not in ``0 .. vocab_size - 1``."""
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token_id in ids:
                if token_id >= vocab_size:
                    raise InvalidParameter(
                        f"{name} names token {token_id}, but this model's ids are 0 to {vocab_size - 1}"
                    )


def _wrong(name: str, value: Any, expected: str) -> InvalidParameter:
    shown = repr(value)
    return InvalidParameter(f"{name}={shown if len(shown) <= 80 else shown[:77] + '...'}; it must be {expected}")


def _integer(name: str, value: Any, low: int, high: int | None, alternative: str = "") -> int:
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"
    number = isinstance(value, Integral) and not isinstance(value, bool)
    if not number or value < low or (high is not None and value > high):
        raise _wrong(name, value, f"a whole number {bounds}{alternative}")
    return int(value)


def _number(name: str, value: Any, low: float, high: float) -> float:
    # A NaN fails both comparisons, so it is refused here too.
    if not isinstance(value, Real) or isinstance(value, bool) or not low <= value <= high:
        raise _wrong(name, value, f"a number from {low:g} to {high:g}")
    return float(value)


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes | Mapping) or not hasattr(value, "__iter__"):
        raise _wrong(name, value, "a list of token ids")
    return tuple(_integer(f"each of {name}", token_id, 0, None) for token_id in value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings = (value,) if isinstance(value, str) else value
    if not isinstance(strings, list | tuple) or not all(isinstance(s, str) for s in strings):
        raise _wrong("stop", value, "a string or a list of strings")
    if len(strings) > MAX_STOP_STRINGS:
        raise InvalidParameter(f"stop has {len(strings)} strings; at most {MAX_STOP_STRINGS} are allowed")
    for string in strings:
        if not 1 <= len(string) <= MAX_STOP_LENGTH:
            raise InvalidParameter(f"a stop string has {len(string)} characters; it must have 1 to {MAX_STOP_LENGTH}")
    return tuple(strings)


def _logit_bias(value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _wrong("logit_bias", value, "a mapping from token id to a number from -100 to 100")
    bias: dict[int, float] = {}
    for key, number in value.items():
        token_id = _integer("a key of logit_bias", _decimal(key), 0, None)
        if token_id in bias:
            raise InvalidParameter(f"logit_bias names token {token_id} twice; give each id once")
        bias[token_id] = _number(f"logit_bias[{token_id}]", number, -100.0, 100.0)
    return bias


def _decimal(key: Any) -> Any:
    """A JSON object's key as the integer it spells; anything else unchanged."""
    if isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10:
        return int(key)
    return key
