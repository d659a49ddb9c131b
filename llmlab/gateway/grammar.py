"""Grammars that hold a reply to a JSON Schema or to well-formed tool calls; llguidance compiles and follows them.

Schemas are untrusted: what could take the compiler long, or deep enough to end the process, is refused before it sees
them, and its own limits bound every step after that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.hf import from_tokenizer

from llmlab.api.conversation import Tool, ToolChoice
from llmlab.api.errors import ApiError
from llmlab.errors import InvalidParameter
from llmlab.gateway.grammar_constraint import ConstraintFactory, reason_of

CACHED_GRAMMARS = 32
PROBED_STEPS = 3
MAX_SCHEMA_BYTES = 256 * 1024
"""Of all schemas of a request together, as compact JSON."""
MAX_DEPTH = 100
"""Nesting of one schema's JSON; the compiler's own parser ends at 128."""
MAX_LEVELS = 1000
"""Nesting times references. The compiler recurses through both; 8 MiB of stack held 1,600 levels, but not 4,800."""
MAX_MULTIPLE = 5000
"""A ``multipleOf`` costs as many automaton states as its digits say; those of ``allOf`` multiply."""

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ?", "key_separator": ": ?"}
"""At most one blank, and only after a comma or colon: a small model cannot loop on white space."""
LENIENT = {"lenient": True, "coerce_one_of": True}
LIMITS = {
    "initial_lexer_fuel": 500_000,
    "step_lexer_fuel": 100_000,
    "step_max_items": 20_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
"""Below the library's own: the work of one step delays every request of the batch."""

FREE_TEXT = 'TEXT: /(.|\\n)*/\nhead[lazy]: TEXT "<tool_call>"\n'
# a lazy terminal ends at its first match, so after "<tool_call>" the free text cannot simply go on
START = {
    (True, True): 'start: call (/\\n?/ call)*\ncall: "<tool_call>" body\n',
    (True, False): 'start: "<tool_call>" body\n',
    (False, True): f"start: (head body)* TEXT\n{FREE_TEXT}",
    (False, False): f"start: TEXT | head body\n{FREE_TEXT}",
}
"""By ``(forced, parallel)``."""


@dataclass(slots=True)
class _Compiled:
    """A grammar that is ready to be copied; ``used`` from the second time on it is asked for."""

    matcher: LLMatcher
    used: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """One schema of a grammar: its compact JSON with our options, and how messages name it."""

    label: str
    param: str | None
    text: str

    @property
    def lark(self) -> str:
        return f"start: %json {self.text}\n"


