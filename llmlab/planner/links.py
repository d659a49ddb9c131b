"""What connects devices: bytes a second in one direction, from public figures, and a latency per message."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from llmlab.errors import InvalidParameter


@dataclass(frozen=True, slots=True)
class Link:
    """``bytes_per_s`` in one direction; ``latency_s`` is a usual order of magnitude per message, not a measurement."""

    name: str
    bytes_per_s: float
    latency_s: float
    source: str

    def time_s(self, nbytes: float, messages: int = 1) -> float:
        """Seconds for ``nbytes`` in ``messages`` messages, one after another."""
        return nbytes / self.bytes_per_s + messages * self.latency_s


LINKS: Mapping[str, Link] = MappingProxyType(
    {
        each.name: each
        for each in (
            Link("nvlink3", 300e9, 3e-6, "A100 data sheet: 600 GB/s, both directions together"),
            Link("nvlink4", 450e9, 3e-6, "H100 data sheet: 900 GB/s, both directions together"),
            Link("nvlink5", 900e9, 3e-6, "HGX B200 data sheet: 1.8 TB/s, both directions together"),
            Link("pcie4", 32e9, 5e-6, "PCI Express 4.0 x16: 64 GB/s, both directions together"),
            Link("pcie5", 64e9, 5e-6, "PCI Express 5.0 x16: 128 GB/s, both directions together"),
            Link("400gbps", 50e9, 5e-6, "400 Gb/s InfiniBand or Ethernet with RDMA: 8 bits a byte, nothing lost"),
            Link("100gbps", 12.5e9, 10e-6, "100 Gb/s Ethernet: 8 bits a byte, nothing lost"),
            Link("10gbps", 1.25e9, 50e-6, "10 Gb/s Ethernet: 8 bits a byte, nothing lost"),
            Link("loopback", 2e9, 50e-6, "assumed for sockets on one machine; measure yours"),
        )
    }
)


def link(name: str | Link) -> Link:
    """A link by name. Raises ``InvalidParameter`` for one that is not known, with those that are."""
    if isinstance(name, Link):
        return name
    if name not in LINKS:
        raise InvalidParameter(f"{name!r} is no known link: use one of {', '.join(LINKS)}, or a Link of your own")
    return LINKS[name]
