"""From a model's name to weights in memory: catalogue names, local folders, hub models."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmlab.errors import FetchError, InvalidParameter, UnknownModel, UnsupportedModel
from llmlab.models.catalogue import CatalogueEntry, catalogue, lookup, unknown_message
from llmlab.models.convert import quiet_transformers
from llmlab.models.fetch import Progress, fetch

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

HUB_PREFIX = "hub:"

_DTYPES = ("float32", "bfloat16", "float16")
_RECURRENT_LAYERS = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention", "mamba", "recurrent"})
_CONVOLUTION_FAMILIES = ("lfm2", "lfm3")  # stateful layers that an older config does not name
_FREE_MEMORY_SHARE = 0.9  # the rest of a device's free memory is for activations and the K/V pool


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """Where a model is: a local folder, or a hub id if ``from_hub``; ``entry`` is that of the catalogue."""

    name: str
    path_or_id: str
    entry: CatalogueEntry | None = None
    from_hub: bool = False


@dataclass(slots=True)
class LoadedModel:
    """A model in eval mode without gradients, and what an engine needs to know about it.

    ``max_model_len`` is the context in tokens. ``eos_token_ids`` are all ids that end a generation.
    ``device`` is that of the first weights if the model is spread over several. ``quantized`` names the format that
    linear layers were rounded to.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str
    path: str
    eos_token_ids: tuple[int, ...]
    max_model_len: int
    device: torch.device
    dtype: torch.dtype
    quantized: str = "off"


def resolve(model: str | Path, *, allow_hub: bool = False, progress: Progress | None = None) -> ResolvedModel:
    """Find ``model``: a catalogue name (fetched if need be), a transformers folder, or ``hub:ORG/NAME``.

    With ``allow_hub``, ``ORG/NAME`` means the hub too. Nothing is downloaded from the hub here.
    Raises :class:`~llmlab.errors.UnknownModel` or :class:`~llmlab.errors.FetchError`.
    """
    text = str(model)
    if text in catalogue():
        entry = lookup(text)
        return ResolvedModel(entry.name, str(fetch(entry, progress=progress)), entry)
    folder = Path(text).expanduser().absolute()
    if (folder / "config.json").is_file():
        return ResolvedModel(folder.name, str(folder))
    if folder.is_dir():
        raise UnknownModel(f"The folder {text!r} has no config.json, so it is not a transformers model.")
    if text.startswith(HUB_PREFIX) or (allow_hub and text.count("/") == 1):
        return _hub_model(text.removeprefix(HUB_PREFIX))
    hub = f"{HUB_PREFIX}{text}" if text.count("/") == 1 else f"{HUB_PREFIX}org/name"
    also = f"A local folder with config.json works too; a model of the hub is written {hub!r}."
    raise UnknownModel(f"{unknown_message(text)} {also}")


def _hub_model(repo_id: str) -> ResolvedModel:
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise UnknownModel(f"{repo_id!r} is not a hub id; one reads {HUB_PREFIX}org/name. {error}") from error
    return ResolvedModel(repo_id, repo_id, from_hub=True)


def load(
    model: str | Path,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "float32",
    allow_hub: bool = False,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load ``model`` (see :func:`resolve`) and its tokenizer; safetensors only, none of the model's own code.

    ``device``: ``auto`` is CUDA if there is one, else the CPU; a model larger than one CUDA device is spread
    over all unless a device number is given. ``dtype``: ``float32``, ``bfloat16``, ``float16``, or ``auto``,
    which is bfloat16 on a CUDA device that has it, else float32.

    Raises :class:`~llmlab.errors.UnknownModel`, :class:`~llmlab.errors.FetchError`,
    :class:`~llmlab.errors.InvalidParameter`, or :class:`~llmlab.errors.UnsupportedModel` before weights are
    read if the architecture cannot be served.
    """
    chosen = choose_device(device)
    chosen_dtype = choose_dtype(dtype, chosen)
    found = resolve(model, allow_hub=allow_hub, progress=progress)
    with quiet_transformers(), _naming_errors(found):
        config = _load_config(found)
        check_architecture(config)
        tokenizer = _load_tokenizer(found)
        max_model_len = _max_model_len(config, tokenizer)
        weights = _load_weights(found, config, chosen, chosen_dtype)
    eos = _eos_token_ids(weights.generation_config, tokenizer)
    name, path = found.name, found.path_or_id
    return LoadedModel(weights, tokenizer, name, path, eos, max_model_len, weights.device, chosen_dtype)


def choose_device(device: str | torch.device) -> torch.device:
    """The torch device that ``device`` names. Raises :class:`~llmlab.errors.InvalidParameter`."""
    import torch

    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise InvalidParameter(f"There is no device {device!r}: use 'auto', 'cpu', 'cuda' or 'cuda:0'.") from error
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise InvalidParameter(f"torch sees {count} CUDA devices, so {device!r} cannot be used: try 'cpu'.")
    return chosen


def choose_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The torch dtype that ``dtype`` names on ``device``. Raises :class:`~llmlab.errors.InvalidParameter`."""
    import torch

    name = str(dtype).removeprefix("torch.")
    if name == "auto":
        fast = device.type == "cuda" and torch.cuda.is_bf16_supported()
        return torch.bfloat16 if fast else torch.float32
    if name not in _DTYPES:
        raise InvalidParameter(f"A model cannot be loaded as {name!r}: use 'auto', {', '.join(_DTYPES)}.")
    return getattr(torch, name)


def check_architecture(config: PreTrainedConfig) -> None:
    """Refuse what cannot be served from blocks of keys and values; looks at the config only.

    Raises :class:`~llmlab.errors.UnsupportedModel` for encoder-decoder models, models that are not causal
    language models, and models with recurrent, convolutional or otherwise compressed state.
    """
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    kind = config.model_type
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{kind!r} is an encoder-decoder model; llmlab serves decoder-only models.")
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise UnsupportedModel(f"transformers has no causal language model of type {kind!r}.")
    text_config = config.get_text_config(decoder=True)
    layers = set(getattr(text_config, "layer_types", None) or ())
    stateful = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]._is_stateful
    if stateful or layers & _RECURRENT_LAYERS or kind.startswith(_CONVOLUTION_FAMILIES):
        raise UnsupportedModel(
            f"{kind!r} keeps recurrent or compressed state, not one key and value per token, so it cannot be "
            f"served from K/V blocks. Llama, Qwen 2 and 3, Mistral, Gemma and most other transformers work."
        )


