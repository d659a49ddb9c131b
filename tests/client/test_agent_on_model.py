"""The agent loop on the default model: small as it is, it calls tools when it is made to."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

import llmlab
from llmlab.client.agent import Agent
from llmlab.client.assemble import Options
from llmlab.client.compaction import CompactionPolicy
from llmlab.client.entry import user
from llmlab.client.output_limit import OutputLimit
from llmlab.client.tool import LocalTool

pytestmark = pytest.mark.model

FACTS = {"weather": "12 degrees and rain", "population": "2 million", "local_time": "14:05"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def tools() -> list[LocalTool]:
    def tool(name: str, fact: str) -> LocalTool:
        return LocalTool(name, f"The {name} of a city.", SCHEMA, lambda city: f"{city}: {fact}")

    return [tool(name, fact) for name, fact in FACTS.items()]


@pytest.fixture(scope="module")
def lab(model_path):
    with llmlab.open(model_path, dtype="float32", device="cpu") as lab:
        yield lab


def agent(lab, **more) -> Agent:
    forced = [{"type": "tool", "name": name, "disable_parallel_tool_use": True} for name in FACTS]
    return Agent(
        lab.client(),
        model=lab.model,
        system="You are a helpful assistant.",
        tools=tools(),
        options=Options(temperature=0.0, tool_choice={"type": "none"}),
        tool_choices=more.pop("tool_choices", forced),
        limit=OutputLimit(48, 48),
        **more,
    )


def test_the_cache_carries_more_of_every_turn(lab):
    result = agent(lab).run("What are the weather, the population and the local time of Paris?")
    turns = result.turns
    assert [turn.tools for turn in turns] == [*((name,) for name in FACTS), ()]
    assert [turn.stop_reason for turn in turns[:-1]] == ["tool_use"] * 3
    served = lab.trace.requests.tail(len(turns))
    marked = [0, *(turn.cache_read + turn.cache_write for turn in turns[:-1])]
    reads = [turn.cache_read for turn in turns]
    assert reads == [min(pair) for pair in zip(marked, served.num_cached_tokens, strict=True)]
    assert all(one < other for one, other in pairwise(reads))
    assert [turn.prompt for turn in turns] == list(served.num_prompt_tokens)


def test_a_forced_tool_runs_and_the_loop_ends_in_seconds_with_the_defaults(lab, tmp_path):
    (tmp_path / "notes.txt").write_text("Buy bread.")
    started = time.monotonic()
    it = Agent(lab.client(), model=lab.model, root=tmp_path, tool_choices=[{"type": "tool", "name": "list_folder"}])
    result = it.run("Which files are here?")
    assert result.turns[0].tools == ("list_folder",)
    results = [block for entry in it.transcript.entries for block in entry.content if block["type"] == "tool_result"]
    assert len(results) >= 1
    assert "incomplete" not in results[0]["content"], "the call was whole, so the tool was run"
    assert it.limit.max_tokens == (lab.engine.capacity.max_model_len - 1) // 8
    assert time.monotonic() - started < 60


def test_a_full_window_is_summarised_by_the_model_itself(lab):
    size = lab.client().count_tokens(agent(lab, tool_choices=()).assemble([user("Say hello.")]).request)
    window = size + 48 + 1  # room for the first prompt and its answer, but for no further prompt
    it = agent(lab, tool_choices=(), compaction=CompactionPolicy(window, threshold=1.0))
    kinds = [turn.kind for prompt in ("Say hello.", "Say it again.") for turn in it.run(prompt).turns]
    assert kinds == ["turn", "compaction", "turn"]
    assert [entry.kind for entry in it.transcript.entries] == ["user", "assistant", "user", "compaction", "assistant"]


def test_every_exchange_of_the_lab_is_one_consistent_tree(lab):
    agent(lab, tool_choices=()).run("Hello!")
    trace = lab.trace
    spans = trace.spans[trace.spans.wire_id.isin(trace.exchanges.wire_id[trace.exchanges.path == "/v1/messages"])]
    for root in spans[spans.name == "exchange"].itertuples():
        leaves = trace.leaves(root.wire_id)
        assert leaves.duration_ms.sum() == pytest.approx(root.duration_ms)
        assert leaves.sort_values("start_s").name.iloc[0] == "assemble"
