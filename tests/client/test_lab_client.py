"""A lab's own client, and the tree of one exchange over client, gateway and engine."""

from __future__ import annotations

import time

import pytest
from scripted_server import HELLO, ScriptedServer, chunked, frames, refusal

import llmlab
from llmlab.client.agent import Agent
from llmlab.client.client import Client
from llmlab.client.output_limit import OutputLimit
from llmlab.client.retry import CLI_STYLE, INTERACTIVE, SDK_STYLE, RetryPolicy
from llmlab.client.stream_errors import ConnectionLost, ServerUnreachable
from llmlab.errors import InvalidParameter


@pytest.fixture
def lab():
    with llmlab.open("mock") as lab:
        yield lab


def body(**changes) -> dict:
    return {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]} | changes


def test_a_lab_has_a_client_without_further_ado(lab):
    message = lab.client().send(body())
    (row,) = lab.trace.exchanges.itertuples()
    assert (row.client_id, row.wire_id, row.outcome) == (message.client_request_id, message.request_id, "complete")
    assert row.request_ids


def test_clients_share_the_labs_server_unless_it_has_stopped_or_another_is_given(lab):
    one, two = lab.client(), lab.client()
    other = lab.serve()
    assert one.url == two.url != other.url == lab.client(other).url
    assert one.send(body()).text == lab.client(other).send(body()).text
    lab._own_server.close()
    three = lab.client()
    assert three.send(body()).is_complete


def test_the_clients_options_are_passed_on(lab):
    with pytest.raises(InvalidParameter, match="auth"):
        lab.client(auth="basic")
    assert lab.client(recorder=None).recorder is None


def test_closing_the_lab_closes_its_server(lab):
    client = lab.client()
    client.send(body())
    url = client.url
    lab.close()
    with pytest.raises(InvalidParameter, match="was closed"):
        client.send(body())
    with llmlab.connect(url) as other, pytest.raises(ServerUnreachable):
        other.send(body())


def test_connect_makes_a_client_of_any_server(lab):
    url = lab.client().url
    with llmlab.connect(f"{url}/v1", session_id="s") as client:
        assert client.send(body()).is_complete
    assert repr(client) == f"<Client of {url}>"
    with pytest.raises(InvalidParameter, match="url"):
        llmlab.connect("localhost:8000")


# -- an address at which nothing answers ---------------------------------------------------------------------


def nowhere() -> str:
    with ScriptedServer([]) as server:
        return server.url


def test_a_wrong_port_fails_within_seconds_and_says_what_to_look_at():
    begin = time.monotonic()
    with llmlab.connect(nowhere()) as client, pytest.raises(ServerUnreachable, match="is it running") as caught:
        client.send(body())
    assert (time.monotonic() - begin < 4, caught.value.attempts) == (True, 3)


def test_a_server_that_was_there_once_is_waited_for():
    waits: list[float] = []
    with ScriptedServer(chunked(frames(*HELLO))) as server:
        client = Client(server.url, sleep=waits.append, retries=RetryPolicy(max_retries=5))
        client.send(body())
    with client, pytest.raises(ConnectionLost):
        client.send(body())
    assert len(waits) == 5


def test_a_refusal_is_an_answer_too():
    waits: list[float] = []
    with (
        ScriptedServer(refusal(529, "overloaded_error")) as server,
        Client(server.url, sleep=waits.append, retries=RetryPolicy(max_retries=4)) as client,
        pytest.raises(Exception, match="529"),
    ):
        client.send(body())
    assert len(waits) == 4


@pytest.mark.parametrize(("policy", "retries"), [(INTERACTIVE, 2), (SDK_STYLE, 10), (CLI_STYLE, 10)])
def test_the_article_s_number_of_retries_is_there_by_name(policy, retries):
    waits: list[float] = []
    with Client(nowhere(), retries=policy, sleep=waits.append) as client, pytest.raises(ServerUnreachable):
        client.count_tokens(body())
    assert len(waits) == retries


def test_fewer_retries_than_that_stay_fewer():
    failure = ServerUnreachable("no")
    assert RetryPolicy(max_retries=1).limit_for(failure, was_reached=False) == 1
    assert RetryPolicy(max_retries=9).limit_for(failure, was_reached=True) == 9
    with pytest.raises(InvalidParameter, match="max_unreached"):
        RetryPolicy(max_unreached=-1)


# -- one tree ------------------------------------------------------------------------------------------------


def tree(trace, any_id):
    """Names of the leaves under an exchange in order of time, having checked that they tile its root."""
    spans = trace.spans[trace.spans.wire_id == any_id]
    (root,) = spans[spans.parent_id.isna()].itertuples()
    leaves = trace.leaves(any_id).sort_values("start_s")
    assert leaves.start_s.iloc[0] == root.start_s
    assert leaves.end_s.iloc[-1] == root.end_s
    assert leaves.duration_ms.sum() == pytest.approx(root.duration_ms)
    return list(leaves.name)


def test_assembling_is_the_first_leaf_of_the_exchange_it_was_for(lab):
    result = Agent(lab.client(), model="mock", limit=OutputLimit(12, 12)).run("hello")
    lab.close()
    trace = lab.trace
    names = tree(trace, result.message.request_id)
    order = [names.index(name) for name in ("assemble", "send", "decode", "forward", "streaming")]
    assert order[0] == 0
    assert order == sorted(order)
    assert trace.check() == []


def test_each_turn_of_an_agent_has_a_tree_of_its_own(lab):
    agent = Agent(lab.client(), model="mock", limit=OutputLimit(4, 4))
    ids = [agent.run(prompt).message.request_id for prompt in ("a", "b")]
    lab.close()
    assert [tree(lab.trace, wire_id)[0] for wire_id in ids] == ["assemble", "assemble"]
    assert len(lab.trace.exchanges) == 2


def test_only_the_first_attempt_has_the_id_that_was_given(lab):
    server = lab.serve()
    server.faults.inject("status=529x1")
    message = lab.client(server, sleep=lambda s: None).send(body(), wire_id="mine")
    lab.close()
    stages = lab.trace.stages
    (retry,) = stages[stages.name == "retry"].itertuples()
    assert (retry.client_id, retry.details["next_id"]) == ("mine", message.client_request_id)
    assert message.client_request_id != "mine"
    assert lab.trace.check() == []


def test_an_id_that_cannot_be_a_header_is_refused(lab):
    with pytest.raises(InvalidParameter, match="wire_id"):
        lab.client().send(body(), wire_id="a\nb")


def test_a_tap_gets_every_byte_as_it_came(lab):
    found = bytearray()
    with lab.client().stream(body(), tap=found.extend) as exchange:
        for _ in exchange:
            pass
    lab.close()
    (row,) = lab.trace.exchanges.itertuples()
    assert (found.startswith(b"event: message_start\n"), len(found)) == (True, row.bytes_received)
