"""The detokenizer against whole decodes, over several kinds of tokenizer."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from llmlab.engine.detokenizer import Detokenizer
from llmlab.models.byte_tokenizer import ByteTokenizer

TEXTS = [
    "Hello, world! The quick  brown fox.",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6f22\u5b57\u3068\u304b\u306a",
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
    "cafe\u0301 n\u0303 \u0e01\u0e33\u0e25\u0e31\u0e07",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1ee\U0001f1f9 \U0001f44d\U0001f3fd!",
    "a genuine \ufffd and three \ufffd\ufffd\ufffd, then five \ufffd\ufffd\ufffd\ufffd\ufffd",
]
BYTES = ByteTokenizer()
SAMPLES = (st.text(max_size=40) | st.sampled_from(TEXTS)).map(lambda s: s.encode("utf-8", "replace"))


def byte_level_bpe() -> PreTrainedTokenizerFast:
    """A small tokenizer in the manner of GPT-2, whose tokens often end inside a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def metaspace_bpe() -> PreTrainedTokenizerFast:
    """A small tokenizer in the manner of Llama 2: unknown characters become byte tokens."""
    pieces = ["<eos>", *(f"<0x{i:02X}>" for i in range(256)), "\u2581", *"Helo,wrd!bcatinu"]
    merges = [("l", "l"), ("\u2581", "w"), ("\u2581w", "o"), ("\u2581", "a")]
    pieces += ["".join(pair) for pair in merges]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>")


def metaspace_unigram() -> PreTrainedTokenizerFast:
    """A small tokenizer in the manner of T5: a unigram vocabulary with an unknown token."""
    pieces = ["<unk>", "\u2581", "\u2581Hello", "\u2581world", "Hello", *"Helo,wrd! abcfinu"]
    tokenizer = Tokenizer(models.Unigram([(piece, -float(i)) for i, piece in enumerate(pieces)], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")


def suffix_bpe() -> PreTrainedTokenizerFast:
    """A small tokenizer in the manner of CLIP: words end with a marked token, a space if another follows."""
    pieces = ["a", "b", "a</w>", "b</w>", "\u00e9</w>"]
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.decoder = decoders.BPEDecoder("</w>")
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


KINDS = {f.__name__: f() for f in (byte_level_bpe, metaspace_bpe, metaspace_unigram, suffix_bpe)}
KINDS["byte_tokenizer"] = BYTES


def pieces_of(detokenizer: Detokenizer, ids: list[int], **kwargs) -> list[str]:
    """The text of each push, then of the finish."""
    return [detokenizer.push(token_id, **kwargs) for token_id in ids] + [detokenizer.finish()]


def whole(tokenizer, ids: list[int], **kwargs) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, **kwargs)


# equal to the whole decode


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", KINDS)
def test_pieces_join_to_the_whole_decode(kind, text):
    tokenizer = KINDS[kind]
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert "".join(pieces_of(Detokenizer(tokenizer), ids)) == whole(tokenizer, ids)


@pytest.mark.parametrize("kind", ["byte_level_bpe", "metaspace_unigram", "suffix_bpe", "byte_tokenizer"])
@given(data=st.data())
@settings(max_examples=300, deadline=None)
def test_any_token_ids_join_to_the_whole_decode(kind, data):
    tokenizer = KINDS[kind]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=60))
    assert "".join(pieces_of(Detokenizer(tokenizer), ids)) == whole(tokenizer, ids)


@given(st.lists(SAMPLES, max_size=8), st.lists(st.integers(0, 100), max_size=6))
@settings(max_examples=300, deadline=None)
def test_byte_fallback_joins_to_the_whole_decode_when_the_bytes_are_text(samples, specials):
    tokenizer = KINDS["metaspace_bpe"]
    ids = [byte + 1 for sample in samples for byte in sample]
    for place in specials:
        ids[place:place] = [tokenizer.eos_token_id] * 4
    assert "".join(pieces_of(Detokenizer(tokenizer), ids)) == whole(tokenizer, ids)


