"""What a prompt may be, and what is said about everything else."""

from __future__ import annotations

import pytest

import llmlab
from llmlab.errors import EmptyPrompt, InvalidParameter


@pytest.fixture
def lab():
    with llmlab.open("mock", background=False) as lab:
        yield lab
        assert lab.ask("next", max_tokens=2).stop_reason == "length", "the next request runs"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (None, "text, a list of messages"),
        (5, "text, a list of messages"),
        (b"hi", "type bytes"),
        ({"role": "user", "content": "hi"}, "put it into a list"),
        ([{"role": "user"}], "'role' and 'content'"),
        (["hi"], "'role' and 'content'"),
        ([{"role": "user", "content": None}], "must be text"),
        ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], "must be text"),
    ],
)
def test_a_prompt_of_another_shape_is_refused(lab, prompt, message):
    with pytest.raises(InvalidParameter, match=message):
        lab.submit(prompt)


@pytest.mark.parametrize("prompt", ["", []])
def test_an_empty_prompt_is_refused(lab, prompt):
    with pytest.raises(EmptyPrompt):
        lab.submit(prompt)


@pytest.mark.parametrize("prompt", ["hi", [104, 105], (104, 105), [{"role": "user", "content": "hi"}]])
def test_text_ids_and_messages_are_taken(lab, prompt):
    run = lab.ask(prompt, max_tokens=3)
    assert len(run.token_ids) == 3
    assert run.trace.check() == []
