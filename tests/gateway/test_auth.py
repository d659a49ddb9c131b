from __future__ import annotations

import warnings

import pytest
from scripted_backend import ScriptedBackend, client_of, gateway_of, message_body, recorded

from llmlab.errors import InvalidParameter
from llmlab.gateway.auth import KeyRing
from llmlab.trace.events import Stage, WireEvent


@pytest.fixture
def keys_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# teachers\nsecret-a alice priority\n\nsecret-b bob\nsecret-c\n")
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "headers",
    [{"authorization": "Bearer secret-a"}, {"x-api-key": "secret-a"}, {"authorization": "bearer  secret-a"}],
)
def test_either_header_carries_the_key(keys_file, headers):
    identity = KeyRing.load(keys_file).identify(headers)
    assert (identity.name, identity.tier) == ("alice", "priority")


@pytest.mark.parametrize("key", ["", "secret", "secret-aa", "SECRET-A", "café", "# teachers"])
async def test_other_keys_are_refused_in_the_protocol_envelope(keys_file, key):
    async with client_of(gateway_of(keys_file=keys_file)) as client:
        response = await client.post("/v1/messages", json=message_body(), headers={"x-api-key": key.encode()})
        chat = await client.post("/v1/chat/completions", json={}, headers={"authorization": b"Bearer " + key.encode()})
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "authentication_error"
    assert response.json()["request_id"] == response.headers["request-id"]
    assert (chat.status_code, chat.json()["error"]["type"]) == (401, "authentication_error")


def test_names_and_tiers_have_defaults_and_keys_have_different_salts(keys_file):
    ring = KeyRing.load(keys_file)
    alice, bob, third = (ring.identify({"x-api-key": f"secret-{letter}"}) for letter in "abc")
    assert (bob.tier, third.name, third.tier) == ("standard", "key-5", "standard")
    assert len({alice.salt, bob.salt, third.salt, ""}) == 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no key"),
        ("# only this\n", "no key"),
        ("a b gold\n", "line 1"),
        ("a\na\n", "already"),
        ("a b batch x", "line 1"),
    ],
)
def test_a_keys_file_that_makes_no_sense_is_refused_by_line(tmp_path, text, message):
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(InvalidParameter, match=message):
        KeyRing.load(path)


def test_a_missing_keys_file_is_named(tmp_path):
    with pytest.raises(InvalidParameter, match="nowhere"):
        KeyRing.load(tmp_path / "nowhere")


def test_a_readable_keys_file_warns_and_a_private_one_does_not(keys_file):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KeyRing.load(keys_file)
    keys_file.chmod(0o644)
    with pytest.warns(UserWarning, match="chmod 600"):
        KeyRing.load(keys_file)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "[::1"},
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/models", "/metrics", "/nowhere"])
async def test_a_web_page_cannot_use_a_server_without_keys(headers, path):
    backend = ScriptedBackend()
    async with client_of(gateway_of(backend)) as client:
        response = await client.post(path, json=message_body(), headers=headers)
    assert response.status_code == 403
    assert not backend.calls


@pytest.mark.parametrize(
    "headers",
    [{"host": "localhost:8000"}, {"host": "[::1]:8000"}, {"host": "127.0.0.1:1", "origin": "http://localhost:8888"}],
)
async def test_this_machine_under_its_own_names_is_let_in(headers):
    async with client_of(gateway_of()) as client:
        assert (await client.post("/v1/messages", json=message_body(), headers=headers)).status_code == 200


async def test_credentials_never_reach_the_trace(keys_file):
    gateway = gateway_of(keys_file=keys_file)
    secrets = {"authorization": "Bearer secret-a", "x-api-key": "secret-b", "cookie": "session=secret-c"}
    async with client_of(gateway) as client:
        await client.post("/v1/messages?key=secret-a", json=message_body(), headers=secrets)
    text = repr(gateway.recorder.snapshot())
    assert recorded(gateway, WireEvent)
    assert "secret-" not in text
    assert "[removed]" in text


async def test_the_tier_of_the_key_becomes_priority_and_salt(keys_file):
    backend = ScriptedBackend()
    gateway = gateway_of(backend, keys_file=keys_file)
    async with client_of(gateway) as client:
        for key in ("secret-a", "secret-b"):
            await client.post("/v1/messages", json=message_body(), headers={"x-api-key": key})
    assert [call.priority for call in backend.calls] == [-10, 0]
    assert backend.calls[0].salt != backend.calls[1].salt
    admitted = [stage for stage in recorded(gateway, Stage) if stage.name == "admit"]
    assert [stage.details["tier"] for stage in admitted] == ["priority", "standard"]
