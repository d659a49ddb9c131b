# %% [markdown]
# # Close the loop: build an agent and count what it costs
#
# **Goal.** You run an agent on a real model and can say, request by request, who did what, what was sent again, and
# what of it was computed again.
#
# **Time.** 25 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU, no network.

# %%
import pandas as pd

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.client.agent import Agent
from llmlab.client.assemble import Options, SystemText
from llmlab.client.output_limit import OutputLimit
from llmlab.client.stream_errors import ClientError
from llmlab.client.tool import LocalTool
from llmlab.labs.excerpt import excerpt
from llmlab.widgets import dashboard

lab = llmlab.open(dtype="float32", num_blocks=192)
is_real = lab.loaded is not None  # the stand-in without weights runs this too, but says and takes something else
lab.model

# %% [markdown]
# A **tool** is a function on your side that a model may ask for by name. An **agent** is a loop around a model: send
# the conversation, run the tools it asks for, add their results to the conversation, send it again, until it asks for
# none.
#
# ## Predict
#
# The question needs three facts about Paris, each from its own tool, and then an answer.

# %%
requests_guess = predict("How many HTTP requests will that take?", [1, 2, 3, 4])
requests_guess

# %%
cache_guess = predict("How much of the last request's prompt will the prefix cache serve?", ["none", "half", "> 4/5"])
cache_guess

# %% [markdown]
# ## Run
#
# Three tools that only write down that they ran. The model has 135 million parameters and seldom asks for a tool by
# itself, so its first three requests *force* one each (`tool_choices`); the arguments are its own, and the fourth
# request forbids tools. So the loop is real and the decisions in it are scripted.

