# %% [markdown]
# # Assemble a request, field by field
#
# **Goal.** You can say for every field of a request what it is for, what it weighs, and what happens when it is left
# out.
#
# **Time.** 25 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters, fetched once, about 2 GB of memory). No GPU; no network once the
# model is there.

# %%
import json
from math import exp, log
from statistics import NormalDist

import httpx2
import pandas as pd

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.client.assemble import Options, SystemText, assemble
from llmlab.client.context_sources import Source, leading_blocks, moment
from llmlab.client.entry import Entry, note, reply, synthetic, text_block, user
from llmlab.client.estimate import estimate, estimate_text, layered
from llmlab.client.fields import explain
from llmlab.client.fields import field as described
from llmlab.client.tool_order import order_tools, what_changed
from llmlab.labs.excerpt import excerpt

pd.set_option("display.max_colwidth", 160)
lab = llmlab.open(dtype="float32", num_blocks=256)
client = lab.client()
lab.model

# %% [markdown]
# `lab.client()` starts the HTTP server of this lab on a free port and gives a client of it. This notebook follows
# section 2 of article A (lab 00 names the articles): what stands between the sentence you type and the JSON that
# leaves. Its subject is an **agent client**, a program in a terminal that may run tools for the model. A badge says how
# each statement of the article was checked: **[measured here]**, **[computed]**, **[on the wire]**, **[simulated]**,
# **[corrected: …]** or **[not verifiable here: why]**.
#
# ## Predict

# %%
question = "Name the capital of France."
size_guess = predict("How much of the request's bytes is the question itself?", ["about half", "a tenth", "a fiftieth"])
size_guess

# %%
roles_guess = predict(
    "What does the server do with two user messages in a row?", ["refuse them", "merge them", "ignore the second"]
)
roles_guess

# %% [markdown]
# ## Run
#
# A session is more than its messages. Here it has three built-in tools, a **system prompt** in blocks (identity, tool
# rules, facts of the moment), project notes, and entries that only the person saw.

# %%
BUILTIN = ("read_file", "list_folder", "search_text")
SYSTEM = (
    SystemText("You are a careful assistant in a terminal. Answer in one short sentence."),
    SystemText("Ask for a tool only when the answer is not in the conversation."),
)
NOTES = "Use British spelling. Tests live beside the code."


def tool(name):
    does = f"{name.replace('_', ' ').capitalize()} in the project folder and return what was found as text."
    path = {"path": {"type": "string", "description": "Path below the project folder."}}
    return {"name": name, "description": does, "input_schema": {"type": "object", "properties": path}}


def session(entries, *, notes=NOTES, system=SYSTEM, date="2026-11-29", tools=BUILTIN, **options):
    identity = {"device_id": "d-1", "session_id": "s-1"}
    defaults = {"max_tokens": 8, "temperature": 0, "user_id": identity, "betas": ("context-management-2025-06-27",)}
    return assemble(
        lab.model,
        entries,
        options=Options(builtin_tools=BUILTIN, **defaults | options),
        system=[*system, *moment(date=date, git_status="clean", platform="linux")],
        first=leading_blocks([Source("NOTES.md", notes)]),
        tools=[tool(name) for name in tools],
    )


entries = [
    note("display", "Welcome back."),
    synthetic("No answer: the server was overloaded."),
    note("progress", "Reading 3 files ..."),
    user(question),
]
made = session(entries)
for sentence in made.notes:
    print(sentence)

# %%
message = client.send(made.request, made.headers)
print(message.text)
message.stop_reason, message.usage["output_tokens"]

# %% [markdown]
# ## Observe
#
# ### The body, part by part
#
# What crossed the wire, to scale:

# %%
views.anatomy(lab.trace)

# %%
ratio = len(made.body) / len(question)
assert 30 < ratio < 90
size_guess.reveal("a fiftieth")

# %% [markdown]
# The typed sentence is a small part of it (article A, section 2: one sentence becomes tens of kilobytes; the kilobytes
# follow below). Every field, in the order sent, and what happens without it:

# %%
rows = [use for use in explain(made.request, made.headers) if use.where in ("body", "header")]
left_out = [described(use.name.lower()).if_left_out for use in rows]
pd.DataFrame(
    {
        "field": [use.name for use in rows],
        "where": [use.where for use in rows],
        "kind": [use.kind for use in rows],
        "bytes": [use.bytes for use in rows],
        "if left out": left_out,
    }
)

