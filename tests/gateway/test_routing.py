from __future__ import annotations

from collections import Counter

import pytest
from scripted_backend import ScriptedBackend, chat_body, client_of, gateway_of, message_body, overloaded, recorded

from llmlab.api.conversation import Conversation, Text, Tool, Turn
from llmlab.api.errors import ApiError
from llmlab.errors import InvalidParameter
from llmlab.gateway.auth import Identity
from llmlab.gateway.priority import grant
from llmlab.gateway.routing import Router, prefix_key
from llmlab.gateway.settings import Settings
from llmlab.trace.events import Stage


class Unreachable(ScriptedBackend):
    """Does not even tell its models."""

    async def models(self):
        raise ApiError("api_error", "connection refused")


def conversation(text: str = "hello", model: str = "tiny", **fields) -> Conversation:
    return Conversation("anthropic", model, (Turn("user", (Text(text),)),), **fields)


def three(**options) -> list[ScriptedBackend]:
    return [ScriptedBackend(name, **options) for name in ("one", "two", "three")]


async def picks(router: Router, requests) -> list[str]:
    return [(await router.pick(request)).backend.name for request in requests]


async def test_round_robin_takes_turns():
    router = Router(three(), Settings(routing="round_robin"))
    assert await picks(router, [conversation()] * 5) == ["one", "two", "three", "one", "two"]


async def test_least_loaded_takes_the_idlest():
    backends = three()
    for backend, load in zip(backends, (3, 1, 2), strict=True):
        backend.pretended_load = load
    choice = await Router(backends, Settings(routing="least_loaded")).pick(conversation())
    assert (choice.backend.name, choice.index, choice.reason) == ("two", 1, "least loaded")
    assert choice.details["loads"] == {"one": 3, "two": 1, "three": 2}


async def test_one_prefix_stays_with_one_backend_and_prefixes_spread():
    router = Router(three(), Settings(routing="prefix_affine"))
    assert len(set(await picks(router, [conversation("same")] * 10))) == 1
    spread = Counter(await picks(router, [conversation(f"prompt {number}") for number in range(300)]))
    assert min(spread.values()) > 60


async def test_a_backend_that_goes_away_moves_only_its_own_prefixes():
    backends, requests = three(), [conversation(f"prompt {number}") for number in range(60)]
    settings = Settings(routing="prefix_affine")
    before = await picks(Router(backends, settings), requests)
    after = await picks(Router(backends[:2], settings), requests)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != "three")


async def test_an_overloaded_backend_loses_its_prefixes_to_the_idlest():
    backends = three()
    router = Router(backends, Settings(routing="prefix_affine"))
    home = (await router.pick(conversation())).backend
    home.pretended_load = 10
    choice = await router.pick(conversation())
    assert choice.backend is not home
    assert "overloaded" in choice.reason


def test_what_requests_with_a_common_beginning_share_is_their_prefix_key():
    long = "s" * 3000
    tool = Tool("search")
    assert prefix_key(conversation("x", system=(Text(long),)), "") == prefix_key(
        conversation("y", system=(Text(long),)), ""
    )
    assert prefix_key(conversation("x"), "") != prefix_key(conversation("y"), "")
    assert prefix_key(conversation("x", tools=(tool,)), "") != prefix_key(conversation("x"), "")
    assert prefix_key(conversation("x", cache_key="k"), "") == prefix_key(conversation("y", cache_key="k"), "")
    assert prefix_key(conversation("x"), "salt") != prefix_key(conversation("x"), "")
    assert prefix_key(conversation("\ud800"), "")


async def test_a_model_is_served_only_where_it_is():
    backends = [ScriptedBackend("a", model_names=["small"]), ScriptedBackend("b", model_names=["large"])]
    router = Router(backends, Settings())
    assert await picks(router, [conversation(model=name) for name in ("large", "small")]) == ["b", "a"]


async def test_an_unknown_model_gets_the_first_one_or_404():
    lenient = await Router(three(), Settings()).pick(conversation(model="claude-opus"))
    assert (lenient.model, lenient.backend.name) == ("tiny", "one")
    assert lenient.reason.startswith("unknown model 'claude-opus', served by tiny; ")
    with pytest.raises(ApiError, match="Available: tiny") as caught:
        await Router(three(), Settings(fallback_model=False)).pick(conversation(model="claude-opus"))
    assert caught.value.status == 404