@given(st.lists(st.integers(129, 277), max_size=60))
@settings(max_examples=300, deadline=None)
def test_malformed_byte_fallback_loses_no_ordinary_token(ids):
    tokenizer = KINDS["metaspace_bpe"]
    shown = "".join(pieces_of(Detokenizer(tokenizer), ids))
    assert [c for c in shown if c.isascii()] == [c for c in whole(tokenizer, ids) if c.isascii()]


def test_malformed_byte_fallback_is_shown_as_soon_as_other_text_follows():
    tokenizer = KINDS["metaspace_bpe"]
    detokenizer = Detokenizer(tokenizer)
    byte_ids = [byte + 1 for byte in "\u4f60".encode() + b"\xff"]
    a = tokenizer.convert_tokens_to_ids("a")
    assert [detokenizer.push(i) for i in [*byte_ids, a]] == ["", "", "\u4f60", "", "\ufffda"]


@given(
    st.lists(SAMPLES, max_size=5),
    st.lists(st.sampled_from([b"\xe4", b"\xff", b"\xf0\x9f", b"\x98"]), max_size=9),
)
@settings(max_examples=300, deadline=None)
def test_malformed_bytes_show_as_the_whole_decode_shows_them(good, bad):
    ids = list(b"".join(x for pair in zip(good, bad, strict=False) for x in pair) + b"".join(bad))
    assert "".join(pieces_of(Detokenizer(BYTES), ids)) == whole(BYTES, ids)


def test_special_tokens_inside_a_character_do_not_break_it():
    ids = [0xE4, 257, 0xBD, 256, 0xA0]
    assert pieces_of(Detokenizer(BYTES), ids) == ["", "", "", "", "\u4f60", ""]


@pytest.mark.parametrize("kind", ["metaspace_bpe", "metaspace_unigram"])
def test_many_special_tokens_do_not_hide_that_a_space_follows(kind):
    tokenizer = KINDS[kind]
    a, w = tokenizer.convert_tokens_to_ids(["a", "\u2581w" if kind == "metaspace_bpe" else "\u2581world"])
    ids = [a] + [0] * 40 + [w]
    assert "".join(pieces_of(Detokenizer(tokenizer), ids)) == whole(tokenizer, ids)
    assert " w" in whole(tokenizer, ids)


def test_special_tokens_are_shown_when_asked_for():
    detokenizer = Detokenizer(BYTES, skip_special_tokens=False)
    assert "".join(pieces_of(detokenizer, [97, 257])) == BYTES.decode([97, 257], skip_special_tokens=False)


@pytest.mark.model
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_default_model_joins_to_the_whole_decode(model_tokenizer, data):
    text = data.draw(st.lists(st.text(max_size=20) | st.sampled_from(TEXTS), max_size=4).map("".join))
    noise = data.draw(st.lists(st.integers(0, len(model_tokenizer) - 1), max_size=20))
    ids = model_tokenizer.encode(text, add_special_tokens=False) + noise
    prompt = model_tokenizer.encode(data.draw(st.sampled_from(TEXTS)), add_special_tokens=False)
    expected = whole(model_tokenizer, ids, clean_up_tokenization_spaces=False)
    assert "".join(pieces_of(Detokenizer(model_tokenizer), ids)) == expected
    assert "".join(pieces_of(Detokenizer(model_tokenizer, prompt), ids)) == expected


@pytest.fixture(scope="session")
def model_tokenizer(model_path):
    return AutoTokenizer.from_pretrained(model_path)


# the prompt is context


def test_output_keeps_the_space_that_joins_it_to_the_prompt():
    tokenizer = KINDS["metaspace_unigram"]
    hello, world = tokenizer.encode("Hello world", add_special_tokens=False)
    assert pieces_of(Detokenizer(tokenizer, [hello]), [world]) == [" world", ""]
    assert pieces_of(Detokenizer(tokenizer), [world]) == ["world", ""]