# %% [markdown]
# `content` is what the model reads, `policy` how the request is handled. `betas` are no body field: they are the header
# `anthropic-beta` **[corrected: article A, sections 2 and 2.11, shows them in the body and says so itself in 3.7]**.
# There is no `tool_choice`: what is not set is not sent. Is the table right? Leave each field out and see:


# %%
def post(body, headers=None):
    """One request on the wire, not streamed: status, and the error's message or the text."""
    url, version = f"{client.url}/v1/messages", {"anthropic-version": "2023-06-01"}
    answer = httpx2.post(url, json=body, headers=version | (headers or {}), timeout=120)
    found = answer.json()
    text = "".join(block.get("text", "") for block in found.get("content", ()))
    return answer.status_code, found["error"]["message"] if "error" in found else text


plain = {name: value for name, value in made.request.items() if name != "stream"} | {"max_tokens": 3}
whole = post(plain)
outcomes = []
for name in plain:
    status, said = post({other: value for other, value in plain.items() if other != name})
    outcomes.append((name, status, said if status != 200 else "the same text" if said == whole[1] else "another text"))
required = {name for name, status, _ in outcomes if status == 400}
assert required == {"model", "max_tokens", "messages"}
assert ("metadata", 200, "the same text") in outcomes
pd.DataFrame(outcomes, columns=["left out", "status", "then"])

# %% [markdown]
# Three fields are required **[on the wire]**. `metadata.user_id` (section 2.9) is one opaque string and changes nothing
# in the answer **[measured here]**; that one client packs device, account and session into it is **[not verifiable
# here: its inside]**. The article says that extra fields, spread first, override those ids. Later keys win:

# %%
{**{"device_id": "from the environment"}, "device_id": "real"}

# %% [markdown]
# So they do not **[corrected: only new keys can be added]**, which holds for JavaScript's `{...extra, device_id}` too.
#
# ### What is refused
#
# Each line is one small request with one change.

# %%
short = {"model": lab.model, "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": question}]}
thinks = {"temperature": 1, "max_tokens": 2000}
marked = [{"type": "text", "text": word, "cache_control": {"type": "ephemeral"}} for word in question.split()]
halves = [{"role": "user", "content": "Name the capital"}, {"role": "user", "content": "of France."}]
changes = {
    "two user messages": {"messages": halves},
    "an assistant message last": {"messages": [*short["messages"], {"role": "assistant", "content": "It is"}]},
    "an empty assistant message last": {"messages": [*short["messages"], {"role": "assistant", "content": ""}]},
    "five cache markers": {"messages": [{"role": "user", "content": marked}]},
    "budget = max_tokens": thinks | {"thinking": {"type": "enabled", "budget_tokens": 2000}},
    "budget > max_tokens": thinks | {"thinking": {"type": "enabled", "budget_tokens": 2001}},
    "budget of 10": thinks | {"thinking": {"type": "enabled", "budget_tokens": 10}},
    "thinking adaptive": {"temperature": 1, "thinking": {"type": "adaptive"}},
    "thinking and temperature 0": {"thinking": {"type": "adaptive"}},
    "betas in the body": {"betas": ["context-management-2025-06-27"]},
    "anti_distillation": {"anti_distillation": ["fake_tools"]},
    "tool_choice null": {"tool_choice": None},
    "output_config empty": {"output_config": {}},
    "speed fast": {"speed": "fast"},
    "max_tokens above the window": {"max_tokens": client.models()[0]["max_input_tokens"]},
}
answers = {name: post(short | change) for name, change in changes.items()}
refused = {name: said for name, (status, said) in answers.items() if status == 400}
assert answers["two user messages"][0] == 200
roles_guess.reveal("merge them")
print("accepted:", ", ".join(name for name in answers if name not in refused))

# %%
pd.Series(refused, name="refused, status 400").to_frame()

# %%
merged = short | {"messages": [{"role": "user", "content": [text_block(each["content"]) for each in halves]}]}
assert client.count_tokens(merged) == client.count_tokens(short | {"messages": halves})
window = client.models()[0]["max_input_tokens"]
print(f"{lab.model}: at most {window:,} tokens in")