# %%
FACTS = {"weather": "12 degrees and rain", "population": "2 million people", "local_time": "14:05"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
ran = []


def tool(name):
    def run(city):
        ran.append((name, city))
        return f"{city}: {FACTS[name]}"

    return LocalTool(name, f"The {name} of a city.", SCHEMA, run)


live = dashboard(lab, ["block_map"])
live

# %%
agent = Agent(
    lab.client(),
    model=lab.model,
    system="You are a helpful assistant.",
    tools=[tool(name) for name in FACTS],
    tool_choices=[{"type": "tool", "name": name} for name in FACTS],
    options=Options(temperature=0.0, tool_choice={"type": "none"}),
    limit=OutputLimit(120, 120),
)
result = agent.run("What are the weather, the population and the local time of Paris?")
turns = pd.DataFrame(result.table()).set_index("turn")
turns[["stop_reason", "tools", "prompt", "cache_read", "cache_write", "input", "output"]]

# %%
exchanges = lab.trace.exchanges[lab.trace.exchanges.path == "/v1/messages"]
assert len(exchanges) == len(turns)
requests_guess.reveal(len(exchanges))

# %% [markdown]
# ## Observe
#
# ### Who runs the tool
#
# The model only *asks*: its reply ends with the reason `tool_use`, and then the server has nothing left to do. The
# function ran here, in this process (article A, section 2.7): **[measured here]**.

# %%
asked = turns[turns.stop_reason == "tool_use"]
assert list(asked.tools) == [name for name, _ in ran] == list(FACTS)
assert list(turns.stop_reason[:3]) == ["tool_use"] * 3
assert turns.stop_reason.iloc[-1] == "end_turn" or not is_real
print(ran)

# %% [markdown]
# ### What the conversation looks like
#
# There is no role for tools. A result travels in a *user* message, tied to the call by its id (section 2.3):

# %%
messages = agent.assemble().request["messages"]
for message in messages:
    print(f"{message['role']:<10}", [block["type"] for block in message["content"]])

# %%
client = lab.client()
head = {"model": lab.model, "max_tokens": 8, "tools": agent.toolbox.definitions}
for wrong in (messages[:2] + messages[3:4], [{"role": "tool", "content": "12 degrees and rain"}]):
    try:
        client.send(head | {"messages": wrong})
    except ClientError as error:
        print(str(error).split(" immediately")[0])  # the ids that follow are new in every run

# %% [markdown]
# A call without its result is refused, and so is a role `tool`: **[on the wire]**.
#
# ### What is sent again, and computed again
#
# Every request carries the whole conversation. The prefix cache makes that cheap: what an earlier request computed is
# read.

# %%
views.batch_lanes(lab.trace)

# %%
served = lab.trace.requests.tail(len(turns))
assert list(served.num_prompt_tokens) == list(turns.prompt)
assert served.num_cached_tokens.is_monotonic_increasing
share = served.num_cached_tokens / served.num_prompt_tokens
assert share.iloc[-1] > 4 / 5
cache_guess.reveal("> 4/5")
print(
    "tokens sent:",
    served.num_prompt_tokens.sum(),
    " computed:",
    (served.num_prompt_tokens - served.num_cached_tokens).sum(),
)

# %%
views.usage_ledger(lab.trace, served.request_id.iloc[-1])

# %% [markdown]
# ### Ten turns
#
# To go on longer we use the stand-in without weights: its tokens mean nothing, but requests, constraint on arguments,
# cache and counts are the same code.

# %%
mock = llmlab.open("mock", num_blocks=1024)
PAGE = "All work and no play makes Jack a dull boy. " * 3
PATH = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": ["a.txt", "b.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
READ = LocalTool("read", "Read a file.", PATH, lambda path: f"{path}: {PAGE}")
WRITE = LocalTool("write", "Write a file.", PATH, lambda path: f"{path} was written: {PAGE}")


def mock_agent(choice, choices=(), **more):
    return Agent(
        mock.client(),
        model=mock.model,
        system="You are a helpful assistant.",
        tools=[READ, WRITE],
        options=Options(temperature=0.0, tool_choice={"type": choice}, **more),
        tool_choices=choices,
        limit=OutputLimit(100, 100),
        max_turns=10,
    )


long = mock_agent("any").run("Do it.")
rows = pd.DataFrame(long.table()).set_index("turn")
rows["share"] = (100 * rows.cache_read / rows.prompt).round().astype(int).astype(str) + " %"
rows[["stop_reason", "prompt", "cache_read", "share"]]

# %% [markdown]
# If every turn adds equally much, turn *i* sends *i* units and reads *i* - 1 of them. Over *n* turns the share that
# is read is `(n - 1) / (n + 1)`. Article A (section 5.6) reports 89.5 % for its author's whole work, and one request
# with 65,612 tokens read and 3 new. Those logs are **[not verifiable here: they are the author's own]**; what they
# imply is **[computed]**, and their shape **[measured here]**:

# %%
read_share = rows.cache_read.sum() / rows.prompt.sum()
assert abs(read_share - 9 / 11) < 0.1
assert rows.cache_read.iloc[-1] / rows.prompt.iloc[-1] > 0.9
assert next(n for n in range(1, 100) if (n - 1) / (n + 1) > 0.894) == 18
print(f"65,612 of 65,615 tokens: {65_612 / 65_615:.3%}")
print("89.5 % is what 18 equal turns give")

# %% [markdown]
# ### Force, forbid, leave alone
#
# `tool_choice` can force some tool (`any`), one by its name (`tool`, as above), forbid tools (`none`), or leave it to
# the model (`auto`, and the same when the field is missing). Article A (section 2.8) argues that only the last makes
# an agent.

# %%
outcomes = {"any": long, "none": mock_agent("none").run("Do it.")}
free = Agent(
    lab.client(),
    model=lab.model,
    system="You are a helpful assistant.",
    tools=[tool(name) for name in FACTS],
    options=Options(temperature=0.0),
    limit=OutputLimit(24, 24),
)
before = len(ran)
outcomes["not given"] = free.run("What are the weather, the population and the local time of Paris?")
for choice, outcome in outcomes.items():
    calls = sum(bool(turn.tools) for turn in outcome.turns)
    print(f"{choice:<10} {len(outcome.turns):>2} requests, {calls:>2} with a call")

# %%
assert outcomes["any"].stopped == "max_turns"
assert len(outcomes["none"].turns) == 1
assert len(ran) == before
print(outcomes["not given"].text)

# %% [markdown]
# Forced at every turn it never answers, and only the loop's limit ends it. Forbidden, it is a chat. Left alone, this
# small model answers at once, with facts it made up: **[measured here]**. Whether a model calls when it may is a
# matter of its training; that it *may* is what the missing field gives it.
#
# ### How often does a reply end in a tool call?
#
# Article A (section 5.10) counted 7,707 replies: 92.8 % `tool_use`, 6.8 % `end_turn`, 0.3 % `stop_sequence`, 2
# refusals. **[not verifiable here: the author's logs]** With *k* calls for each final answer the share is *k*/(*k* +
# 1):

# %%
calls, replies = len(asked), len(turns)
assert calls / replies == 3 / 4
per_answer = 92.8 / 6.8
assert 13 < per_answer < 14
print(f"ours: {calls} of {replies} replies are calls; the article's: {per_answer:.1f} calls for each answer")
print("its four counts:", round(7707 * 0.928) + round(7707 * 0.068) + round(7707 * 0.003) + 2, "of 7,707")

# %% [markdown]
# ### Reading by itself, or being given
#
# Article A (section 4.3) notes that one well-known agent uses no vector search: its model reads files with tools. The
# alternative is to paste what a search found into the first request. Both, for one page (pasted by hand, no search):

# %%
given = mock_agent("none").run(f"{PAGE}\nWhat does Jack lack?")
reading = mock_agent("none", [{"type": "tool", "name": "read"}]).run("What does Jack lack? Read a.txt.")
for name, outcome in (("given", given), ("reading", reading)):
    prompts = [turn.prompt for turn in outcome.turns]
    print(f"{name:<8} {len(prompts)} request(s), prompt tokens {prompts}, of which read from cache", end=" ")
    print([turn.cache_read for turn in outcome.turns])
assert (len(given.turns), len(reading.turns)) == (1, 2)
assert reading.turns[1].cache_read / reading.turns[1].prompt > 2 / 3
assert sum(turn.prompt for turn in reading.turns) > 2 * given.turns[0].prompt

# %% [markdown]
# A round trip more and more than twice the input, most of the second request from the cache; in return nothing has to
# guess beforehand what will be needed. **[measured here]**

# %% [markdown]
# ### Let the server forget
#
# Old results fill the context. With `context_management` a server removes them before the model reads the
# conversation, and says so in `applied_edits` (section 2.12). Four calls; at most one result is to stay once there
# are more than three:

# %%
choices = [{"type": "tool", "name": name} for name in ("read", "write", "read", "write")]
edit = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "tool_uses", "value": 3},
    "keep": {"type": "tool_uses", "value": 1},
}
cleared = {}
for name, more in (("as it is", {}), ("sparing write", {"exclude_tools": ["write"]})):
    editing = mock_agent("none", choices, context_management={"edits": [edit | more]})
    outcome = editing.run("Do it.")
    (cleared[name],) = outcome.message.context_management["applied_edits"]
    last = outcome.turns[-1]
    print(f"{name:<14} {cleared[name]['cleared_tool_uses']} results cleared,", "read from cache:", last.cache_read)