class Grammars:
    """Compiles grammars for one model and keeps the last 32. Any thread may use it; the engine's should not compile.

    ``tokenizer`` is a fast Hugging Face tokenizer or one that has ``token_bytes(id)``; ``vocab_size`` the number of
    logits, which may exceed the tokenizer's ids. Without ``eos_token_ids`` the tokenizer's own EOS stands for the end.

    Raises :class:`~llmlab.errors.InvalidParameter` for a tokenizer whose tokens' bytes cannot be told.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        self._tokenizer = _tokenizer(tokenizer, vocab_size, eos_token_ids)
        self._limits = LLParserLimits(**LIMITS)
        self._compiled = lru_cache(maxsize=CACHED_GRAMMARS)(self._compile)

    def json(self, schema: Mapping[str, Any] | None = None) -> ConstraintFactory:
        """The whole reply is one JSON value of this schema; ``None`` stands for any JSON object.

        Raises ``ApiError`` for a schema that cannot be compiled or is too large.
        """
        part = _part(schema if schema is not None else {"type": "object"}, "the output schema", None, {})
        return self._factory(part.lark, (part,))

    def tool_calls(self, tools: Sequence[Tool], choice: ToolChoice) -> ConstraintFactory | None:
        r"""Calls in the reply are exactly ``<tool_call>\n{"name": NAME, "arguments": OBJECT}\n</tool_call>``.

        ``auto``: free text, in which ``<tool_call>`` opens a call of one of the tools; without ``parallel`` the reply
        ends with the first call. ``any`` and ``tool``: the reply begins with a call, and with ``parallel`` more calls
        may follow, each after at most one newline. ``none``, and ``auto`` without tools, give ``None``: no constraint.

        OBJECT satisfies the tool's ``input_schema``. Of a tool that is not ``strict``, keywords that cannot be
        compiled are ignored and ``oneOf`` is read as ``anyOf``.

        Raises ``ApiError`` naming the tool whose schema cannot be compiled, or a choice that names no tool.
        """
        if choice.mode == "none" or (choice.mode == "auto" and not tools):
            return None
        chosen = _chosen(tools, choice)
        parts = {i: _tool_part(i, tools[i]) for i in chosen}
        rules = START[choice.mode != "auto", choice.parallel] + _call_rules([t.name for t in tools], parts, chosen)
        return self._factory(rules, tuple(parts.values()))

    def _factory(self, lark: str, parts: tuple[_Part, ...]) -> ConstraintFactory:
        size = sum(len(part.text) for part in parts)
        if size > MAX_SCHEMA_BYTES:
            part = parts[0] if len(parts) == 1 else _Part("the tools' schemas", "tools", "")
            raise _refusal(part, f"{size} bytes of JSON; at most {MAX_SCHEMA_BYTES} are allowed")
        compiled = self._compiled(lark, parts)
        was_cached, compiled.used = compiled.used, True
        return ConstraintFactory(compiled.matcher, was_cached)

    def _compile(self, lark: str, parts: tuple[_Part, ...]) -> _Compiled:
        """Each schema by itself first, so that a refusal can name it."""
        alone = [self._matcher(part.lark, _checked(part)) for part in parts]
        if lark == parts[0].lark:
            return _Compiled(alone[0])
        return _Compiled(self._matcher(lark, _Part("the tools together", "tools", "")))

    def _matcher(self, lark: str, part: _Part) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, f"%llguidance {{}}\n{lark}", log_level=0, limits=self._limits)
        if problem := matcher.get_error() or _probe(matcher.deep_copy()):
            raise _refusal(part, reason_of(problem))
        return matcher


def _probe(matcher: LLMatcher) -> str:
    """Take the first steps: that a grammar is empty, or too large to follow, shows only there."""
    for _ in range(PROBED_STEPS):
        allowed = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        if matcher.is_stopped() or not matcher.consume_token(int(allowed.argmax())):
            break
    return matcher.get_error()


# -- grammar text ---------------------------------------------------------------------------------------------


def _call_rules(names: Sequence[str], parts: Mapping[int, _Part], chosen: Sequence[int]) -> str:
    before, after = _literal('\n{"name": '), _literal("}\n</tool_call>")
    lines = [f"body: {before} ({' | '.join(f't{i}' for i in chosen)}) {after}"]
    for i in chosen:
        opening = json.dumps(names[i], ensure_ascii=False) + ', "arguments": '
        lines += [f"t{i}: {_literal(opening)} a{i}", f"a{i}: %json {parts[i].text}"]
    return "\n".join(lines) + "\n"


def _literal(text: str) -> str:
    """A Lark terminal that matches exactly ``text``; Lark here takes JSON's escapes."""
    return json.dumps(text)


def _chosen(tools: Sequence[Tool], choice: ToolChoice) -> list[int]:
    """Indices of the tools that may be called."""
    found = [i for i, tool in enumerate(tools) if choice.mode != "tool" or tool.name == choice.name]
    if not found:
        wanted = "a call" if choice.mode == "any" else f"a call of {choice.name!r}"
        known = ", ".join(tool.name for tool in tools) or "none"
        message = f"tool_choice asks for {wanted}, the tools are: {known}"
        raise ApiError("invalid_request_error", message, param="tool_choice")
    return found


def _tool_part(index: int, tool: Tool) -> _Part:
    options = {} if tool.strict else LENIENT
    return _part(tool.input_schema, f"the input schema of tool {tool.name!r}", f"tools.{index}", options)