def _source(found: ResolvedModel) -> dict[str, Any]:
    return {"trust_remote_code": False, "local_files_only": not found.from_hub}


def _load_config(found: ResolvedModel) -> PreTrainedConfig:
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(found.path_or_id, **_source(found))
    except (ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"{found.name!r} has an architecture that transformers does not know, or one that needs code "
            f"from the model's own folder, which llmlab never runs. {_first_line(error)}"
        ) from error


def _load_tokenizer(found: ResolvedModel) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    advice = "save the tokenizer of its base model there with tokenizer.save_pretrained (tokenizer.json)"
    try:
        tokenizer = AutoTokenizer.from_pretrained(found.path_or_id, **_source(found))
    except (ValueError, TypeError, KeyError) as error:
        message = f"{found.name!r} has no tokenizer that can be loaded: {advice}. {_first_line(error)}"
        raise UnsupportedModel(message) from error
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise UnsupportedModel(f"{found.name!r} has no tokenizer files: {advice}.")
    return tokenizer


def _load_weights(
    found: ResolvedModel, config: PreTrainedConfig, device: torch.device, dtype: torch.dtype
) -> PreTrainedModel:
    from transformers import AutoModelForCausalLM

    if not found.from_hub:
        _require_safetensors(Path(found.path_or_id))
    model, report = AutoModelForCausalLM.from_pretrained(
        found.path_or_id,
        config=config,
        dtype=dtype,
        use_safetensors=True,
        output_loading_info=True,
        **placement(config, device, dtype),
        **_source(found),
    )
    if missing := sorted({*report["missing_keys"], *(key for key, *_ in report["mismatched_keys"])}):
        raise UnsupportedModel(f"The files of {found.name!r} lack weights the model needs: {', '.join(missing[:5])}.")
    return model.eval().requires_grad_(False)


def _require_safetensors(folder: Path) -> None:
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if not pickles:
        raise UnsupportedModel(f"The folder {folder} holds no weights: model.safetensors is missing.")
    raise UnsupportedModel(
        f"The folder {folder} holds weights only as pickle ({pickles[0]}), which can run code when it is "
        f"read. If you trust the file, convert it once with AutoModelForCausalLM.from_pretrained("
        f"{str(folder)!r}, use_safetensors=False).save_pretrained(NEW_FOLDER), then load NEW_FOLDER."
    )


def placement(config: PreTrainedConfig, device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
    """The ``device_map`` keyword for ``from_pretrained``: one device, or all if one is too small."""
    import torch

    if device.type == "cpu":
        return {}
    if device.type == "cuda" and device.index is None:
        free, _ = torch.cuda.mem_get_info(device)
        if weight_bytes(config, dtype) > free * _FREE_MEMORY_SHARE:
            return {"device_map": "auto"}
    return {"device_map": {"": device}}


def weight_bytes(config: PreTrainedConfig, dtype: torch.dtype) -> int:
    """Bytes the weights of ``config`` occupy as ``dtype``; shared weights count once, none are allocated."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    return sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())


def _max_model_len(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    text_config = config.get_text_config(decoder=True)
    names = ("max_position_embeddings", "max_seq_len", "seq_length")
    lengths = [getattr(text_config, name, None) for name in names]
    if found := next((length for length in lengths if length), None):
        return int(found)
    if tokenizer.model_max_length < 1 << 30:  # transformers' value for "unknown" is far larger
        return int(tokenizer.model_max_length)
    raise UnsupportedModel(f"The config of this {config.model_type!r} model does not state its context length.")


def _eos_token_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    stated = generation_config.eos_token_id
    ids = list(stated) if isinstance(stated, (list, tuple)) else [stated]
    return tuple(dict.fromkeys(i for i in [*ids, tokenizer.eos_token_id] if i is not None))


@contextmanager
def _naming_errors(found: ResolvedModel) -> Iterator[None]:
    """What transformers raises for files it could not find, fetch, read or fit together becomes our named error."""
    from safetensors import SafetensorError

    try:
        yield
    except FetchError:
        raise
    except SafetensorError as error:
        raise FetchError(
            f"a weights file of {found.name!r} is damaged: fetch it again. {_first_line(error)}"
        ) from error
    except RuntimeError as error:
        if "mismatch" not in str(error):
            raise
        raise UnsupportedModel(
            f"the weights of {found.name!r} do not fit its config.json: they must come from the same model. "
            f"{_first_line(error)}"
        ) from error
    except OSError as error:
        where = "from the hub: check the name and the network" if found.from_hub else f"from {found.path_or_id}"
        raise FetchError(f"{found.name!r} could not be loaded {where}. {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
