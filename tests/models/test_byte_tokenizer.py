from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmlab.errors import InvalidParameter
from llmlab.models import ByteTokenizer

tokenizer = ByteTokenizer()


@given(st.text())
def test_text_survives_a_round_trip(text):
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode(ids) == text


@given(st.lists(st.integers(0, 257)))
def test_token_bytes_join_to_the_decoded_text(ids):
    joined = b"".join(tokenizer.token_bytes(i) for i in ids)
    assert joined.decode(errors="replace") == tokenizer.decode(ids, skip_special_tokens=False)


def test_special_tokens_are_added_and_skipped_only_when_asked():
    ids = [*tokenizer.encode("hé", add_special_tokens=True), tokenizer.eos_token_id]
    assert ids == [256, 104, 0xC3, 0xA9, 257]
    assert tokenizer.decode(ids) == "hé"
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<bos>hé<eos>"
    assert (len(tokenizer), tokenizer.all_special_ids) == (258, [256, 257])


def test_text_cannot_inject_a_special_token():
    assert max(tokenizer.encode("<eos><bos>")) < 256


def test_half_a_character_becomes_a_replacement_character():
    assert tokenizer.decode("é".encode()[:1]) == "\N{REPLACEMENT CHARACTER}"


def test_a_lone_surrogate_is_encoded_as_a_question_mark():
    assert tokenizer.encode("\ud800") == [ord("?")]


def test_every_token_has_its_own_name():
    names = tokenizer.convert_ids_to_tokens(range(258))
    assert len(set(names)) == 258
    assert [names[i] for i in (65, 10, 200, 257)] == ["A", "<0x0A>", "<0xC8>", "<eos>"]
    assert tokenizer.convert_ids_to_tokens(65) == "A"


@pytest.mark.parametrize("bad", [-1, 258])
def test_an_id_outside_the_vocabulary_is_refused(bad):
    with pytest.raises(InvalidParameter, match="0 to 257"):
        tokenizer.decode([bad])


def test_chat_template_marks_roles_and_asks_for_the_answer():
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    text = tokenizer.apply_chat_template(messages, tools=None)
    assert text == "system: Be kind.\nuser: Hi\nassistant:"
    assert tokenizer.apply_chat_template(messages, add_generation_prompt=False) + "assistant:" == text
    assert tokenizer.apply_chat_template(messages, tokenize=True) == tokenizer.encode(text)
