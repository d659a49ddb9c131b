"""From one GGUF file to the folder transformers loads: float32 safetensors, tokenizer, chat template."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerFast


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Read ``gguf`` with transformers and write the new folder ``folder``, its weights as float32.

    Raises ``OSError`` (``ENOSPC`` if the disk is full).
    """
    folder.mkdir()
    with quiet_transformers():
        _write_model(_read_model(gguf), folder)
        _write_tokenizer(gguf, folder)


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """transformers shows no progress bars and logs errors only; both settings are restored at the end."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


def _read_model(gguf: Path) -> PreTrainedModel:
    import torch
    from transformers import AutoModelForCausalLM

    with redirect_stderr(StringIO()):  # dequantising draws a bar of its own that no setting turns off
        model = AutoModelForCausalLM.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
        )
    config = model.config
    for leftover in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, leftover):
            delattr(config, leftover)
    config.name_or_path = ""
    config.dtype = torch.float32
    config.architectures = [type(model).__name__]
    return model


def _write_model(model: PreTrainedModel, folder: Path) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    # model.save_pretrained refuses every model that was read from GGUF, also once it is plain float32.
    try:
        save_file(_tensors(model), folder / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        if "No space left" in str(error):
            raise OSError(errno.ENOSPC, str(error)) from error
        raise OSError(f"the weights could not be written: {error}") from error
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)


def _tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Each tensor once: one that is embedding and head has the embedding's name, where every server looks for it."""
    names = {name for name, _ in (*model.named_parameters(), *model.named_buffers())}
    return {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name in names}


def _write_tokenizer(gguf: Path, folder: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(
        gguf.parent, gguf_file=gguf.name, local_files_only=True, trust_remote_code=False
    )
    _set_pre_tokenizer(tokenizer, _metadata(gguf, "tokenizer.ggml.pre"))
    tokenizer.model_max_length = _metadata(gguf, "{arch}.context_length") or tokenizer.model_max_length
    for leftover in ("is_local", "local_files_only"):
        tokenizer.init_kwargs.pop(leftover, None)
    tokenizer.save_pretrained(folder)


def _set_pre_tokenizer(tokenizer: PreTrainedTokenizerFast, kind: str | None) -> None:
    """Split as the model was trained: transformers gives every byte-level GGUF tokenizer GPT-2's rule.

    SmolLM cuts out each digit first, so a line break before a number is not split off its neighbours.
    """
    if kind != "smollm":
        return
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence

    rule = Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.backend_tokenizer.pre_tokenizer = rule


def _metadata(gguf: Path, key: str) -> str | int | None:
    """One metadata value of the file; ``{arch}`` in ``key`` stands for its architecture."""
    from gguf import GGUFReader

    reader = GGUFReader(gguf)
    architecture = reader.fields["general.architecture"].contents()
    field = reader.fields.get(key.format(arch=architecture))
    return field.contents() if field else None
