"""Public configs of well-known models, so that their sizes can be computed without their files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class KnownModel:
    """One entry of ``known_models.json``: the fields of its config that sizes depend on, and where they are public."""

    name: str
    aliases: tuple[str, ...]
    source: str
    config: Mapping[str, Any]


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Every known model by its name; read-only."""
    text = resources.files("llmlab.planner").joinpath("known_models.json").read_text(encoding="utf-8")
    entries = [KnownModel(e["name"], tuple(e["aliases"]), e["source"], e["config"]) for e in json.loads(text)]
    return MappingProxyType({entry.name: entry for entry in entries})


def find_known(name: str) -> KnownModel | None:
    """The known model of this name or alias, in any case, with or without its organisation; None if there is none."""
    wanted = _plain(name)
    for entry in known_models().values():
        if wanted in {_plain(each) for each in (entry.name, *entry.aliases)}:
            return entry
    return None


def _plain(name: str) -> str:
    return name.casefold().rsplit("/", 1)[-1].replace("_", "-")