# %% [markdown]
# - Roles need not alternate: neighbours are merged, and the count is that of the merged message **[corrected: article
#   A, section 2.3]**. An assistant message at the end is continued (prefill), an empty one is accepted there;
#   Anthropic's models from 4.6 on refuse both **[corrected: depends on the model]**.
# - Both forms of thinking exist; a budget must be below `max_tokens` **[on the wire]** (section 2.6), and at least
#   1,024 at Anthropic, 16 here.
# - A `tool_choice` of null or an empty `output_config` counts as absent **[on the wire]** (2.8, 2.13); `speed` is
#   accepted, and the response says `standard`, since there is no fast tier here.
# - Unknown fields are refused, so `anti_distillation` (2.13) would be **[not verifiable here: in no public text]**. An
#   escape hatch that adds any field, as the article describes, needs a server that takes it.
# - `GET /v1/models` says how much fits; a large `max_tokens` runs into the refusal of the last row **[on the wire]**
#   (2.4). Newer models of Anthropic accept it and stop at the window **[corrected: true of older ones]**.
#
# ### Content or strategy?
#
# Section 2.13 says that fields beside `system` and `messages` do not change what the model says.

# %%
longer = short | {"max_tokens": 24}
shape = {"type": "object", "properties": {"capital": {"enum": ["Paris", "Rome"]}}, "required": ["capital"]}
toggles = {
    "metadata": {"metadata": {"user_id": "somebody"}},
    "service_tier": {"service_tier": "standard_only"},
    "speed": {"speed": "fast"},
    "cache_control": {"cache_control": {"type": "ephemeral"}},
    "stop_sequences": {"stop_sequences": [" "]},
    "output_config.format": {"output_config": {"format": {"type": "json_schema", "schema": shape}}},
}
usual = post(longer)[1]
texts = {name: post(longer | change)[1] for name, change in toggles.items()}
same = [name for name, text in texts.items() if text == usual]
assert same == ["metadata", "service_tier", "speed", "cache_control"]
print("same text:", ", ".join(same))
print("other text:", ", ".join(name for name in texts if name not in same))
print("with a schema:", texts["output_config.format"])

# %% [markdown]
# The first group is strategy, the second is not **[corrected: format, stop sequences, sampling, thinking and
# `tool_choice` change the text]**. The last line fits the schema it was given **[measured here]**.
#
# ### What is kept on the machine, and what grows
#
# Four entries went in, one message came out: notes, and the client's own words (model `<synthetic>`), are never sent
# (section 2.3; the pattern is one client's **[not verifiable here: its inside]**, reproduced here). The model keeps
# nothing, so every later turn sends all of it again. Forty turns in each of which a tool returns about 700 characters:


# %%
def turn(number):
    use = {"type": "tool_use", "id": f"toolu_{number}", "name": "read_file", "input": {"path": f"part_{number}.txt"}}
    result = {"type": "tool_result", "tool_use_id": use["id"], "content": f"Line of part {number}.\n".ljust(18) * 40}
    return [
        reply([use], model=lab.model, stop_reason="tool_use", usage={}),
        Entry("user", (result,)),
    ]


long_session = [user(question)]
sizes = []
for number in range(40):
    long_session += turn(number)
    sizes.append(len(session(long_session).body))
assert 10_000 < sizes[-1] < 100_000
assert sum(sizes) > 15 * sizes[-1]
assert len(question) * 100 < sizes[-1]
print(f"bytes of the body in turns 1, 20, 40: {sizes[0]:,}, {sizes[19]:,}, {sizes[39]:,}; sent in all: {sum(sizes):,}")

# %% [markdown]
# Tens of kilobytes, less than a hundredth of them typed **[computed]**; all bodies together are more than 15 times the
# last one, since the sum of 1, 2, … n grows with n². Two remedies exist (section 2.12): the server **clears** old tool
# results by rule, or the client **compacts**, replacing the past by a summary.

