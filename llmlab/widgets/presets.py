"""Requests worth watching: each preset makes one mechanism of the engine visible."""

from __future__ import annotations

from dataclasses import dataclass

_FACTS = (
    "You answer questions about a small museum. It has four rooms: maps, clocks, looms and lenses. It opens at ten and "
    "closes at five, on Mondays not at all. Children under twelve pay nothing. The clocks are wound every Sunday. The "
    "largest loom is from 1804 and still works. Answer in one short sentence."
)
_LONG = "Sum this up in one sentence. " + " ".join(
    f"On day {day} the keeper counted the visitors, wound clock number {day % 7 + 1} and oiled the loom."
    for day in range(1, 31)
)


@dataclass(frozen=True, slots=True)
class Preset:
    """``prompts`` are sent together, or, when ``one_first``, after the first one has finished. ``look_at`` says what is
    to be seen, and where."""

    name: str
    prompts: tuple[str, ...]
    look_at: str
    system: str = ""
    max_tokens: int = 48
    one_first: bool = False


PRESETS = (
    Preset(
        "one question",
        ("Explain the KV cache in one sentence.",),
        "The waterfall: one prefill, then a decode step per token.",
    ),
    Preset(
        "shared prefix",
        ("When does it open?", "Is it open on Mondays?", "Which loom is the largest?", "Who pays nothing?"),
        "The block map: the system prompt's blocks are computed once, then hit by all the others.",
        system=_FACTS,
        max_tokens=24,
        one_first=True,
    ),
    Preset(
        "a long prompt among short ones",
        (_LONG, "What is two plus two?", "Name a colour.", "Name a fruit.", "Say hello."),
        "The batch lanes: the long prefill takes its share of each step's token budget beside the others' decoding.",
        max_tokens=32,
    ),
    Preset(
        "many at once",
        tuple(f"Tell me one fact about the number {number}." for number in range(1, 17)),
        "The batch lanes: more requests than the batch holds, so some wait, with the reason.",
        max_tokens=32,
    ),
)


def preset(name: str) -> Preset:
    """The preset of that name."""
    return next(each for each in PRESETS if each.name == name)
