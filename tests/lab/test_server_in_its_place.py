"""LLMLAB_UPSTREAM: another server in the place of a lab's engine, behind the same calls."""

from __future__ import annotations

import pytest

import llmlab
from llmlab.errors import InvalidParameter
from llmlab.gateway.stand_in import UPSTREAM, UPSTREAM_KEY, stand_in
from llmlab.trace.recorder import Recorder

BODY = {"model": "smollm2-135m", "max_tokens": 5, "messages": [{"role": "user", "content": "Hello."}]}


@pytest.fixture
def lab():
    """A lab that says that its model has weights."""
    with llmlab.open("mock", num_blocks=64) as found:
        found.loaded = object()
        yield found


@pytest.fixture
def other(monkeypatch):
    """Another lab, whose server the variable names."""
    with llmlab.open("mock", num_blocks=64) as found:
        monkeypatch.setenv(UPSTREAM, found.serve(drain_s=0).url)
        yield found


def test_the_other_server_answers_and_the_engine_sees_nothing(lab, other):
    message = lab.client().send(BODY)
    assert message.usage["output_tokens"] == 5
    assert lab.trace.requests.empty
    assert len(other.trace.requests) == 1
    (stage,) = lab.trace.stages.query("name == 'upstream'").itertuples()
    assert stage.outcome == "ok"


def test_submitting_still_runs_on_the_engine(lab, other):
    assert len(lab.ask("hello", max_tokens=3).token_ids) == 3
    assert other.trace.requests.empty


def test_the_stand_in_without_weights_serves_itself(other):
    with llmlab.open("mock", num_blocks=64) as mock:
        mock.client().send(BODY)
        assert len(mock.trace.requests) == 1
    assert other.trace.requests.empty


def test_the_key_comes_from_the_environment_and_an_address_is_checked(monkeypatch):
    monkeypatch.setenv(UPSTREAM, "http://127.0.0.1:9")
    monkeypatch.setenv(UPSTREAM_KEY, "a-key")
    assert stand_in(Recorder())._http.secret == "a-key"
    monkeypatch.setenv(UPSTREAM, "nowhere")
    with pytest.raises(InvalidParameter, match="http"):
        stand_in(Recorder())
    monkeypatch.setenv(UPSTREAM, " ")
    assert stand_in(Recorder()) is None
