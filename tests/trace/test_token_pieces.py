from __future__ import annotations

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
from synthetic import make_info
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import llmlab
from llmlab.errors import TraceFormatError
from llmlab.models.token_bytes import TokenPieces
from llmlab.trace import Trace, store
from llmlab.trace.events import Captured, DraftRound, PromptLogprobs, RequestFinished, RequestSubmitted, Token
from llmlab.trace.pieces import mentioned


@pytest.fixture(scope="module")
def trace():
    with llmlab.open("mock", background=False) as lab:
        runs = [lab.submit(f"Ein Märchen über 🙂 number {n}?", max_tokens=60, logprobs=3) for n in range(8)]
        for run in runs:
            run.wait()
        return lab.trace


def test_a_live_trace_knows_every_token_even_those_it_does_not_mention(trace):
    assert [trace.piece(i) for i in (0xF0, 65, 257)] == [b"\xf0", b"A", b"<eos>"]
    assert trace.piece(258) is None
    assert trace.piece(-1) is None


def test_the_prompt_is_its_pieces_live_saved_and_cut(trace, tmp_path):
    loaded = Trace.load(trace.save(tmp_path / "run.gz"))
    part = loaded.for_request(trace.index.request_ids[3])
    again = Trace.load(part.save(tmp_path / "part.gz"))
    for known in (trace, loaded, part, again):
        submitted = known.index.submitted[trace.index.request_ids[3]]
        text = b"".join(known.piece(i) for i in submitted.prompt_token_ids).decode()
        assert text.removeprefix("<bos>") == submitted.prompt


def test_a_file_holds_the_tokens_it_mentions_and_no_other(trace, tmp_path):
    loaded = Trace.load(trace.save(tmp_path / "run.gz"))
    tops = {i for event in loaded.index.tokens for i in (event.token_id, *(j for j, _ in event.top))}
    prompts = {i for event in loaded.index.submitted.values() for i in event.prompt_token_ids}
    assert set(loaded.pieces) == tops | prompts
    assert len(loaded.pieces) < 257


def test_eight_requests_stay_small(trace, tmp_path):
    assert trace.save(tmp_path / "run.gz").stat().st_size < 150_000


def test_equal_traces_give_equal_bytes(trace, tmp_path):
    assert trace.save(tmp_path / "a").read_bytes() == trace.save(tmp_path / "b").read_bytes()


def test_ids_are_found_in_every_event_that_has_them():
    lens = Captured(1, 0, "r", "r/lens", "lens_top", -1, ("position", "rank"), (1, 2), "int32", 8, (0,))
    targets = Captured(1, 0, "r", "r/rank", "lens_rank", -1, ("position", "target"), (1, 1), "int32", 4, (0,), (30,))
    events = [
        RequestSubmitted(1, "r", None, 0, None, (1, 2), {}),
        Token(1, 0, "r", 2, 3, -0.1, "target", ((4, -0.1), (5, -3.0))),
        PromptLogprobs(1, 0, "r", 1, (-0.5,), (((6, -0.5),),)),
        DraftRound(
            1, 0, "r", "ngram", "exact", 0, 2, 3, (7, 8), (1.0,) * 2, (1.0,) * 2, (0.1,) * 2, 2, "held", -1, *[1] * 3
        ),
        RequestFinished(1, 0, "r", "stop_token", 9, {}),
        lens,
        targets,
    ]
    pieces = dict.fromkeys(range(100), b"x")
    assert list(mentioned(events, {}, pieces)) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 30]
    assert list(mentioned([lens], {"r/lens": np.array([[40, 41]], np.int32)}, pieces)) == [40, 41]


def test_an_older_file_loads_without_pieces(tmp_path):
    path = store.save(tmp_path / "old", [make_info(0, 4, 4, 4)])
    assert b"pieces" not in gzip.decompress(path.read_bytes())
    assert Trace.load(path).piece(65) is None


def test_a_trace_without_torch_gives_the_same_pieces(trace, tmp_path):
    path = trace.save(tmp_path / "run.gz")
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from llmlab.trace import Trace; print(Trace.load(sys.argv[1]).piece(0xF0))"
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
    assert done.stdout == "b'\\xf0'\n", done.stderr


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([], "must be an object"),
        ("x", "must be an object"),
        ({"-1": "a"}, "'-1' is no token id"),
        ({"1.5": "a"}, "no token id"),
        ({"": "a"}, "no token id"),
        ({"٣": "a"}, "no token id"),
        ({"9" * 5000: "a"}, "no token id"),
        ({"1": 5}, "token 1 has no bytes"),
        ({"1": None}, "token 1 has no bytes"),
        ({"1": "€"}, "token 1 has no bytes"),
        ({"1": "\ud800"}, "token 1 has no bytes"),
    ],
)
def test_a_file_with_wrong_pieces_is_refused(tmp_path, pieces, message):
    path = tmp_path / "bad"
    path.write_bytes(gzip.compress(json.dumps({"format": "llmlab-trace", "version": 1, "pieces": pieces}).encode()))
    with pytest.raises(TraceFormatError, match=message):
        Trace.load(path)


# -- tokenizers ---------------------------------------------------------------------------------------------


def fast(vocab: list[str], decoder: decoders.Decoder) -> PreTrainedTokenizerFast:
    inner = Tokenizer(models.BPE({name: i for i, name in enumerate(vocab)}, []))
    inner.decoder = decoder
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")


def test_byte_level_tokens_are_their_bytes_and_special_ones_their_names():
    pieces = TokenPieces(fast(["Ġthe", "ð", "Ċ", "<|end|>"], decoders.ByteLevel()))
    assert dict(pieces) == {0: b" the", 1: b"\xf0", 2: b"\n", 3: b"<|end|>"}
    assert pieces.get(77) is None


def test_sentencepiece_tokens_keep_the_space_that_decoding_removes():
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces = TokenPieces(fast(["▁the", "ing", "<0xF0>", "<|end|>"], decoders.Sequence(steps)))
    assert dict(pieces) == {0: b" the", 1: b"ing", 2: b"\xf0", 3: b"<|end|>"}


def test_a_tokenizer_that_fails_leaves_the_token_unknown_and_the_trace_savable(tmp_path):
    class Broken:
        def convert_ids_to_tokens(self, token_id):
            raise RuntimeError("broken")

    trace = Trace([RequestSubmitted(1, "r", None, 0, None, (1, 2), {})], pieces=TokenPieces(Broken()))
    assert trace.piece(1) is None
    assert Trace.load(trace.save(tmp_path / "t")).pieces == {}
