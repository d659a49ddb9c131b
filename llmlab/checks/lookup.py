"""``check.lab03``: the checks of lab 03, imported when they are asked for."""

from __future__ import annotations

import importlib
import pkgutil
import re
from types import ModuleType

_LAB = re.compile(r"lab\d\d")


class Checks:
    """The checks of every lab, as attributes ``lab00``, ``lab01``, ..."""

    def __getattr__(self, name: str) -> ModuleType:
        if name not in dir(self):
            raise AttributeError(f"there are no checks {name!r}: there are {', '.join(dir(self))}")
        return importlib.import_module(f"llmlab.checks.{name}")

    def __dir__(self) -> list[str]:
        package = importlib.import_module("llmlab.checks")
        return sorted(item.name for item in pkgutil.iter_modules(package.__path__) if _LAB.fullmatch(item.name))

    def __repr__(self) -> str:
        return f"<Checks: {', '.join(dir(self))}>"


check = Checks()