def _part(schema: Mapping[str, Any], label: str, param: str | None, options: Mapping[str, Any]) -> _Part:
    """The schema's own ``x-guidance`` gives way to our options."""
    try:
        text = json.dumps({**schema, "x-guidance": {**JSON_STYLE, **options}}, separators=(",", ":"))
    except (RecursionError, TypeError, ValueError) as error:
        raise _refusal(_Part(label, param, ""), f"it is not plain JSON ({type(error).__name__}: {error})") from None
    return _Part(label, param, text)


# -- limits ---------------------------------------------------------------------------------------------------


def _checked(part: _Part) -> _Part:
    depth, references, multiples, combined = 0, set(), [], False
    for level, key, value in _items(json.loads(part.text)):
        depth = max(depth, level)
        combined = combined or key in ("$ref", "allOf", "anyOf", "oneOf")
        if key == "$ref" and isinstance(value, str):
            references.add(value)
        if key == "multipleOf" and type(value) in (int, float) and math.isfinite(value):
            multiples.append(Decimal(str(value)))
    if depth > MAX_DEPTH:
        raise _refusal(part, f"it is nested {depth} deep; at most {MAX_DEPTH} are allowed")
    if depth * (1 + len(references)) > MAX_LEVELS:
        found = f"{len(references)} different $ref in a schema nested {depth} deep"
        raise _refusal(part, f"{found}; their product may be {MAX_LEVELS}: use fewer, or inline some")
    if _num_states(multiples, combined) > MAX_MULTIPLE:
        raise _refusal(part, f"multipleOf asks for more than {MAX_MULTIPLE} remainders")
    return part


def _items(root: Any) -> Iterator[tuple[int, str | None, Any]]:
    """``(nesting level, key or None, value)`` of everything inside, without recursion."""
    stack = [(1, root)]
    while stack:
        level, node = stack.pop()
        pairs = node.items() if isinstance(node, dict) else ((None, value) for value in node)
        for key, value in pairs:
            yield level, key, value
            if isinstance(value, dict | list):
                stack.append((level + 1, value))


def _num_states(multiples: Sequence[Decimal], combined: bool) -> int:
    """Remainders the largest ``multipleOf`` has, or their common multiple where several may meet in one number."""
    if not multiples:
        return 0
    shift = max(0, *(-value.as_tuple().exponent for value in multiples))
    if combined:
        return math.lcm(*(abs(int(value.scaleb(shift))) for value in multiples))
    return max(abs(int(value.scaleb(max(0, -value.as_tuple().exponent)))) for value in multiples)


def _refusal(part: _Part, reason: str) -> ApiError:
    message = f"{part.label} cannot be used to constrain output: {reason}"
    return ApiError("invalid_request_error", message, param=part.param)


# -- tokenizers -----------------------------------------------------------------------------------------------


class _ByteTokens:
    """What llguidance wants to know of a tokenizer whose tokens' bytes can be asked for, padded to the logits."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        known = range(min(len(tokenizer), vocab_size))
        extra = range(len(known), vocab_size)
        self.tokens = [tokenizer.token_bytes(i) for i in known] + [b"<unused>" for _ in extra]
        self.special_token_ids = [*tokenizer.all_special_ids, *extra]
        self.bos_token_id, self.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
        self._encode = tokenizer.encode

    def __call__(self, text: bytes) -> list[int]:
        return self._encode(text.decode("utf-8", "replace"))


def _tokenizer(tokenizer: Any, vocab_size: int, eos_token_ids: tuple[int, ...]) -> LLTokenizer:
    eos = [token_id for token_id in eos_token_ids if token_id < len(tokenizer)] or None
    if hasattr(tokenizer, "token_bytes"):
        return LLTokenizer(TokenizerWrapper(_ByteTokens(tokenizer, vocab_size)), eos_token=eos, slices=[])
    try:
        return from_tokenizer(tokenizer, n_vocab=max(vocab_size, len(tokenizer)), eos_token=eos)
    except ValueError as error:
        kind = type(tokenizer).__name__
        raise InvalidParameter(f"constraints need a fast Hugging Face tokenizer, this is a {kind}: {error}") from error
