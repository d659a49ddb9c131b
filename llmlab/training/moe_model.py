"""A small Mixtral over bytes: random weights, its byte tokenizer, and a folder that can be served."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmlab.errors import InvalidParameter

if TYPE_CHECKING:
    from transformers import MixtralConfig, MixtralForCausalLM, PreTrainedTokenizerFast

BOS, EOS = 256, 257
VOCABULARY = 258
CONTINUE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
"""A chat template for a model that knows no chats: it goes on with what it is given."""


@dataclass(frozen=True, slots=True)
class MoeSize:
    """Shape of the model: ``experts`` per layer of which a token uses ``top_k``, each ``expert_width`` wide inside.

    ``context`` is the longest sequence it is served with (tokens, here bytes).
    """

    layers: int = 4
    width: int = 128
    heads: int = 4
    kv_heads: int = 2
    experts: int = 8
    top_k: int = 2
    expert_width: int = 128
    context: int = 512

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise InvalidParameter(f"{name}={value!r} must be an integer of at least 1")
        if not 1 <= self.top_k <= self.experts:
            raise InvalidParameter(f"top_k={self.top_k} must be from 1 to the number of experts, {self.experts}")
        if self.width % (2 * self.heads) or self.heads % self.kv_heads:
            raise InvalidParameter(
                f"width={self.width}, heads={self.heads}, kv_heads={self.kv_heads} do not fit together: the width must "
                "be a multiple of twice the heads, and the heads a multiple of the K/V heads"
            )

    def config(self) -> MixtralConfig:
        """The transformers config of this shape, over :data:`VOCABULARY` bytes and special tokens."""
        from transformers import MixtralConfig

        return MixtralConfig(
            vocab_size=VOCABULARY,
            hidden_size=self.width,
            intermediate_size=self.expert_width,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            num_local_experts=self.experts,
            num_experts_per_tok=self.top_k,
            max_position_embeddings=self.context,
            bos_token_id=BOS,
            eos_token_id=EOS,
            tie_word_embeddings=True,
            initializer_range=0.1,  # a narrow model learns sooner from larger weights than those of wide ones
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        )


def random_moe(size: MoeSize, seed: int) -> MixtralForCausalLM:
    """A float32 model of random weights; torch's own random state is left as it was."""
    import torch
    from transformers import MixtralForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MixtralForCausalLM(size.config()).float()


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer whose token ``i`` is the byte ``i``, with ``<bos>`` 256 and ``<eos>`` 257, as a tokenizer.json.

    Unlike :class:`~llmlab.models.byte_tokenizer.ByteTokenizer` it can be saved beside weights.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    vocabulary = {character: byte for byte, character in bytes_to_unicode().items()}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", chat_template=CONTINUE
    )


def save_moe(model: MixtralForCausalLM, folder: str | Path) -> Path:
    """Write weights (safetensors), config and tokenizer, so that ``llmlab.open(folder)`` serves the model."""
    from llmlab.models.convert import quiet_transformers

    folder = Path(folder)
    with quiet_transformers():
        model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