# %%
ten_turns = session(long_session[:21])
edit = {
    "type": "clear_tool_uses_20250919",
    "trigger": {"type": "input_tokens", "value": 1000},
    "keep": {"type": "tool_uses", "value": 3},
}
cleared = ten_turns.request | {"context_management": {"edits": [edit]}}
summary = Entry("compaction", (text_block("So far, parts 0 to 6 were read; none names a capital."),), keeps=6)
compacted = session([*long_session[:21], summary])
counts = {
    "as it is": client.count_tokens(ten_turns.request, ten_turns.headers),
    "cleared by the server": client.count_tokens(cleared, made.headers),
    "compacted by the client": client.count_tokens(compacted.request, compacted.headers),
}
assert 3 * counts["cleared by the server"] < 2 * counts["as it is"]
assert counts["compacted by the client"] < counts["cleared by the server"]
kept = [len(each["messages"]) for each in (ten_turns.request, cleared, compacted.request)]
pd.DataFrame({"prompt tokens": list(counts.values()), "messages sent": kept}, index=list(counts))

# %% [markdown]
# Clearing keeps every call and drops results; compaction drops calls too and trusts its summary **[measured here]**.
# The thresholds the article read, 180,000 - 40,000 = 140,000 tokens, add up but are one client's **[not verifiable
# here: its inside]**; the API's own defaults are a trigger of 100,000 and 3 results kept.
#
# ### What a change costs
#
# The server keeps keys and values of a prompt's beginning (a later lab shows how), so a change costs everything behind
# it. The prefix goes tools, system, messages. `what_changed` compares two bodies; the engine then says what it could
# use.

# %%

variants = {
    "nothing": session(entries, max_tokens=1),
    "notes, in messages[0]": session(entries, notes="Use American spelling.", max_tokens=1),
    "notes, were they in system": session(
        entries, system=(SystemText("Use American spelling."), *SYSTEM), max_tokens=1
    ),
    "the date": session(entries, date="2026-11-30", max_tokens=1),
    "an external tool more": session(entries, tools=("weather", *BUILTIN), max_tokens=1),
}
unsorted = variants["an external tool more"].request
mixed = unsorted | {"tools": [tool(name) for name in ("read_file", "weather", "list_folder", "search_text")]}
costs = []
for name, request in {**{name: each.request for name, each in variants.items()}, "the same, in between": mixed}.items():
    change = what_changed(made.request, request)
    client.send(request)
    used = lab.trace.requests.iloc[-1]
    costs.append((name, change.kind, change.shared, change.lost, used.num_cached_tokens, used.num_prompt_tokens))
costs = pd.DataFrame(costs, columns=["change", "kind", "blocks shared", "lost", "tokens cached", "of"])
cached = costs.set_index("change")["tokens cached"]
assert cached["nothing"] > cached["notes, in messages[0]"] > cached["notes, were they in system"]
assert cached["an external tool more"] > cached["the same, in between"]
costs

# %% [markdown]
# Notes in `messages[0]` leave tools and system cached; notes in `system` do not (section 2.2). Built-in tools first,
# external ones behind (2.7), keeps more than a tool in between **[measured here]**. That a server breaks its cache
# after the last built-in tool is **[not verifiable here: in no public text]**. The markers above say where Anthropic's
# cache is written: one on the tools, one on the stable system blocks, one on the last message, four at most. Beta
# switches are part of the key as well, hence the latch: once sent, always sent.
#
# ### Estimates
#
# A client without a tokenizer divides characters (section 5.2): by 4, by 2 for JSON, by 2.5 for tool definitions.

# %%
samples = {
    "English": "The cache keeps keys and values of the prompt, so that they need not be computed again. " * 3,
    "Chinese": "缓存保存提示词的键和值，因此不需要再次计算。请求越长，节省的时间就越多。" * 3,
    "code": "for i, row in enumerate(rows):\n    total[i] += max(row.end - row.start, 0)\n" * 3,
    "JSON": json.dumps([{"id": n, "path": f"src/a{n}.py", "ok": True} for n in range(4)]),
}
samples["a tool"] = json.dumps(tool("read_file"))
guesses = []
for name, text in samples.items():
    guess = int(len(text) / 2.5 + 0.5) if name == "a tool" else estimate_text(text)
    exact = len(lab.tokenizer.encode(text))
    guesses.append((name, len(text), guess, exact, f"{guess / exact:.1f} of it"))
pd.DataFrame(guesses, columns=["text", "characters", "estimate", "tokens", "estimate is"])

# %%
by_name = {name: guess / exact for name, _, guess, exact, _ in guesses}
assert by_name["Chinese"] < 0.9 * by_name["English"]
assert by_name["Chinese"] < 0.7
json_guess, json_exact = guesses[3][2:4]
assert abs(json_guess - json_exact) < abs(json_guess / 2 - json_exact)

