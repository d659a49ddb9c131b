"""One trace over a real client, a real gateway and a real engine."""

from __future__ import annotations

import time

import httpx2
import pytest

import llmlab
from llmlab.client.client import Client
from llmlab.client.stream_errors import ClientError
from llmlab.trace import Trace

HELLO = {"model": "mock", "max_tokens": 12, "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture(scope="module")
def trace() -> Trace:
    lab = llmlab.open("mock")
    with lab.serve() as server, Client(server.url, recorder=lab.engine.recorder) as client:
        client.send(HELLO)
        client.count_tokens(HELLO)
        with pytest.raises(ClientError):
            client.send({**HELLO, "surprise": 1})
        with client.stream({**HELLO, "max_tokens": 2000}) as exchange:
            next(iter(exchange))
        httpx2.post(f"{server.url}/v1/chat/completions", json={**HELLO, "n": 2}).raise_for_status()
    wait_for_all_ends(lab)
    yield lab.trace
    lab.close()


def wait_for_all_ends(lab) -> None:
    deadline = time.monotonic() + 20
    while lab.trace.exchanges.outcome.isna().any() or lab.trace.requests.finished_s.isna().any():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_every_exchange_is_joined_with_its_client_and_its_requests(trace):
    table = trace.exchanges
    assert table.outcome.tolist() == ["complete", "complete", "error", "disconnected", "complete"]
    assert table.status.tolist() == [200, 200, 400, 200, 200]
    assert table.stream.tolist() == [True, False, False, True, False]
    assert table.client_id.notna().tolist() == [True, True, True, True, False]
    assert [len(ids) for ids in table.request_ids] == [1, 0, 0, 1, 2]


def test_what_the_two_sides_and_the_engine_recorded_agrees(trace):
    assert trace.check() == []
    for wire_id in trace.exchanges.wire_id:
        assert trace.for_request(wire_id).check() == []


def test_the_clients_deltas_are_the_engines_text(trace):
    row = trace.exchanges.iloc[0]
    deltas = trace.wire[(trace.wire.wire_id == row.wire_id) & (trace.wire.kind == "delta")]
    texts = [event.text for event in trace._index.texts if event.request_id == row.request_ids[0]]
    assert "".join(deltas.text) == "".join(texts) != ""


def test_the_clients_first_token_comes_after_the_engines(trace):
    row = trace.exchanges.iloc[0]
    request = trace.requests.set_index("request_id").loc[row.request_ids[0]]
    assert row.sent_s < request.submitted_s < request.first_token_s < row.first_delta_s < row.end_s
    assert row.ttft_ms > request.ttft_ms


def test_leaves_tile_every_exchange_from_the_first_byte_to_the_last(trace):
    roots = trace.spans[trace.spans.name == "exchange"].set_index("wire_id")
    assert len(roots) == len(trace.exchanges)
    for wire_id, root in roots.iterrows():
        leaves = trace.leaves(wire_id)
        assert (leaves.start_s.iloc[0], leaves.end_s.iloc[-1]) == (root.start_s, root.end_s)
        assert leaves.duration_ms.sum() == pytest.approx(root.duration_ms, abs=1e-6)


def test_the_stages_of_a_request_in_order(trace):
    first = trace.spans[(trace.spans.wire_id == trace.exchanges.wire_id[0]) & (trace.spans.depth == 1)]
    names = [name for name in first.name if name not in ("between stages", "network and waiting")]
    expected = ["send", "authenticate", "read body", "decode", "route", "admit", "request", "streaming"]
    assert [name for name in names if name in expected] == expected


def test_it_loads_from_a_file_as_it_was(trace, tmp_path):
    loaded = Trace.load(trace.save(tmp_path / "live.gz"))
    assert loaded.events == trace.events
    assert loaded.exchanges.equals(trace.exchanges)