# %%
assert cleared["as it is"]["cleared_tool_uses"] == 3
assert cleared["sparing write"]["cleared_tool_uses"] == 2
assert last.cache_read < outcome.turns[-2].cache_read
print(
    "Below the trigger:",
    mock_agent("none", context_management={"edits": [edit]}).run("Do it.").message.context_management,
)

# %% [markdown]
# It reports what it did, or an empty list, as article A saw: **[on the wire]**. **[corrected: article A says that
# results of tools which edit files are spared; the public interface spares none unless the client lists them in
# `exclude_tools`]** And it has a price: the history now differs from what was cached, so the last request read less
# than the one before. Thinking can be cleared in the same way:

# %%
thinking = {"type": "enabled", "budget_tokens": 20}
talk = [{"role": "user", "content": "Think, then answer."}]
ask = {"model": mock.model, "max_tokens": 40, "thinking": thinking}
for _ in range(3):
    reply = mock.client().send(ask | {"messages": talk})
    talk += [reply.turn(), {"role": "user", "content": "Again."}]
keep_one = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 1}}
reply = mock.client().send(ask | {"messages": talk, "context_management": {"edits": [keep_one]}})
(report,) = reply.context_management["applied_edits"]
assert report["cleared_input_tokens"] == 0
print(report["type"], report["cleared_thinking_turns"], "of 3 turns,", report["cleared_input_tokens"], "tokens")

# %% [markdown]
# Two turns of thinking, and not a token saved: thinking from before the user's last message is left out of our
# prompts anyway. Within a loop of tool calls it stays, and there the edit saves.

# %% [markdown]
# ### Tools that the server runs
#
# A server may run some tools itself, such as a web search, and still answer in one exchange (section 5.10, an
# inference of its author). **[not verifiable here: this server runs no tools of its own]** Lab 13 shows two runs of
# the model in one exchange; a request for a server's tool is refused:

# %%
search = {"type": "web_search_20250305", "name": "web_search"}
try:
    client.send(head | {"tools": [search], "messages": talk[:1]})
except ClientError as error:
    print(error)

# %% [markdown]
# ## Explain
#
# The whole loop:

# %% tags=["nbval-ignore-output"]
excerpt(Agent.run, "turns: list", 9)

# %% [markdown]
# One turn is `_ask`: assemble the body from all entries, send it, keep the reply. `_run_tools` answers each call, a
# failure of a tool included, because the model can only react to what it is told. Nothing is remembered between
# requests except by the client's transcript; the server's memory is the prefix cache, which changes the price and
# never the answer.
#
# The model reads results as text in its prompt, marked by the chat template. So everything a tool returns is paid for
# in every later turn: as a read while the cache has it, as a prefill when it does not.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Add up the input
#
# *Easy, 3 minutes.* How many prompt tokens did the first agent send in its four requests, cached or not?
#
# <details><summary>Hint</summary>
#
# One column of `turns` has the whole prompt of each request; `input` leaves out what was read from the cache or
# written to it.
#
# </details>

# %% tags=["exercise"]
sent_answer = ...
check.lab14.q1(sent_answer, result)

# %% tags=["solution"]
sent_answer = turns.prompt.sum()
check.lab14.q1(sent_answer, result)

# %% [markdown]
# ### 2. What the cache saves
#
# *Medium, 5 minutes.* Turn *i* sends *i* units, and finds all but the newest in the cache. How many units are read in
# `turns` turns together?
#
# <details><summary>Hint</summary>
#
# Write down how many units turns 1, 2 and 3 read; the first one reads none. Then find the sum for any number of
# turns.
#
# </details>


# %% tags=["exercise"]
def units_read(turns):
    return ...


check.lab14.q2(units_read)


# %% tags=["solution"]
def units_read(turns):
    return turns * (turns - 1) // 2


check.lab14.q2(units_read)

# %% [markdown]
# ### 3. What is cleared
#
# *Medium, 10 minutes.* The trigger is reached. Given the names of the tools called so far, in order, how many to
# keep, and which tools are excluded: how many results are cleared?
#
# <details><summary>Hint</summary>
#
# First set aside the latest `keep` calls, whatever their tool; `keep` may be 0, or more than there are calls. Only
# then look at the names of the others.
#
# </details>


# %% tags=["exercise"]
def num_cleared(names, keep, excluded):
    return ...


check.lab14.q3(num_cleared)


# %% tags=["solution"]
def num_cleared(names, keep, excluded):
    return sum(name not in excluded for name in names[: max(0, len(names) - keep)])


check.lab14.q3(num_cleared)

# %% [markdown]
# ## Break it
#
# A system prompt that says which step it is. It changes at every turn, in front of the conversation:

# %%
broken = mock_agent("any")
broken.max_turns = 4
count_steps = LocalTool("read", "Read a file.", PATH, lambda path: step(path))


def step(path):
    broken.system = [SystemText(f"This is step {len(broken.transcript.entries)}. You are a helpful assistant.")]
    return READ.run(path)


broken.toolbox = type(broken.toolbox)([count_steps, WRITE])
stepping = broken.run("Do it.")
for good, bad in zip(long.turns, stepping.turns, strict=False):
    print(f"turn {good.turn}: read from cache {good.cache_read:>5}, with the counter {bad.cache_read:>5}")

# %%
assert any("step" in block.text for block in broken.system)
assert len({turn.cache_read for turn in stepping.turns[1:]}) == 1
assert stepping.turns[-1].cache_read < long.turns[3].cache_read / 2

# %%
mock.close()
lab.close()

# %% [markdown]
# The same work, but only the tools' definitions, which stand before the system prompt, are still read; every turn
# pays for the whole history again. What changes belongs at the end.
#
# ## Recap
#
# - The model asks, the client acts; a result goes back in a user message, one for each call.
# - A turn is a whole request. Its input grows with every turn, what is computed of it hardly does, as long as the
#   beginning stays the same.
# - Forcing a tool takes away the model's way to finish; forbidding tools takes away the agent.
# - Clearing old results saves input and breaks the cache at that place: worth it when much is cleared at once.
#
# ## Next
#
# Lab 15 goes through what users notice, from the long first wait to the file that is read twice, and shows each
# cause.
