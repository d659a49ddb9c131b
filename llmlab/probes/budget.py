"""How many bytes a capture can take, before anything is recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmlab.engine.kv_pool import LayerShape
from llmlab.errors import CaptureTooLarge
from llmlab.probes.anatomy import Anatomy

if TYPE_CHECKING:
    from llmlab.probes.plan import RequestProbe


def check_budget(sizes: Mapping[str, int], max_bytes: int) -> None:
    """Raise ``CaptureTooLarge`` when bytes per kind are more than ``max_bytes`` together."""
    needed = sum(sizes.values())
    if needed > max_bytes:
        parts = ", ".join(f"{kind} {size:,}" for kind, size in sizes.items())
        raise CaptureTooLarge(
            f"the capture may hold {needed:,} bytes ({parts}), max_bytes is {max_bytes:,}: ask for fewer "
            f"layers, heads, positions or candidates, a smaller max_tokens, or max_bytes of at least {needed}"
        )


def estimate(
    probe: RequestProbe,
    anatomy: Anatomy,
    shapes: Sequence[LayerShape],
    positions: Sequence[int],
    num_prompt: int,
) -> dict[str, int]:
    """Most bytes per kind, for these positions; an attention row of the prompt may be as long as the prompt."""
    size, count = probe.store.dtype.itemsize, len(positions)
    keys = sum(max(num_prompt, p + 1) for p in positions)
    per_layer = {
        "attention": len(probe.heads) * keys * size,
        "scores": len(probe.heads) * keys * size,
        "hidden": count * anatomy.width * size,
        "lens": count * (probe.top * (4 + size) + 2 * size + len(probe.targets) * (4 + size)),
        "router": count * 4 * _experts(anatomy) * max(size, 4),
    }
    sizes = {kind: amount * len(probe.layers.get(kind, ())) for kind, amount in per_layer.items()}
    numbers = sum(_qkv_numbers(probe.heads, anatomy.num_heads, shapes[i]) for i in probe.layers.get("qkv", ()))
    sizes["qkv"] = count * size * numbers
    sizes["lens"] += count * size if probe.layers.get("lens") else 0
    sizes["embed"] = probe.embed * count * (anatomy.width * size + probe.num_neighbours * (4 + size))
    return {kind: amount for kind, amount in sizes.items() if amount}


def _qkv_numbers(heads: Sequence[int], num_heads: int, shape: LayerShape) -> int:
    kept = len(kv_heads_of(heads, num_heads, shape.num_kv_heads))
    return len(heads) * shape.key_dim + kept * (shape.key_dim + shape.value_dim)


def kv_heads_of(heads: Sequence[int], num_heads: int, num_kv_heads: int) -> tuple[int, ...]:
    """The K/V heads that some query heads read."""
    return tuple(sorted({head // (num_heads // num_kv_heads) for head in heads}))


def _experts(anatomy: Anatomy) -> int:
    return max(
        (getattr(router, "num_experts", 0) or len(router.weight) for router in anatomy.routers.values()), default=0
    )
