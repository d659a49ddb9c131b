"""Three ways to split a model over processes, by what they send and where they wait (article B; all COMPUTED).

Tensor parallel: every rank works on every layer and token, two sums per layer. Pipeline: layers in stages, hidden
states handed on, stages idle unless several micro-batches are on their way. Expert parallel: tokens travel to the
ranks that hold their experts and back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from llmlab.errors import InvalidParameter
from llmlab.planner.communication import Communication, Messages
from llmlab.planner.formats import number_bytes
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.shards import expert_shard, layer_ranges, runs

COUNT_BYTES = 8  # how many rows go to an expert, as a 64-bit number


def tensor_parallel(
    shape: ModelShape, num_tokens: int, ranks: int, dtype: str = "bf16", num_logits: int = 0
) -> Communication:
    """A step of ``num_tokens`` packed tokens: two all-reduces of ``(num_tokens, hidden_size)`` per layer, one after
    attention's output projection and one after the MLP's (Shoeybi and others 2019, Megatron-LM).

    With ``num_logits`` positions, an all-gather of the head's logits, of which a rank has ``ceil(vocab_size / ranks)``
    per position. Raises ``InvalidParameter`` for counts that make no sense.
    """
    _check(num_tokens, ranks)
    size, layers = number_bytes(dtype), shape.num_layers
    if ranks == 1:
        return Communication("tensor", 1, num_tokens, ())
    hidden = num_tokens * shape.hidden_size * size
    messages = [Messages("all_reduce", "attention", layers, hidden), Messages("all_reduce", "mlp", layers, hidden)]
    if num_logits:
        own = math.ceil(shape.vocab_size / ranks)
        messages.append(Messages("all_gather", "head", 1, num_logits * own * size))
    return Communication("tensor", ranks, num_tokens, tuple(messages))


def tensor_parallel_bytes(shape: ModelShape, num_tokens: int, ranks: int, dtype: str = "bf16") -> int:
    """Bytes one rank contributes to the all-reduces of a step: ``2 x layers x tokens x hidden_size x bytes``."""
    return round(tensor_parallel(shape, num_tokens, ranks, dtype).nbytes)


def pipeline_parallel(
    shape: ModelShape, num_tokens: int, stages: int, dtype: str = "bf16", micro_batches: int = 1, num_logits: int = 0
) -> Communication:
    """A step of ``num_tokens``: hidden states ``(num_tokens, hidden_size)`` over each of ``stages - 1`` boundaries.

    Micro-batches cut them into as many messages; the bytes stay. Of the boundaries one is listed: no rank sends over
    two. With ``num_logits`` positions, the last stage sends their logits to the first.
    Raises ``InvalidParameter`` for more stages than layers, or more micro-batches than tokens.
    """
    _check(num_tokens, stages)
    layer_ranges(shape.num_layers, stages)
    if micro_batches < 1 or micro_batches > num_tokens:
        raise InvalidParameter(f"{num_tokens} tokens cannot be cut into {micro_batches} micro-batches")
    if stages == 1:
        return Communication("pipeline", 1, num_tokens, ())
    size = number_bytes(dtype)
    messages = [Messages("send", "stage", micro_batches, num_tokens * shape.hidden_size * size / micro_batches)]
    if num_logits:
        messages.append(Messages("send", "head", micro_batches, num_logits * shape.vocab_size * size / micro_batches))
    return Communication("pipeline", stages, num_tokens, tuple(messages))


def pipeline_parallel_bytes(shape: ModelShape, num_tokens: int, stages: int, dtype: str = "bf16") -> int:
    """Bytes of a step over all boundaries together: ``(stages - 1) x tokens x hidden_size x bytes``."""
    return round((stages - 1) * pipeline_parallel(shape, num_tokens, stages, dtype).nbytes)


def bubble(stages: int, micro_batches: int) -> float:
    """Share of all stages' time that is idle when ``micro_batches`` equal ones flow through once.

    ``(p - 1) / (m + p - 1)`` (Huang and others 2019, GPipe). Raises ``InvalidParameter`` for less than one of either.
    """
    if stages < 1 or micro_batches < 1:
        raise InvalidParameter(f"{stages} stages and {micro_batches} micro-batches: at least one of each is needed")
    return (stages - 1) / (micro_batches + stages - 1)


def expert_parallel(
    shape: ModelShape,
    num_tokens: int,
    ranks: int,
    dtype: str = "bf16",
    per: str = "expert",
    *,
    replicated_attention: bool = False,
) -> Communication:
    """A step of ``num_tokens``, an equal share of them at home on each rank: in every sparse layer the numbers of rows
    (64-bit), dispatch and combine, each only as far as it leaves the rank; tokens choose their experts evenly.

    ``per`` ``expert``: a token travels once for each of its ``top_k`` experts. ``rank``: once for each rank that holds
    some of them. ``replicated_attention``: every rank works on all tokens outside the experts, so that the shares are
    gathered afterwards. Raises ``InvalidParameter`` for a model without experts.
    """
    _check(num_tokens, ranks)
    expert_shard(shape, ranks)  # refuses what cannot be divided
    if per not in ("expert", "rank"):
        raise InvalidParameter(f"per={per!r} is none: use 'expert' or 'rank'")
    if ranks == 1:
        return Communication("expert", 1, num_tokens, ())
    away, vector = (ranks - 1) / ranks, shape.hidden_size * number_bytes(dtype)
    messages = []
    for mlp, count in Counter(layer.mlp for layer in shape.layers if layer.mlp.num_experts).items():
        copies = mlp.top_k if per == "expert" else ranks_touched(mlp.num_experts, mlp.top_k, ranks)
        messages.append(Messages("all_to_all", "counts", count, away * mlp.num_experts * COUNT_BYTES))
        rows = num_tokens / ranks * copies * away
        messages += [Messages("all_to_all", place, count, rows * vector) for place in ("dispatch", "combine")]
        if replicated_attention:
            messages.append(Messages("all_gather", "mlp", count, math.ceil(num_tokens / ranks) * vector))
    return Communication("expert", ranks, num_tokens, tuple(messages))


def expert_parallel_bytes(
    shape: ModelShape, num_tokens: int, ranks: int, dtype: str = "bf16", per: str = "expert"
) -> int:
    """Bytes that leave all ranks together in a step's dispatch and combine, where tokens choose evenly:
    ``2 x sparse layers x tokens x top_k x (p - 1) / p x hidden_size x bytes`` with ``per="expert"``."""
    messages = expert_parallel(shape, num_tokens, ranks, dtype, per).messages
    return round(ranks * sum(each.total_bytes for each in messages if each.place in ("dispatch", "combine")))


def pairs_away(chosen: Sequence[Sequence[int]], num_experts: int, ranks: int) -> int:
    """Of the pairs of a token and one of its experts, those whose expert is not on the token's own rank.

    ``chosen[t]`` are the experts of packed token ``t``. Tokens and experts are divided in runs as equal as they can be,
    longer ones first. Times ``hidden_size x bytes`` it is what a dispatch sends, and a combine, exactly.
    """
    homes, owners = runs(len(chosen), ranks), runs(num_experts, ranks)
    home_of = [rank for rank, run in enumerate(homes) for _ in run]
    owner_of = [rank for rank, run in enumerate(owners) for _ in run]
    return sum(owner_of[expert] != home for home, experts in zip(home_of, chosen, strict=True) for expert in experts)


def ranks_touched(num_experts: int, top_k: int, ranks: int) -> float:
    """Expected number of ranks that hold at least one of ``top_k`` different experts, chosen evenly."""
    own = num_experts / ranks
    missed = math.prod((num_experts - own - i) / (num_experts - i) for i in range(top_k))
    return ranks * (1 - max(0.0, missed))


def _check(num_tokens: int, ranks: int) -> None:
    if num_tokens < 1 or ranks < 1:
        raise InvalidParameter(f"{num_tokens} tokens over {ranks} ranks: at least one of each is needed")
