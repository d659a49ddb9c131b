"""Embedding rows and the tokens that lie nearest to them."""

from __future__ import annotations

import torch

from llmlab.probes.anatomy import Anatomy

CHUNK = 64


def nearest(anatomy: Anatomy, ids: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The ``k`` tokens with the most similar embedding rows for each of ``ids`` ``(n,)``, the token itself left out.

    Token ids and cosine similarities, both ``(n, k)``, most similar first.
    """
    weight, lengths = anatomy.embedding.weight, anatomy.embedding_lengths
    parts = [_nearest(weight, lengths, part.to(weight.device), k) for part in ids.split(CHUNK)]
    found, similarity = zip(*parts, strict=True)
    return torch.cat(found), torch.cat(similarity)


def _nearest(weight: torch.Tensor, lengths: torch.Tensor, ids: torch.Tensor, k: int) -> tuple:
    cosine = (weight[ids] @ weight.T).float() / (lengths[ids][:, None] * lengths)
    cosine.scatter_(1, ids[:, None], -torch.inf)
    values, found = cosine.topk(k, dim=-1)
    return found, values
