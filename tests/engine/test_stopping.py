"""Every way in which an output can end."""

from __future__ import annotations

import pytest
from mock_serving import EOS, assert_all_returned, continuation, greedy, mock_engine, prompt

from llmlab.engine.params import SamplingParams

TOKENS = continuation(prompt(5), 12)
TEXT = bytes(TOKENS).decode()


def ask(engine=None, **params):
    engine = engine or mock_engine()
    run = engine.submit(prompt(5), SamplingParams(**{"max_tokens": 12} | params)).wait()
    assert_all_returned(engine)
    return run


def ending_with_eos(every: int = 4) -> tuple[list[int], list[int]]:
    """A prompt whose continuation ends with EOS after a few tokens, and that continuation."""
    for start in range(50):
        output = continuation(prompt(5, start), 30, every)
        if output[-1] == EOS and 3 <= len(output) <= 12:
            return prompt(5, start), output
    raise AssertionError("no prompt of this family ends with EOS")


def test_max_tokens():
    run = ask(max_tokens=5)
    assert (run.token_ids, run.stop_reason, run.outputs[0].stop_sequence) == (TOKENS[:5], "length", None)
    assert run.text == TEXT[:5]


def test_eos_ends_the_output_and_is_a_token_without_text():
    tokens, expected = ending_with_eos()
    engine = mock_engine(eos_every=4)
    run = engine.submit(tokens, greedy(30)).wait()
    assert (run.token_ids, run.stop_reason) == (expected, "eos")
    assert run.text == bytes(expected[:-1]).decode()
    assert run.usage["output_tokens"] == len(expected)
    assert_all_returned(engine)


def test_eos_as_the_last_allowed_token_is_eos_and_not_length():
    tokens, expected = ending_with_eos()
    run = mock_engine(eos_every=4).submit(tokens, greedy(len(expected))).wait()
    assert run.stop_reason == "eos"


@pytest.mark.parametrize("index", [2, 4])
def test_any_of_several_eos_ids_ends_the_output(index):
    engine = mock_engine(eos_token_ids=(EOS, TOKENS[4], TOKENS[2]))
    run = ask(engine, min_tokens=0) if index == 2 else ask(mock_engine(eos_token_ids=(EOS, TOKENS[4])))
    first = TOKENS.index(TOKENS[index])
    assert (run.token_ids, run.stop_reason) == (TOKENS[: first + 1], "eos")
    assert run.text == TEXT[:first]


def test_ignore_eos_goes_on_to_the_limit():
    engine = mock_engine(eos_token_ids=(TOKENS[2],))
    run = ask(engine, ignore_eos=True)
    assert (run.token_ids, run.stop_reason) == (TOKENS, "length")


def test_ignore_eos_does_not_ignore_stop_ids():
    engine = mock_engine(eos_token_ids=(TOKENS[2],))
    run = ask(engine, ignore_eos=True, stop_token_ids=(TOKENS[2],))
    assert (run.token_ids, run.stop_reason) == (TOKENS[:3], "stop_token")


def test_a_stop_id_ends_the_output_and_says_which():
    run = ask(stop_token_ids=(200, TOKENS[3]))
    assert (run.token_ids, run.stop_reason) == (TOKENS[:4], "stop_token")
    assert run.outputs[0].stop_sequence == TOKENS[3]
    assert run.text == TEXT[:3]


def test_include_stop_shows_a_stop_id():
    assert ask(stop_token_ids=(TOKENS[3],), include_stop=True).text == TEXT[:4]


def test_eos_goes_before_a_stop_id():
    run = ask(mock_engine(eos_token_ids=(TOKENS[3],)), stop_token_ids=(TOKENS[3],))
    assert (run.stop_reason, run.outputs[0].stop_sequence) == ("eos", None)


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_stop_string_is_found_across_tokens(length):
    stop = TEXT[4 : 4 + length]
    start = TEXT.index(stop)
    run = ask(stop=("never", stop))
    assert (run.stop_reason, run.outputs[0].stop_sequence) == ("stop_string", stop)
    assert run.text == TEXT[:start]
    assert run.token_ids == TOKENS[: start + length]


