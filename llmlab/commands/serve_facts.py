"""What ``llmlab serve`` tells an operator about itself when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmlab.api.errors import ApiError
from llmlab.gateway.stand_in import UPSTREAM_KEY

if TYPE_CHECKING:
    from llmlab.gateway.backend import Model
    from llmlab.gateway.engine_backend import EngineBackend

SHOWN = 5
"""Models of an upstream that are named."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Backends and keys of one server. ``upstreams`` holds each one's models, or why it did not tell them."""

    own: Sequence[EngineBackend]
    upstreams: Mapping[str, list[Model] | ApiError]
    keys_file: Path | None
    num_keys: int

    @property
    def first_model(self) -> str:
        """A model that can be asked for; ``any`` when none is known yet."""
        told = [models for models in self.upstreams.values() if not isinstance(models, ApiError)]
        names = [backend.name for backend in self.own] + [model.id for models in told for model in models]
        return names[0] if names else "any"

    def lines(self) -> list[tuple[str, str]]:
        """``(name, text)`` of each line."""
        upstreams = [("upstream", f"{url}: {_told(models)}") for url, models in self.upstreams.items()]
        return [*(("model", _engine(backend)) for backend in self.own), *upstreams, ("keys", self._keys())]

    def _keys(self) -> str:
        if self.keys_file is None:
            return "none are asked for; requests from web pages of other sites are refused"
        return f"{self.num_keys} from {self.keys_file}; every request needs one"


def _engine(backend: EngineBackend) -> str:
    capacity = backend.engine.capacity
    pool = f"{capacity.num_blocks:,} blocks of {capacity.block_size} tokens"
    return f"{backend.name}, context {backend.context:,} tokens, K/V pool {pool}"


def _told(models: list[Model] | ApiError) -> str:
    if isinstance(models, ApiError):
        return f"not usable now ({_printable(models.message)}){_advice(models)}"
    names = [_model(model) for model in models[:SHOWN]]
    more = len(models) - len(names)
    return (", ".join(names) or "no models") + (f" and {more} more" if more else "")


def _advice(error: ApiError) -> str:
    from llmlab.gateway.upstream_errors import CREDENTIALS

    if error.code == CREDENTIALS:
        return f": set {UPSTREAM_KEY} to a key that it takes, and start again"
    return ", and asked again when it is needed"


def _model(model: Model) -> str:
    window = "" if model.max_input_tokens is None else f" ({model.max_input_tokens:,} input tokens)"
    return f"{_printable(model.id)}{window}"


def _printable(text: str) -> str:
    """Another server's word, without anything that a terminal would act on."""
    return "".join(char if char.isprintable() else "?" for char in text[:200])


async def models_of(urls: Sequence[str], api_key: str | None) -> dict[str, list[Model] | ApiError]:
    """What each upstream lists, all asked at once."""
    return dict(zip(urls, await asyncio.gather(*(_models_of(url, api_key) for url in urls)), strict=True))


async def _models_of(url: str, api_key: str | None) -> list[Model] | ApiError:
    from llmlab.gateway.upstream import UpstreamBackend

    backend = UpstreamBackend(url, api_key=api_key)
    try:
        return await backend.models()
    except ApiError as error:
        return error
    finally:
        await backend.aclose()