async def test_the_response_names_the_model_that_really_answered():
    async with client_of(gateway_of()) as client:
        message = await client.post("/v1/messages", json=message_body(model="claude-opus"))
        chat = await client.post("/v1/chat/completions", json=chat_body(model="gpt-9"))
    assert (message.json()["model"], chat.json()["model"]) == ("tiny", "tiny")
    assert (message.headers["llmlab-model"], message.headers["llmlab-backend"]) == ("tiny", "scripted")
    assert message.headers["llmlab-requested-model"] == "claude-opus"


async def test_a_backend_that_cannot_be_reached_is_left_out():
    router = Router([Unreachable("down"), ScriptedBackend("up")], Settings())
    assert (await router.pick(conversation())).backend.name == "up"
    with pytest.raises(ApiError, match="down: connection refused") as caught:
        await Router([Unreachable("down")], Settings()).pick(conversation())
    assert caught.value.status == 503


def test_backends_need_different_names():
    with pytest.raises(InvalidParameter, match="different names"):
        gateway_of(ScriptedBackend(), ScriptedBackend())


async def test_more_than_max_open_is_529_and_the_place_comes_back():
    gateway = gateway_of(max_open=1)
    with gateway.admission.slot():
        async with client_of(gateway) as client:
            response = await client.post("/v1/messages", json=message_body())
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")
    assert response.headers["retry-after"] == "1"
    assert response.headers["x-should-retry"] == "true"
    async with client_of(gateway) as client:
        for _ in range(3):
            assert (await client.post("/v1/messages", json=message_body())).status_code == 200
    assert gateway.admission.open == 0


async def test_a_refusal_by_the_backend_gives_the_place_back_too():
    gateway = gateway_of(ScriptedBackend(open_script=[overloaded()]), max_open=1)
    async with client_of(gateway) as client:
        for _ in range(2):
            response = await client.post("/v1/messages", json=message_body(stream=True))
            assert (response.status_code, response.headers["retry-after"]) == (529, "2")


@pytest.mark.parametrize(
    ("allowed", "asked", "tier", "priority"),
    [
        ("standard", "auto", "standard", 0),
        ("priority", "auto", "priority", -10),
        ("priority", "standard_only", "standard", 0),
        ("priority", "default", "standard", 0),
        ("standard", "priority", "standard", 0),
        ("standard", "flex", "batch", 10),
        ("batch", "auto", "batch", 10),
        ("batch", "priority", "batch", 10),
        ("batch", "default", "batch", 10),
    ],
)
def test_a_request_gets_at_most_the_tier_of_its_key(allowed, asked, tier, priority):
    granted = grant(Identity("x", allowed), conversation(service_tier=asked))
    assert (granted.tier, granted.priority) == (tier, priority)


async def test_the_tier_is_echoed_as_given_not_as_asked():
    backend = ScriptedBackend()
    async with client_of(gateway_of(backend)) as client:
        message = await client.post("/v1/messages", json=message_body(speed="fast", inference_geo="us"))
        flex = await client.post("/v1/chat/completions", json=chat_body(service_tier="flex"))
        best = await client.post("/v1/chat/completions", json=chat_body(service_tier="priority"))
    usage = message.json()["usage"]
    assert (usage["service_tier"], usage["speed"], usage["inference_geo"]) == ("standard", "standard", "not_available")
    assert (flex.json()["service_tier"], best.json()["service_tier"]) == ("flex", "default")
    assert [call.priority for call in backend.calls] == [0, 10, 0]


async def test_every_decision_is_recorded_with_its_reason():
    gateway = gateway_of(*three(), routing="round_robin", requests_per_minute=9)
    async with client_of(gateway) as client:
        await client.post("/v1/messages", json=message_body(model="x", stream=True))
    stages = {stage.name: stage for stage in recorded(gateway, Stage)}
    assert list(stages) == ["authenticate", "read body", "decode", "rate limit", "route", "admit", "open", "stream"]
    assert all(stage.outcome == "ok" and stage.reason and stage.end_ns >= stage.t_ns for stage in stages.values())
    assert stages["route"].details["backend"] == "one"
    assert stages["rate limit"].details == {"requests": 8}
    assert stages["stream"].details["output_tokens"] == 2
