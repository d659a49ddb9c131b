"""Turn tokens into text as they come: never half a character, never taken back, cut at stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from os.path import commonprefix
from typing import Any

REPLACEMENT = "\ufffd"
"""What a decoder shows for bytes that are not a whole character: perhaps not yet, perhaps never."""
MAX_PARTIAL = 3
"""A character is at most four bytes, so at most three bytes (hence three tokens) of one are unfinished."""
WINDOW = 8
"""Tokens that are kept as context for the next ones."""


class Detokenizer:
    """Decodes one output token by token, as the continuation of its prompt.

    The pieces returned by :meth:`push` and :meth:`finish`, joined, are ``decode(prompt + output)`` without
    ``decode(prompt)``, that is ``decode(output)`` when there is no prompt or no space to restore, always
    without the tokenizer's optional clean-up of spaces. Two exceptions: a stop string cuts the text, and a
    byte-fallback decoder, which replaces a whole run of byte tokens when any of it is malformed, cannot take
    back the whole characters that were already shown.

    ``tokenizer`` needs ``decode(ids, skip_special_tokens=...)``: Hugging Face tokenizers and the byte
    tokenizer do. Only the last tokens are decoded at each step, so a step costs the same however long the
    output is. Text that ends in U+FFFD may be a character whose other bytes are still to come; at most three
    such are held back, and only until other text follows. A *character* is one code point: combined marks and
    joined emoji arrive in parts.

    ``stop``: strings that end the text, looked for in the output only; ``include_stop`` keeps the one that
    was met.
    """

    def __init__(
        self,
        tokenizer: Any,
        prompt_ids: Sequence[int] = (),
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
    ) -> None:
        self.stop_hit: str | None = None
        self._tokenizer = tokenizer
        self._options = {"skip_special_tokens": skip_special_tokens}
        if getattr(tokenizer, "clean_up_tokenization_spaces", False):
            # Clean-up removes spaces that were already shown.
            self._options["clean_up_tokenization_spaces"] = False
        self._stops = tuple(stop)
        self._include_stop = include_stop
        self._pieces: list[str] = []
        self._held = ""
        self._check_stop = True
        # Invariant: the first _settled tokens of _window decode to _shown, which belongs to the prompt or was
        # passed on to the stop search, and what may be an unfinished character.
        self._window, self._shown = self._context(prompt_ids)
        self._settled = len(self._window)

    @property
    def text(self) -> str:
        """Everything that was emitted so far."""
        return "".join(self._pieces)

    def push(self, token_id: int, final: bool = False, check_stop: bool = True) -> str:
        """Add a token and return the text that became safe to show, perhaps ``""``.

        ``final`` also returns what would be held back. With ``check_stop=False`` stop strings are not looked
        for, and one that begins in this token's text does not count later either. After a stop string was met
        (:attr:`stop_hit`) nothing more is emitted.
        """
        if self.stop_hit is not None:
            return ""
        self._check_stop = check_stop
        self._window.append(token_id)
        piece = self._emit(self._decode_new())
        return piece + self.finish() if final else piece

    def finish(self) -> str:
        """Return what was held back: the start of a stop string, or bytes that never became a character."""
        if self.stop_hit is not None:
            return ""
        text = self._decode(self._window)
        if text.startswith(self._shown):
            rest = text[len(self._shown) :]
        else:
            rest = self._decode(self._window[self._settled :])
        self._window, self._shown, self._settled = [], "", 0
        piece = self._emit(rest)
        held, self._held = self._held, ""
        self._pieces.append(held)
        return piece + held

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, **self._options)

    def _context(self, prompt_ids: Sequence[int]) -> tuple[list[int], str]:
        """The last prompt tokens and their text; none if they have no text or end inside a character."""
        size = len(prompt_ids)
        for length in range(min(WINDOW, size), min(WINDOW + MAX_PARTIAL, size) + 1):
            ids = list(prompt_ids[-length:])
            text = self._decode(ids)
            if text and not text.endswith(REPLACEMENT):
                return ids, text
        return [], ""

    def _decode_new(self) -> str:
        """Text that the newest token made certain, and a shorter window when it has grown."""
        text = self._decode(self._window)
        if self._adds_nothing(text):
            self._window.pop()
            return ""
        if not text.startswith(self._shown):
            # Byte fallback: one unfinished character hides the whole ones before it in the same run of bytes.
            if text.endswith(REPLACEMENT) and len(self._window) - self._settled <= MAX_PARTIAL:
                return ""
            self._window, self._shown = self._window[self._settled :], ""
            text = self._decode(self._window)
        end = max(len(self._shown), self._stable_length(text))
        fresh = text[len(self._shown) : end]
        self._shown, self._settled = text[:end], len(self._window)
        if len(self._window) > 2 * WINDOW:
            self._shorten(text)
        return fresh

    def _adds_nothing(self, text: str) -> bool:
        """Whether the newest token is invisible: a special token, even in the middle of a character.

        It must not push what has text out of the window. Where there is no text yet, a token that looks empty may
        be the space that a decoder removes from the start of a text, so it stays.
        """
        if not text or not (text == self._shown or text.endswith(REPLACEMENT)):
            return False
        return not self._decode(self._window[-1:]) and self._decode(self._window[:-1]) == text

    def _stable_length(self, text: str) -> int:
        """How much of the window's ``text`` no later token can change.

        All but U+FFFD at its end, and of those what this and the three texts before agree on, except the last
        one: a character has at most four bytes, so one of four successive texts ended with a whole character.
        """
        whole = len(text.rstrip(REPLACEMENT))
        if len(text) - whole <= 1:
            return whole
        earlier = [self._decode(self._window[:-drop]) for drop in range(1, MAX_PARTIAL + 1)]
        agreed = commonprefix([text, *earlier])  # noqa: RUF071 (characters are meant)
        return max(whole, min(len(agreed), len(text) - 1))

    def _shorten(self, text: str) -> None:
        """Forget the oldest tokens of the window (it decodes to ``text``) if the rest stands without them.

        One of any four neighbouring cuts falls between characters unless the text is malformed; then a later
        token tries again.
        """
        for length in range(WINDOW, WINDOW + MAX_PARTIAL + 1):
            shown = self._shown_after_cut(text, length)
            if shown is not None:
                self._window, self._shown, self._settled = self._window[-length:], shown, length
                return

    def _shown_after_cut(self, text: str, length: int) -> str | None:
        """``_shown`` for the last ``length`` tokens alone; ``None`` if they need those before them."""
        pending = text[len(self._shown) :]
        tail = self._decode(self._window[-length:])
        shown = tail[: len(tail) - len(pending)]
        # Bytes left by a cut inside a character decode to U+FFFD up to the next whole character, so any other
        # character says that the tail is in step again.
        if tail.endswith(pending) and shown.strip(REPLACEMENT):
            return shown
        return self._shown_after_split(length)

    def _shown_after_split(self, length: int) -> str | None:
        """The same where nothing but U+FFFD is in sight: the two parts must decode to the whole.

        Asked of the shortest of the last four texts. Bytes that are not a character yet are never shorter
        than it will be, so that text ends with a whole character, unless no character will come.
        """
        recent = [self._window[: len(self._window) - drop] for drop in range(MAX_PARTIAL + 1)]
        text, ids = min(((self._decode(ids), ids) for ids in recent), key=lambda pair: len(pair[0]))
        cut = len(self._window) - length
        before = self._decode(ids[:cut])
        if before + self._decode(ids[cut:]) != text or not self._shown.startswith(before):
            return None
        return self._shown[len(before) :]

    def _emit(self, fresh: str) -> str:
        """Pass text through the stop search; returns and records the part that is certain to be output."""
        text, self._held = self._held + fresh, ""
        if self._stops and self._check_stop:
            text = self._cut(text)
        if text:
            self._pieces.append(text)
        return text

    def _cut(self, text: str) -> str:
        """``text`` up to the first stop string, or without an end that may become one (it is held back)."""
        met = first_stop(text, self._stops)
        if met is None:
            keep = len(text) - partial_stop_length(text, self._stops)
            self._held = text[keep:]
            return text[:keep]
        start, self.stop_hit = met
        return text[: start + len(self.stop_hit)] if self._include_stop else text[:start]


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where and which stop string is completed first in ``text``; of two completed together, the longer.

    The first to be *completed* is the one that a reader of single characters would meet, so the answer does
    not depend on how the text was split into tokens.
    """
    found = [(start + len(stop), start, stop) for stop in stops if (start := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def partial_stop_length(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of ``text`` that begins a stop string; ``text`` must not hold a whole one."""
    longest = min(len(text), max(map(len, stops)) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(stop.startswith(end) for stop in stops):
            return length
    return 0
