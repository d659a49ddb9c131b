"""Reading a model's config: the names a field goes by, and a named error when it is not there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmlab.errors import UnknownShape

MAX_CONFIG_BYTES = 4 * 2**20  # configs are a few kilobytes; a larger file is something else
MAX_LAYERS = 10_000  # deep models have some hundred


class Fields:
    """A config as a mapping, by the field's names in the different families."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        text = values.get("text_config")
        self.values: Mapping[str, Any] = text if isinstance(text, Mapping) else values
        self.family = str(self.values.get("model_type") or values.get("model_type") or "")

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of ``names`` that is there and not null, else ``default``."""
        found = (self.values[name] for name in names if self.values.get(name) is not None)
        return next(found, default)

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """A whole number of at least ``least``. Raises ``UnknownShape`` when it is missing and there is no default."""
        value = self.get(*names, default=default)
        if value is None:
            raise UnknownShape(
                f"the config of {self.family or 'this model'!r} has no {' or '.join(names)}: add it, or give the "
                f"config as transformers loads it (AutoConfig.from_pretrained), which fills in the family's defaults"
            )
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UnknownShape(f"{names[0]}={value!r} in the config is not a whole number of at least {least}")
        return value

    @property
    def num_layers(self) -> int:
        """How many transformer layers there are. Raises ``UnknownShape`` for none, or more than any model has."""
        count = self.size("num_hidden_layers", "n_layer")
        if count > MAX_LAYERS:
            raise UnknownShape(f"num_hidden_layers={count:,} in the config: no model has more than {MAX_LAYERS:,}")
        return count

    def listed(self, name: str, count: int) -> list[Any]:
        """A list of at least ``count`` entries, one a layer. Raises ``UnknownShape`` for anything else."""
        value = self.values.get(name)
        if not isinstance(value, list | tuple):
            raise UnknownShape(f"{name}={value!r} in the config is no list")
        if len(value) < count:
            raise UnknownShape(f"{name} names {len(value)} layers of {count}")
        return list(value)

    def flag(self, rule: bool | str) -> bool:
        """A rule of the family: True, False, or what the field of that name says (False when it is missing)."""
        return bool(self.get(rule, default=False)) if isinstance(rule, str) else rule


def read_config(folder: Path) -> Mapping[str, Any]:
    """``config.json`` of a folder. Raises ``UnknownShape`` when it is missing, too large or not a JSON object."""
    path = folder / "config.json"
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise UnknownShape(f"{path} is larger than {MAX_CONFIG_BYTES:,} bytes: no model's config is")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UnknownShape(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UnknownShape(f"{path} is not JSON: {error}") from error
    if not isinstance(values, Mapping):
        raise UnknownShape(f"{path} holds no JSON object")
    return values