# %% [markdown]
# The quotient 4 suits English and is far too low for Chinese with this tokenizer; JSON divided by 2 comes nearer than
# by 4 **[measured here]**. That one client uses these quotients is **[not verifiable here: its inside]**. So trust the
# last answer's `usage` and estimate only what came after it. Twenty Chinese turns:

# %%
talk, errors = [], []
usage = None
for number in range(20):
    talk.append({"role": "user", "content": f"{number}: {samples['Chinese'][:30]}"})
    request = short | {"messages": talk}
    exact = client.count_tokens(request)
    guess = layered(usage, request, len(talk) - 1).total
    errors.append((exact - estimate(request).total, exact - guess))
    answer = samples["Chinese"][:24]
    usage = {"input_tokens": exact, "output_tokens": len(lab.tokenizer.encode(answer))}
    talk.append({"role": "assistant", "content": answer})
pure, late = errors[-1]
assert pure > 5 * abs(late)
print(f"turn 20: the pure estimate is {pure} tokens too low, the layered one {late}")

# %%
seen = client.send(short | {"messages": talk[:3], "max_tokens": 1}).usage
assert client.count_tokens(short | {"messages": talk[:3]}) == lab.trace.requests.num_prompt_tokens.iloc[-1]
seen["output_tokens"]

# %% [markdown]
# The layered error stays that of one turn, more than 5 times smaller at the end; `count_tokens` equals the engine's own
# count **[measured here]**.
#
# ### How much to ask for
#
# Section 2.4: 8,000 tokens by default, 64,000 only after an answer was cut, because 99 of 100 answers stay below 4,900.
# Answers drawn from a log-normal distribution with that percentile, half of them below 300 **[simulated]**:

# %%
spread = log(4900 / 300) / NormalDist().inv_cdf(0.99)
lengths = [300 * exp(spread * NormalDist().inv_cdf((rank + 0.5) / 10_000)) for rank in range(10_000)]
too_long = sum(length > 8000 for length in lengths)
mean_asked = (8000 * len(lengths) + 64_000 * too_long) / (len(lengths) + too_long)
assert 0 < too_long < 100
assert max(lengths) < 64_000
print("cut with 32,000:", sum(length > 32_000 for length in lengths), "| with 8,000:", too_long, "of 10,000")
print(f"8,000, then 64,000: none cut, {too_long} requests more, {mean_asked:,.0f} asked for on average")
print(f"32,000 / 4,900 = {32_000 / 4_900:.1f}, 64,000 / 4,900 = {64_000 / 4_900:.1f}")

# %% [markdown]
# The last line is what the article calls 8 to 16 times **[corrected: 6.5 and 13.1]**. The constants, the percentile and
# whether a server reserves room by `max_tokens` are **[not verifiable here: one client's inside]**; this engine does
# not.
#
# ### The other dialect
#
# Article B's introduction says that the request is much the same whoever sends it. The same conversation as Chat
# Completions:

# %%
conversation = [{"role": "system", "content": "Be brief."}, *short["messages"]]
openai_body = {"model": lab.model, "max_tokens": 4, "temperature": 0, "messages": conversation}
other = httpx2.post(f"{client.url}/v1/chat/completions", json=openai_body, timeout=120).json()
_, text = post(short | {"system": "Be brief."})
theirs, ours = [each.prompt_token_ids for each in lab.trace.index.submitted.values()][-2:]
assert theirs == ours
assert other["choices"][0]["message"]["content"] == text
sorted(set(openai_body) ^ set(short | {"system": ""}))

# %% [markdown]
# Same prompt tokens, same text **[measured here]**; in meaning it is one request. The shapes differ: only one has a
# `system` field, and only that one requires `max_tokens`.
#
# ## Explain
#
# One pure function turns a session into a body. Each field has its place, and what is empty is not sent:

# %% tags=["nbval-ignore-output"]
from llmlab.client import assemble as assembling

excerpt(assembling._body, containing="fields:", lines=8)

# %% tags=["nbval-ignore-output"]
excerpt(order_tools, containing="first = ", lines=2)

