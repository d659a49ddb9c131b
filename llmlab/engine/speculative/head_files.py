"""Where trained heads are kept, and what makes sure that one only ever drafts for the model it was trained on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from llmlab.engine.speculative.head_model import DraftHead, HeadConfig
from llmlab.errors import HeadMismatch

if TYPE_CHECKING:
    from llmlab.models.load import LoadedModel

WEIGHTS, CARD = "head.safetensors", "head.json"
DRAFTED = "drafted_ids"


def heads_folder() -> Path:
    """The folder of the heads that come with llmlab, one folder per model: in the package, or beside it."""
    package = Path(__file__).parents[2]
    inside = package / "data" / "heads"
    return inside if inside.is_dir() else package.parent / "data" / "heads"


def weights_sha256(folder: str | Path) -> str:
    """The sha256 of a model's tensors, by name, type, shape and bytes, in hexadecimal; files they lie in do not count.

    A file's header may order the same tensors and remarks otherwise each time it is written. Raises ``HeadMismatch``
    for a model that is not a local folder, or whose files cannot be read.
    """
    folder = Path(folder)
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise HeadMismatch(f"{str(folder)!r} is not a folder with safetensors, so no head can be matched to it")
    digest = hashlib.sha256()
    try:
        for name, path, start, end, described in sorted(place for file in files for place in _tensors(file)):
            digest.update(f"{name} {described}\n".encode())
            with path.open("rb") as stream, mmap(stream.fileno(), 0, access=ACCESS_READ) as content:
                digest.update(memoryview(content)[start:end].tobytes())
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise HeadMismatch(f"the weights in {str(folder)!r} cannot be read: {error}") from error
    return digest.hexdigest()


def _tensors(file: Path) -> Iterator[tuple[str, Path, int, int, str]]:
    """Name, file, first and last byte, type and shape of every tensor of a safetensors file."""
    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(size))
    for name, tensor in header.items():
        if name != "__metadata__":
            start, end = (8 + size + offset for offset in tensor["data_offsets"])
            yield name, file, start, end, f"{tensor['dtype']} {tensor['shape']}"


def save_head(folder: Path, head: DraftHead, drafted: Tensor, card: dict[str, Any]) -> None:
    """Write the weights as bfloat16, and ``card`` with the head's shape as JSON; ``card["target"]`` names the model
    and its ``weights_sha256``."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in head.state_dict().items()}
    save_file({**tensors, DRAFTED: drafted.to("cpu", torch.int32)}, folder / WEIGHTS)
    text = json.dumps({"shape": head.config.to_dict(), **card}, indent=1)
    (folder / CARD).write_text(text + "\n", "utf-8")
    # safetensors makes its file private, but a head may be shared as its card is
    (folder / WEIGHTS).chmod((folder / CARD).stat().st_mode)


def load_head(target: LoadedModel, folder: Path | None = None) -> tuple[DraftHead, Tensor]:
    """The head in ``folder`` (default: the one that comes with ``target``), and the ids it drafts ``(drafted,)``.

    Raises ``HeadMismatch`` when there is none, when it was trained for another model, or when it is damaged.
    """
    folder = folder or heads_folder() / Path(target.name).name
    card = read_card(folder)
    check_target(card, target)
    try:
        return _read(folder / WEIGHTS, HeadConfig(**card["shape"]))
    except HeadMismatch:
        raise
    except Exception as error:
        raise HeadMismatch(f"the head in {str(folder)!r} is damaged: {error}") from error


def read_card(folder: Path) -> dict[str, Any]:
    """What is written about the head in ``folder``. Raises ``HeadMismatch`` where there is none."""
    try:
        card = json.loads((folder / CARD).read_text("utf-8"))
        card["shape"], card["target"]["name"], card["target"]["weights_sha256"]
        return card
    except OSError as error:
        raise HeadMismatch(
            f"there is no trained head in {str(folder)!r}: train one with `llmlab train-head`, or use "
            "speculative='ngram' or 'early-exit'"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise HeadMismatch(f"{str(folder / CARD)!r} does not describe a head: {error!r}") from error


def check_target(card: dict[str, Any], target: LoadedModel) -> None:
    """Raise ``HeadMismatch`` unless the head was trained for exactly these weights."""
    wanted = card["target"]
    if wanted["name"] != target.name:
        raise HeadMismatch(f"the head was trained for {wanted['name']!r}, not for {target.name!r}")
    found, trained_for = weights_sha256(target.path), wanted["weights_sha256"]
    if found != trained_for:
        raise HeadMismatch(
            f"the head was trained for other weights of {target.name!r} (sha256 {trained_for[:12]}…, these have "
            f"{found[:12]}…): train one for these with `llmlab train-head`"
        )


def _read(path: Path, config: HeadConfig) -> tuple[DraftHead, Tensor]:
    from safetensors.torch import load_file

    tensors = load_file(path)
    drafted = tensors.pop(DRAFTED).long()
    head = DraftHead(config)
    head.load_state_dict(tensors)
    return head, drafted


def output_rows(model: torch.nn.Module, ids: Tensor) -> Tensor:
    """The rows ``(len(ids), width)`` of a model's output matrix, also where it was packed for its kernel."""
    embedding = model.get_input_embeddings().weight
    output = model.get_output_embeddings()
    if getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return embedding.detach()[ids.to(embedding.device)]
    if (weight := getattr(output, "weight", None)) is not None:
        return weight.detach()[ids.to(weight.device)]
    with torch.inference_mode():  # a layer without bias maps the identity to its own transposed matrix
        identity = torch.eye(output.in_features, dtype=embedding.dtype, device=embedding.device)
        return output(identity)[:, ids.to(embedding.device)].T.clone()
