"""The dashboard of a client: its half of every exchange, a form, and what the server's metrics say."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager

import pytest
from ipywidgets.widgets.widget import _instances

import llmlab
from llmlab.client.stream_errors import ServerUnreachable
from llmlab.errors import InvalidParameter
from llmlab.gateway.app import Gateway
from llmlab.gateway.server import Server
from llmlab.gateway.settings import Settings
from llmlab.gateway.upstream import upstream_backends
from llmlab.trace.readings import OUTPUT_TOKENS, Reading
from llmlab.trace.recorder import Recorder
from llmlab.views.server_metrics import MAX_READINGS
from llmlab.widgets import dashboard, request_panel
from llmlab.widgets.client_form import ClientForm
from llmlab.widgets.poller import Poller


@contextmanager
def gateway_before(url):
    """A gateway without an engine whose upstream speaks the Chat Completions API; its recorder is its own."""
    recorder = Recorder()
    server = Server(Gateway(upstream_backends([url], recorder), Settings.from_kwargs(port=0), recorder)).start()
    try:
        yield server.url
    finally:
        server.close()


@pytest.fixture(scope="module")
def gateway():
    with llmlab.open("mock") as lab, gateway_before(lab.serve().url) as url:
        yield url


@pytest.fixture
def board(gateway):
    with llmlab.connect(gateway) as client:
        made = dashboard(client)
        yield made
        made.close()


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def ask(board, prompt="hello", max_tokens=8):
    board.form.prompt.value, board.form.max_tokens.value = prompt, max_tokens
    board.form.send()
    board.form.worker.wait(30)
    assert not board.form.notice.state["error"], board.form.notice.state


def ended(board):
    board.desk.pump.flush()
    return [e for e in board.desk.feed.whole().index.wire if e.kind == "end" and e.side == "client"]


def test_a_client_gets_its_half_of_the_exchange_and_the_servers_metrics(board):
    names = [panel.name for panel in board.panels]
    assert names == ["server_metrics", "exchanges", "wire_view", "anatomy"]
    ask(board, max_tokens=7)
    assert until(lambda: len(ended(board)) == 2)  # of the request for a model's name, and of the request
    row = board["exchanges"].view.table().iloc[-1]
    assert (row["name"], row["status"], row["output_tokens"], row["outcome"]) == (
        "POST /v1/messages",
        200,
        7,
        "complete",
    )
    assert "recorded by client" in board["wire_view"].view.text
    assert "/v1/messages" in board["anatomy"].view.text


def test_the_answer_is_shown_as_the_client_received_it(board):
    ask(board, max_tokens=9)
    assert until(lambda: len(ended(board)) == 2)
    deltas = [e.text for e in board.desk.feed.whole().index.wire if e.kind == "delta" and e.name == "text"]
    assert list(board.form.stream.texts.values()) == ["".join(deltas)]
    assert "".join(deltas)


def test_the_metrics_are_read_again_and_count_what_was_sent(board):
    readings = board["server_metrics"].poller.readings
    before = until(lambda: board["server_metrics"].poller.readings)[-1].values.get(OUTPUT_TOKENS, 0)
    ask(board, max_tokens=6)
    until(lambda: len(ended(board)) == 2)
    poller = board["server_metrics"].poller
    assert until(lambda: poller.readings[-1].values.get(OUTPUT_TOKENS, 0) == before + 6)
    assert len(poller.readings) > len(readings)
    board.desk.pump.flush()
    assert board["server_metrics"].widget.status["error"] == ""
    assert "output tokens" in board["server_metrics"].view.text


def test_the_thread_that_asks_ends_with_the_panel_and_no_widget_is_left(gateway):
    before = len(_instances)
    with llmlab.connect(gateway) as client:
        board = dashboard(client)
        poller = board["server_metrics"].poller
        assert poller.is_running
        board.close()
        assert until(lambda: not poller.is_running)
        assert len(_instances) == before


def test_a_server_that_is_not_there_is_said_in_the_status_line():
    with llmlab.connect("http://127.0.0.1:9") as client:
        board = dashboard(client)
        assert until(lambda: board["server_metrics"].poller.error)
        board.desk.pump.flush()
        assert "cannot be reached" in board["server_metrics"].widget.status["error"]
        assert board["server_metrics"].view.title == "Server metrics: nothing to draw"
        board.close()


def test_a_server_that_cannot_be_asked_for_models_is_said_below_the_form(monkeypatch):
    with llmlab.connect("http://127.0.0.1:9") as client:
        board = dashboard(client)

        def models():
            raise ServerUnreachable("there is no server")

        monkeypatch.setattr(client, "models", models)
        board.form.send()
        board.form.worker.wait(30)
        assert board.form.notice.state == {"text": "there is no server", "error": True}
        board.close()


def test_a_client_without_a_recorder_records_from_the_dashboard_on(gateway):
    with llmlab.connect(gateway) as client:
        assert client.recorder is None
        board = dashboard(client)
        assert client.recorder is board.desk.owner
        again = dashboard(client)
        assert again.desk is board.desk
        again.close()


def test_a_client_of_a_lab_gets_all_panels_of_the_lab():
    with llmlab.open("mock", background=False) as lab, lab.client() as client:
        board = dashboard(client)
        assert {"block_map", "batch_lanes", "wire_view"} <= {panel.name for panel in board.panels}
        assert isinstance(board.form, ClientForm)
        board.close()


def test_a_request_panel_of_a_client_sends_through_it(gateway):
    with llmlab.connect(gateway) as client:
        form = request_panel(client)
        assert isinstance(form, ClientForm)
        form.close()


def test_a_form_needs_a_client():
    with pytest.raises(InvalidParameter, match=r"llmlab\.connect"):
        ClientForm(object())


# -- asking for metrics ---------------------------------------------------------------------------------------------


@pytest.fixture
def answers(monkeypatch):
    """What ``scrape`` gives, one after the other: readings, or errors it raises."""
    queue = []

    def scrape(url, timeout_s):
        found = queue.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    monkeypatch.setattr("llmlab.widgets.poller.scrape", scrape)
    return queue


def reading(number):
    return Reading(number + 1, "server", {})


def test_no_more_readings_are_kept_than_are_drawn(answers):
    poller = Poller("url")
    answers += [reading(i) for i in range(MAX_READINGS + 5)]
    for _ in range(MAX_READINGS + 5):
        poller.ask()
    assert len(poller.readings) == MAX_READINGS
    assert poller.readings[-1].t_ns == MAX_READINGS + 5


def test_an_error_is_told_once_and_goes_with_the_next_reading(answers):
    poller = Poller("url")
    answers += [ServerUnreachable("gone"), ServerUnreachable("gone"), reading(0)]
    versions = []
    for _ in range(3):
        poller.ask()
        versions.append((poller.version, poller.error))
    assert versions == [(1, "gone"), (1, "gone"), (2, "")]


def test_nobody_is_asked_while_nobody_looks(monkeypatch):
    asked = threading.Event()
    monkeypatch.setattr("llmlab.widgets.poller.scrape", lambda *a, **k: asked.set())
    poller = Poller("url", lambda: False, period_s=0.001)
    poller.start()
    assert not asked.wait(0.1)
    poller.stop()
    assert until(lambda: not poller.is_running)
