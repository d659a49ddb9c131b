"""Where weights come from: catalogue, fetching with hashes, converting once, loading.

Importing this package imports neither torch nor transformers; they are imported by what needs them.
"""

from __future__ import annotations

from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.models.cache import cache_dir, damaged_files, downloads_dir, is_ready, model_dir
from llmlab.models.catalogue import DEFAULT_MODEL, CatalogueEntry, catalogue, lookup
from llmlab.models.fetch import Progress, fetch
from llmlab.models.load import LoadedModel, ResolvedModel, load, resolve

__all__ = [
    "DEFAULT_MODEL",
    "ByteTokenizer",
    "CatalogueEntry",
    "LoadedModel",
    "Progress",
    "ResolvedModel",
    "cache_dir",
    "catalogue",
    "damaged_files",
    "downloads_dir",
    "fetch",
    "is_ready",
    "load",
    "lookup",
    "model_dir",
    "resolve",
]