def test_include_stop_keeps_the_stop_string_and_nothing_after_it():
    assert ask(stop=(TEXT[4:6],), include_stop=True).text == TEXT[:6]


def test_text_that_begins_a_stop_string_is_held_back_and_comes_when_it_is_none():
    engine = mock_engine()
    almost = TEXT[3:5] + "\0"
    run = engine.submit(prompt(5), greedy(8, stop=almost))
    lengths = []
    while engine.step():
        lengths.append(len(run.text))
    assert lengths == [1, 2, 3, 3, 3, 6, 7, 8]
    assert run.text == TEXT[:8]


def test_what_is_held_back_is_flushed_at_the_end():
    run = ask(max_tokens=5, stop=(TEXT[3:5] + "\0",))
    assert (run.text, run.stop_reason) == (TEXT[:5], "length")


def test_what_is_held_back_is_flushed_by_an_abort():
    engine = mock_engine()
    run = engine.submit(prompt(5), greedy(12, stop=TEXT[3:5] + "\0"))
    for _ in range(5):
        engine.step()
    assert run.text == TEXT[:3]
    run.abort()
    assert run.wait().text == TEXT[:5]
    assert engine.trace.check() == []


def test_a_stop_string_as_the_last_allowed_token_is_a_stop_and_not_length():
    run = ask(max_tokens=5, stop=(TEXT[4],))
    assert run.stop_reason == ("stop_string" if TEXT.index(TEXT[4]) == 4 else run.stop_reason)
    assert TEXT.index(TEXT[4]) == 4


def test_min_tokens_forbids_eos_and_stop_ids_until_then():
    tokens, expected = ending_with_eos()
    engine = mock_engine(eos_every=4)
    run = engine.submit(tokens, greedy(30, min_tokens=len(expected) + 2)).wait()
    assert len(run.token_ids) >= len(expected) + 2
    assert EOS not in run.token_ids[: len(expected) + 2]
    stopped = ask(min_tokens=6, max_tokens=30, stop_token_ids=(TOKENS[1],))
    assert TOKENS[1] not in stopped.token_ids[:5]
    assert len(stopped.token_ids) >= 6


def test_min_tokens_ignores_stop_strings_until_then():
    run = ask(min_tokens=8, stop=(TEXT[3],))
    assert len(run.token_ids) >= 8
    assert run.text.startswith(TEXT[:8])


def test_min_tokens_equal_to_max_tokens_gives_exactly_that_many():
    tokens, expected = ending_with_eos()
    size = len(expected) + 3
    run = mock_engine(eos_every=4).submit(tokens, greedy(size, min_tokens=size)).wait()
    assert (len(run.token_ids), run.stop_reason) == (size, "length")


def test_open_output_ends_with_the_context():
    run = ask(mock_engine(max_model_len=20), max_tokens=None)
    assert (len(run.token_ids), run.stop_reason) == (15, "context")


def test_open_output_still_ends_with_eos():
    tokens, expected = ending_with_eos()
    run = mock_engine(eos_every=4).submit(tokens, greedy(None)).wait()
    assert (run.token_ids, run.stop_reason) == (expected, "eos")


def test_samples_of_a_group_end_each_for_itself():
    engine = mock_engine()
    params = SamplingParams(max_tokens=40, temperature=1.5, seed=3, n=4, stop_token_ids=tuple(range(97, 123)))
    run = engine.submit(prompt(5), params).wait()
    reasons = [output.stop_reason for output in run.outputs]
    lengths = {len(output.token_ids) for output in run.outputs}
    assert "stop_token" in reasons
    assert len(lengths) > 1
    for output in run.outputs:
        assert (output.token_ids[-1] in range(97, 123)) == (output.stop_reason == "stop_token")
    assert_all_returned(engine)
