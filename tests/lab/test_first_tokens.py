"""What the model is given begins with one beginning-of-sequence token, however many parts would add one."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import llmlab
from llmlab.lab import Lab

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


@pytest.fixture
def lab():
    """A lab whose tokenizer adds the token itself, and whose chat template writes it too."""
    vocabulary = {"<s>": 1, "</s>": 2, "hello": 3, "world": 4, "[UNK]": 0}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="[UNK]")
    fast.chat_template = TEMPLATE
    with llmlab.open("mock", background=False) as mock:
        yield Lab(mock.engine, fast, "mock", None)


@pytest.mark.parametrize("options", [{}, {"raw": True}], ids=["templated", "raw"])
def test_a_prompt_begins_with_one_token_of_that_kind_and_the_trace_shows_it(lab, options):
    run = lab.submit("hello world", max_tokens=1, **options)
    assert list(run.prompt_token_ids) == [1, 3, 4]
    shown = lab.trace.tokens.query("index.isna()", engine="python")
    assert list(shown.token_id) == [1, 3, 4]