# %% [markdown]
# The same session gives the same bytes; nothing depends on the clock. That is what makes prefixes equal. Stable parts
# come first and changing parts last, so that a change costs little. The server's part is small: check the fields, write
# tools, system and messages into the model's chat template, in that order, and count.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Weigh what the model reads
#
# *Easy, 5 minutes.* How many bytes of `made.request` belong to fields of kind `content`? Use `explain(made.request)`.
#
# <details><summary>Hint</summary>
#
# `explain` gives one entry per field. Two of its attributes matter here, `kind` and `bytes`; the table under *The body,
# part by part* shows both.
#
# </details>

# %% tags=["exercise"]
content_bytes = ...
check.lab01.q1(content_bytes, made.request)

# %% tags=["solution"]
content_bytes = sum(use.bytes for use in explain(made.request) if use.kind == "content")
check.lab01.q1(content_bytes, made.request)

# %% [markdown]
# ### 2. Write the estimate
#
# *Medium, 10 minutes.* Tokens of a text: characters divided by 4, or by 2 if the text is JSON, rounded half up.
#
# <details><summary>Hint</summary>
#
# Count characters, not bytes. `round()` of Python takes halves to the even number, 20.5 to 20, but 21 is wanted here:
# what must be added before the decimals are cut off?
#
# </details>


# %% tags=["exercise"]
def tokens_of(text, is_json):
    return ...


check.lab01.q2(tokens_of)


# %% tags=["solution"]
def tokens_of(text, is_json):
    return int(len(text) / (2 if is_json else 4) + 0.5)


check.lab01.q2(tokens_of)

# %% [markdown]
# ### 3. Add up a session
#
# *Medium, 10 minutes.* A first request has `first` bytes, and each turn adds `turn` bytes to the next one. How many
# bytes are sent in `requests` requests?
#
# <details><summary>Hint</summary>
#
# Write down the sizes of the first three requests: how many turns does each of them hold? The number of turns then is a
# sum that begins with 0; the first part is sent every time.
#
# </details>


# %% tags=["exercise"]
def bytes_sent(first, turn, requests):
    return ...


check.lab01.q3(bytes_sent)


# %% tags=["solution"]
def bytes_sent(first, turn, requests):
    return requests * first + turn * requests * (requests - 1) // 2


check.lab01.q3(bytes_sent)

# %% [markdown]
# ## Break it
#
# Put the clock in front: `assemble` moves changing system blocks behind the stable ones, so go around it.

# %%
clocks = [f"Now it is 10:{minute}:00." for minute in (15, 16)]
hits = []
for clock in clocks:
    broken = session(entries, max_tokens=1, tools=()).request
    broken["system"] = [text_block(clock), *broken["system"]]
    client.send(broken)
    hits.append(int(lab.trace.requests.num_cached_tokens.iloc[-1]))
steady = [session(entries, max_tokens=1, tools=(), date=date).request for date in ("2026-12-01", "2026-12-02")]
for request in steady:
    client.send(request)
    hits.append(int(lab.trace.requests.num_cached_tokens.iloc[-1]))
assert hits[3] > hits[1]
print("cached in the second request: clock in front", hits[1], "| date at the back", hits[3])

# %% [markdown]
# With the clock in front every request is new to the server. With the date behind the stable blocks, they are found
# again.
#
# ## Recap
#
# - Three fields are required; most of the others are strategy, and some of those change the text after all.
# - The model reads tools, system and messages, in this order; that order is also the order of what a change costs.
# - The whole history is sent every turn; clearing and compaction are two ways to stop its growth.
# - Characters divided by 4 is a guess for English. Trust usage, estimate the rest, ask `count_tokens` when it matters.
# - What did the article read inside one client that nobody else can check? The list below.
#
# | article A | what it says | standing |
# |---|---|---|
# | 2.2, 7 | system in 2 to 4 blocks, markers on system and last message | **[on the wire]** the same pattern here |
# | 2.4 | 32,000, 64,000, 8,000 as limits of one client | **[not verifiable here: its inside]** |
# | 2.11 | `claude-code-20250219` among the betas | **[not verifiable here: in no public text]** |
# | 2.13 | a variable that adds fields to the body | **[not verifiable here: its inside]** |
# | 5.6.1 | images are scaled to 1,568 pixels: 3,000 x 2,000 to 1,568 x 1,045 | **[not verifiable here: no images]** |
# | 5.8.1 | `speculation-accept`: your next question, guessed; no decoding | **[not verifiable here: its inside]** |
#
# ## Next
#
# Lab 02 sends this request and takes the answer apart, frame by frame.