@given(
    st.sampled_from(sorted(KINDS)),
    st.text("Helo wrd,abi", min_size=1, max_size=30),
    st.text("Helo wrd,abi", max_size=30),
)
@settings(max_examples=300, deadline=None)
def test_prompt_and_output_join_to_the_whole_decode(kind, prompt, output):
    tokenizer = KINDS[kind]
    prompt_ids = tokenizer.encode("a" + prompt, add_special_tokens=False)
    ids = tokenizer.encode(output, add_special_tokens=False)
    text = "".join(pieces_of(Detokenizer(tokenizer, prompt_ids), ids))
    assert whole(tokenizer, prompt_ids) + text == whole(tokenizer, prompt_ids + ids)


def test_prompt_that_ends_inside_a_character_gives_no_context():
    detokenizer = Detokenizer(BYTES, list("\u4f60".encode())[:2])
    assert "".join(pieces_of(detokenizer, [0xA0, 97])) == "\ufffda"


def test_prompt_of_byte_tokens_is_continued_at_a_whole_character():
    tokenizer = KINDS["metaspace_bpe"]
    prompt, ids = ([byte + 1 for byte in text.encode()] for text in ("\u4f60" * 4, "\u597d"))
    assert pieces_of(Detokenizer(tokenizer, prompt), ids) == ["", "", "\u597d", ""]


def test_prompt_text_is_not_emitted_and_not_searched_for_stops():
    detokenizer = Detokenizer(BYTES, list(b"say EN"), stop=["END"])
    assert "".join(pieces_of(detokenizer, list(b"D it"))) == "D it"
    assert detokenizer.stop_hit is None


# in time, and never taken back


@pytest.mark.parametrize("text", TEXTS[1:5])
def test_each_character_is_emitted_with_its_last_byte(text):
    detokenizer = Detokenizer(BYTES)
    for character in text:
        first = [detokenizer.push(byte) for byte in character.encode()]
        assert first == [""] * (len(first) - 1) + [character]


def test_genuine_replacement_character_is_not_held_for_ever():
    detokenizer = Detokenizer(BYTES)
    emitted = [detokenizer.push(byte) for byte in "\ufffd.".encode()]
    assert emitted == ["", "", "", "\ufffd."]
    for _ in range(10):
        for byte in "\ufffd".encode():
            detokenizer.push(byte)
    assert detokenizer.text.count("\ufffd") == 10
    detokenizer.finish()
    assert detokenizer.text.count("\ufffd") == 11


def test_unfinished_character_is_flushed_at_the_end():
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.push(0xF0) == detokenizer.push(0x9F) == ""
    assert detokenizer.push(0x98, final=True) == "\ufffd"
    assert detokenizer.finish() == ""


@given(st.binary(max_size=60))
@settings(max_examples=300, deadline=None)
def test_text_only_grows_and_lags_by_at_most_three_characters(data):
    detokenizer, before = Detokenizer(BYTES), ""
    for i, byte in enumerate(data, start=1):
        piece = detokenizer.push(byte)
        assert detokenizer.text == before + piece
        before = detokenizer.text
        decoded = BYTES.decode(list(data[:i]))
        assert decoded.startswith(before[: len(decoded) - 1])
        assert len(decoded) - len(before) <= 3


@pytest.mark.parametrize("unit", ["a", "\u4f60", "\U0001f600", "\ufffd", "\u00e9"])
@pytest.mark.parametrize("kind", ["byte_tokenizer", "byte_level_bpe", "metaspace_bpe"])
def test_work_per_token_does_not_grow_with_the_output(kind, unit, monkeypatch):
    tokenizer, sizes = KINDS[kind], []
    ids = tokenizer.encode(unit * 400, add_special_tokens=False)
    detokenizer = Detokenizer(tokenizer)
    decode = detokenizer._decode
    monkeypatch.setattr(detokenizer, "_decode", lambda part: sizes.append(len(part)) or decode(part))
    for token_id in ids:
        detokenizer.push(token_id)
    assert max(sizes) <= 24
    assert len(sizes) <= (20 if unit == "\ufffd" else 3) * len(ids)


def test_malformed_bytes_do_not_make_the_window_grow():
    detokenizer = Detokenizer(BYTES)
    for _ in range(500):
        detokenizer.push(0xFF)
    assert len(detokenizer._window) <= 24


# stop strings


def reference_stop(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Read character by character; the first time a stop string is complete, cut there."""
    for end in range(1, len(text) + 1):
        met = [stop for stop in stops if text[:end].endswith(stop)]
        if met:
            stop = max(met, key=len)
            return (text[:end] if include else text[: end - len(stop)]), stop
    return text, None


@given(
    st.text("ab\u4f60 ", max_size=30),
    st.lists(st.text("ab\u4f60 ", min_size=1, max_size=5), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=500, deadline=None)
def test_stop_strings_cut_where_a_reader_of_characters_would(text, stops, include):
    expected = reference_stop(text, stops, include)
    for kind in ("byte_tokenizer", "byte_level_bpe"):
        ids = KINDS[kind].encode(text, add_special_tokens=False)
        detokenizer = Detokenizer(KINDS[kind], stop=stops, include_stop=include)
        assert "".join(pieces_of(detokenizer, ids)) == expected[0]
        assert (detokenizer.text, detokenizer.stop_hit) == expected


@given(
    st.text("ab\u4f60", max_size=30),
    st.lists(st.text("ab\u4f60", min_size=1, max_size=5), min_size=1, max_size=3),
)
@settings(max_examples=300, deadline=None)
def test_only_what_may_become_a_stop_string_is_held_back(text, stops):
    detokenizer = Detokenizer(BYTES, stop=stops)
    for i, character in enumerate(text, start=1):
        for byte in character.encode():
            detokenizer.push(byte)
        if detokenizer.stop_hit is not None:
            return
        held = text[len(detokenizer.text) : i]
        assert held == "" or any(stop.startswith(held) for stop in stops)
        assert not any(text[j:i] == s[: i - j] for s in stops for j in range(len(detokenizer.text)) if i - j < len(s))


def test_stop_string_across_tokens_is_held_then_cut():
    detokenizer = Detokenizer(BYTES, stop=["</end>"])
    assert [detokenizer.push(byte) for byte in b"hi</e"] == ["h", "i", "", "", ""]
    assert [detokenizer.push(byte) for byte in b"nd>more"] == [""] * 7
    assert (detokenizer.text, detokenizer.stop_hit, detokenizer.finish()) == ("hi", "</end>", "")


def test_held_back_text_is_released_when_the_stop_does_not_come():
    detokenizer = Detokenizer(BYTES, stop=["</end>"])
    assert [detokenizer.push(byte) for byte in b"</ex"] == ["", "", "", "</ex"]
    assert [detokenizer.push(byte) for byte in b"<"] + [detokenizer.finish()] == ["", "<"]


def test_stop_strings_are_ignored_while_min_tokens_says_so():
    detokenizer = Detokenizer(BYTES, stop=["ab"])
    assert [detokenizer.push(byte, check_stop=False) for byte in b"aba"] == ["a", "b", "a"]
    assert [detokenizer.push(byte) for byte in b"bab"] == ["b", "", ""]
    assert (detokenizer.text, detokenizer.stop_hit) == ("abab", "ab")


def test_stop_string_that_the_flush_completes_still_counts():
    detokenizer = Detokenizer(BYTES, stop=["\ufffd"])
    detokenizer.push(97)
    assert detokenizer.push(0xE4, final=True) == ""
    assert (detokenizer.text, detokenizer.stop_hit) == ("a", "\ufffd")


def test_clean_up_of_spaces_is_off_because_it_would_take_text_back():
    tokenizer = metaspace_unigram()
    tokenizer.clean_up_tokenization_spaces = True
    ids = tokenizer.encode("Hello , world !", add_special_tokens=False)
    assert whole(tokenizer, ids) == "Hello, world!"
    assert "".join(pieces_of(Detokenizer(tokenizer), ids)) == "Hello , world !"
