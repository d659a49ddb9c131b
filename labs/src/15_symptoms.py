# %% [markdown]
# # Explain what users notice
#
# **Goal.** For ten complaints about a language model's service you can name the cause, and show it in one experiment
# each.
#
# **Time.** 30 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU, no network.

# %%
import json

import pandas as pd

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.client.agent import Agent
from llmlab.client.assemble import Options
from llmlab.client.compaction import INSTRUCTION, CompactionPolicy
from llmlab.client.output_limit import OutputLimit
from llmlab.client.tool import LocalTool
from llmlab.labs.excerpt import excerpt

lab = llmlab.open(device="cpu", dtype="float32", num_blocks=192)
is_real = lab.loaded is not None  # the stand-in without weights runs this too, but says and takes something else
lab.model

# %% [markdown]
# Article A ends (section 6) with a table of what users notice and why. Here each row is an experiment. Where the
# *amount* of work is the point we count tokens and steps, which every machine repeats; times are only compared, with
# wide bounds, and on the CPU, where a model this small takes long enough to show them.
#
# ## Predict

# %%
blocks_guess = predict(
    "You insert a word at the start of a prompt of 32 blocks that was just sent. How many blocks are hit?",
    [0, 1, 16, 31],
)
blocks_guess

# %%
bill_guess = predict("170 input tokens for each output token: which makes up most of the bill?", ["input", "output"])
bill_guess

# %% [markdown]
# ## Run
#
# One long prompt, and what came of it:

# %%
LINE = "The cat sat on the mat and looked at the rain. "
cold = lab.ask(LINE * 40, max_tokens=12, min_tokens=12)
first = lab.trace.requests.iloc[-1]
print(first.num_prompt_tokens, "prompt tokens,", first.num_output_tokens, "output tokens")

# %%
views.waterfall(cold.trace)

# %% [markdown]
# ## Observe
#
# ### 1. A long wait, then a fast flow
#
# **TTFT** is the time to the first token, **ITL** the time between two later ones. The first token waits for the
# whole prompt to be computed (*prefill*), each later one for a single token (*decode*).

# %%
steps = cold.trace.schedule.query("action == 'ran'")
assert list(steps.num_tokens) == [first.num_prompt_tokens, *[1] * 11] or not is_real
assert first.ttft_ms > 5 * first.itl_ms or not is_real
print("the first token took more than 5 times as long as each later one")

# %% [markdown]
# **[measured here]** The first step computes all tokens of the prompt at once, so it takes far less than as many
# single steps would, yet longer than one.

# %%
assert first.ttft_ms < first.num_prompt_tokens * first.itl_ms / 3 or not is_real

# %% [markdown]
# ### 2. The longer the conversation, the later the first word
#
# Eight turns of 60 tokens, on the stand-in without weights, with the prefix cache and without. What has to be
# computed before the first word:

# %%
computed = {}
for cache in ("off", "hash"):
    with llmlab.open("mock", background=False, prefix_cache=cache) as chat:
        runs = []
        text = []
        for turn in range(8):
            text += [(turn * 60 + i) % 251 for i in range(60)]
            runs.append(chat.ask(text, max_tokens=1))
        computed[f"cache {cache}"] = [run.usage["prompt_tokens"] - run.usage["cached_tokens"] for run in runs]
table = pd.DataFrame(computed, index=pd.RangeIndex(1, 9, name="turn"))
assert table["cache off"].is_monotonic_increasing
assert table["cache hash"].max() < 60 + 16
table.T

# %% [markdown]
# Not the length counts but what is *not in the cache*. The attention kernel was the same in both rows: **[measured
# here]**.
#
# ### 3. The flow slows down a little, too
#
# Every step reads all weights, and the keys and values of all positions so far. In bytes, per step:

# %%
weights = 134_515_008 * 4  # parameters of the model, bytes of a float32
per_token = lab.trace.info.kv_bytes_per_token
growth = [(weights + per_token * context) / weights for context in (0, 500, 1000, 2000, 4000, 8000)]
assert 1.02 < growth[1] < 1.1 or not is_real
assert growth == sorted(growth)
print("bytes read per step, relative to an empty context:", [f"{value:.2f}" for value in growth])

# %%
views.kv_growth(cold.trace)

# %% [markdown]
# A few percent at 500 tokens: small, and it grows with the conversation. **[computed]** The two times below are this
# machine's; at this length their difference may drown in its noise.

# %% tags=["nbval-ignore-output"]
short = lab.ask("Tell me about rain.", max_tokens=12, min_tokens=12)
print(f"ITL after {first.num_prompt_tokens} tokens {first.itl_ms:.0f} ms, ", end="")
print(f"after {len(short.prompt_token_ids)} tokens {lab.trace.requests.iloc[-1].itl_ms:.0f} ms")

# %% [markdown]
# ### 4. Slower at peak times
#
# A probe of 20 output tokens among 0 to 32 neighbours, eight places in the batch. Every step from its arrival to its
# end is one in which it ran or waited; there is nothing else it can do:


# %%
def at_peak(neighbours, **options):
    crowd = llmlab.open("mock", background=False, **options)
    others = [crowd.submit([*range(i, i + 100)], max_tokens=40, ignore_eos=True) for i in range(neighbours)]
    probe = crowd.submit([*range(200, 250)], max_tokens=20, ignore_eos=True)
    for run in (probe, *others):
        run.wait()
    trace = crowd.trace
    mine = trace.schedule[trace.schedule.request_id == probe.id]
    crowd.close()
    assert list(mine.step) == [*range(mine.step.min(), mine.step.max() + 1)]
    waited, ran = (int((mine.action == action).sum()) for action in ("waited", "ran"))
    assert waited + ran == len(mine)
    return {"waited": waited, "ran": ran, "largest batch": int(trace.steps.num_rows.max())}, trace


peak = pd.DataFrame({n: at_peak(n)[0] for n in (0, 4, 16, 32)}).T.rename_axis("neighbours")
assert list(peak.ran) == [20] * 4
assert peak.waited.is_monotonic_increasing
peak

# %% [markdown]
# That is queueing. A neighbour does not compete for the *weights*: a step reads them once, however many requests are
# in it, so per token their share falls as 1 / batch, while the keys and values to be read are each request's own.
# **[computed]** What a neighbour also costs is its prompt, which shares a step with everyone. On the real model, two
# requests in the middle of their answers when a third arrives:

# %%
talkers = [lab.submit(f"{name}, tell me about rain.", max_tokens=32, min_tokens=32) for name in ("Ann", "Bob")]
for _ in zip(range(6), talkers[1], strict=False):
    pass
late = lab.submit("Dear reader. " + LINE * 25, max_tokens=1).wait()
for run in talkers:
    run.wait()
timeline = lab.trace.steps
mixed = timeline[(timeline.num_prefill_tokens > 100) & (timeline.num_decode_tokens > 0)]
plain = timeline[(timeline.num_prefill_tokens == 0) & (timeline.num_decode_tokens == 2)]
assert len(mixed) >= 1 or not is_real
assert mixed.total_ms.max() > 2 * plain.total_ms.median() or not is_real
print("a step with a new prompt took more than twice as long as the steps around it")

# %% [markdown]
# **[measured here]** Both talkers felt that pause. When memory runs out as well, requests are preempted: see *Break
# it*.
#
# ### 5. One word at the start, and everything is slow
#
# The same prompt again; with one word more at its start, in its middle, and at its end:

# %%
hits = {}
for place, text in {
    "same": LINE * 40,
    "start": "Well, " + LINE * 40,
    "middle": LINE * 20 + "Well, " + LINE * 20,
    "end": LINE * 40 + "Well,",
}.items():
    changed = lab.ask(text, max_tokens=1)
    hits[place] = lab.trace.requests.iloc[-1][["num_prompt_tokens", "num_cached_tokens", "ttft_ms"]]
hits = pd.DataFrame(hits).T
hits["blocks hit"] = (hits.num_cached_tokens // 16).astype(int)
assert hits.ttft_ms["start"] > hits.ttft_ms["end"] or not is_real
fresh = (hits.num_prompt_tokens - hits.num_cached_tokens).astype(int)
assert list(fresh.sort_values().index[-2:]) == ["middle", "start"] or not is_real
assert fresh["start"] > 2 * fresh["end"] or not is_real
hits[["num_prompt_tokens", "num_cached_tokens", "blocks hit"]]

# %%
blocks_guess.reveal(hits["blocks hit"]["start"])

# %% [markdown]
# Blocks are matched from the front, each together with all before it; the one hit is the template's own opening. The
# rest is computed, and waited for: most after a change at the start, least at the end. **[measured here]** Article B's
# long pause behind a long system prompt is the same fact, and so is its end when the prefix is cached:

# %%
assert hits.num_cached_tokens["same"] / hits.num_prompt_tokens["same"] > 0.95 or not is_real
assert first.ttft_ms > hits.ttft_ms["same"] or not is_real
print(f"10,000 tokens through 8 billion weights at 312 TFLOP/s: {2 * 8e9 * 10_000 / 312e12:.2f} s")

# %% [markdown]
# Cold, our prompt waited more than three times as long as warm. The line above is what article B's 10,000 tokens take
# at the peak rate of an A100, the least possible: **[computed]**.
#
# ### 6. A pause, and the next question is slow
#
# A marked prefix lives for five minutes, counted from its last use. Nobody has to wait: the server's ledger takes the
# time from a clock that we set.

# %%
mock = llmlab.open("mock", num_blocks=512)
server = mock.serve()
client = mock.client(server)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


clock = server.gateway.backends[0].prompt_cache.clock = Clock()
rules = {"type": "text", "text": "Rules. " * 50, "cache_control": {"type": "ephemeral"}}
question = {"model": "mock", "max_tokens": 2, "system": [rules], "messages": [{"role": "user", "content": "Hi"}]}
for clock.now in (0, 299, 598, 899):
    usage = client.send(question).usage
    held = mock.trace.requests.num_cached_tokens.iloc[-1]
    print(f"at {clock.now:>3}: read {usage['cache_read_input_tokens']}", end=", ")
    print(f"written {usage['cache_creation_input_tokens']}, in the engine's cache {held}")

# %%
assert usage["cache_read_input_tokens"] == 0
assert held > 0

# %% [markdown]
# Used within five minutes it lives on (the third line is 598 seconds after the first); 301 seconds of silence end it.
# **[on the wire, with a simulated clock]** The last column is a correction worth knowing: our engine drops blocks
# when it needs the room, not by the clock, and still had them. Five minutes are a *rule of the bill*. That 99.4 % of
# an author's writes had this lifetime is **[not verifiable here: a private log]**.
#
# ### 7. Deep thinking is slow and dear
#
# Thoughts are output, made one token at a time before the first visible word. The stand-in thinks as long as it may:

# %%
thinking = {"type": "enabled", "budget_tokens": 300}
prompt = {"model": "mock", "messages": [{"role": "user", "content": "Think."}]}
kinds = {}
for name, request in {
    "plain": prompt | {"max_tokens": 30},
    "thinking": prompt | {"max_tokens": 330, "thinking": thinking},
}.items():
    with client.stream(request) as exchange:
        kinds[name] = [delta.kind for delta in exchange]
    used = exchange.message.usage
    visible = used["output_tokens"] - used["output_tokens_details"]["thinking_tokens"]
    print(f"{name:<9} {used['output_tokens']} tokens billed, {visible} of them visible")
assert used["output_tokens"] == 11 * visible
shown = [kind for kind in kinds["thinking"] if kind in ("thinking", "text")]
assert shown == sorted(shown, reverse=True)

# %% [markdown]
# Eleven times the bill for an answer as long, and 300 decode steps before it begins: **[measured here, length of the
# thought set by us]**. Article B says a 200-token answer may cost thousands of decode steps: 2,000 thoughts and 200
# words are the same factor.
#
# ### 8. The same in Chinese uses up the quota sooner

# %%
english = "Please move this database migration to production after the tests have passed."
chinese = "请在测试通过之后把这个数据库迁移发布到生产环境。"
sizes = [len(lab.tokenizer.encode(text)) for text in (english, chinese)]
assert 2 < sizes[1] / sizes[0] < 4 or not is_real
print(f"tokens: {sizes[0]} and {sizes[1]}; characters: {len(english)} and {len(chinese)}")

# %% [markdown]
# More than twice the tokens **[measured here]**, with *this* vocabulary, learnt from English text. Lab 04 compares
# others.
#
# ### 9. It seems to idle most of the time
#
# Each tool call is a whole request. A task with five calls, each of the same page:

# %%
PAGE = "The treasure is under the old oak. " * 8
PATH = {
    "type": "object",
    "properties": {"path": {"type": "string", "enum": ["map.txt"]}},
    "required": ["path"],
    "additionalProperties": False,
}
worker = Agent(
    client,
    model="mock",
    tools=[LocalTool("read", "Read a file.", PATH, lambda path: PAGE)],
    tool_choices=[{"type": "tool", "name": "read"}] * 5,
    options=Options(temperature=0.0, tool_choice={"type": "none"}),
    limit=OutputLimit(90, 90),
)
task = worker.run("Find the treasure.")
asked = sum(turn.stop_reason == "tool_use" for turn in task.turns)
print(f"{len(task.turns)} requests, {asked} of them only to ask for a tool")
print("read from the cache:", [f"{turn.cache_read / turn.prompt:.0%}" for turn in task.turns])
assert (len(task.turns), asked) == (6, 5)

# %%
exchanges = mock.trace.exchanges.tail(6)
served = mock.trace.requests.tail(6)
share = 1 - served.num_cached_tokens / served.num_prompt_tokens
assert share.iloc[-1] < 1 / 4
assert (exchanges.end_s - exchanges.sent_s).sum() < exchanges.end_s.iloc[-1] - exchanges.sent_s.iloc[0]
print("computed in the last request: less than a quarter of its prompt")

# %% [markdown]
# Six round trips for one answer, with little to compute in each: **[measured here]**. That 92.8 % of one author's
# replies were tool calls is **[not verifiable here: a private log]**; lab 14 shows what number of calls it stands
# for.
#
# ### 10. It reads a file that it has just read
#
# **Compaction** replaces a long conversation by a summary. We script a reader with one rule: ask for the file exactly
# when its text is not in the conversation. Its client keeps a list of what was read, and empties it at each
# compaction.


# %%
class Reader:
    """Sends what it is given, and forces a read while the page is not in the request."""

    def __init__(self, client):
        self.client, self.recorder = client, client.recorder

    def send(self, request, *, wire_id=None):
        text = json.dumps(request["messages"])
        read = {"type": "tool", "name": "read", "disable_parallel_tool_use": True}
        choice = {"type": "none"} if PAGE in text or INSTRUCTION in text else read
        return self.client.send(request | {"tool_choice": choice}, wire_id=wire_id)


def read_page(agent, path):
    agent.reads.read(path)
    return PAGE


def session(compaction):
    agent = Agent(
        Reader(client),
        model="mock",
        tools=[LocalTool("read", "Read a file.", PATH, lambda path: read_page(agent, path))],
        options=Options(temperature=0.0),
        limit=OutputLimit(90, 90),
        compaction=compaction,
    )
    turns = [turn for number in range(3) for turn in agent.run(f"Question {number}: where is it?").turns]
    print(" ".join("read" if turn.tools else {"turn": "answer"}.get(turn.kind, turn.kind) for turn in turns))
    return agent.reads


without, with_compaction = session(None), session(CompactionPolicy(1_600))
assert without.repeated == []
assert with_compaction.repeated == ["map.txt"]

# %% [markdown]
# One read without compaction, a second right after it: **[simulated: the reader is scripted; the server, the
# compaction and the list are real]**. That a particular product clears the list on purpose is **[not verifiable here:
# its author's earlier article]**.
#
# ### What output costs against input
#
# From the runs above: time for each token that was computed in a prompt, served from the cache, and generated.

# %%
again = hits.loc["same"]
new = (first.ttft_ms - again.ttft_ms) / again.num_cached_tokens
cached = again.ttft_ms / again.num_prompt_tokens
assert first.itl_ms > 4 * new or not is_real
assert new > 2 * cached or not is_real
print("output > input > cached input, each by more than a factor of 2")

# %%
spans = changed.trace.spans
tokenizing = spans[spans.name == "tokenize"].duration_ms.sum()
assert tokenizing < first.ttft_ms / 20 or not is_real
print("cutting a prompt into tokens: less than a twentieth of the wait for computing it")

# %% [markdown]
# **[measured here]** Output is serial, one token a step; input is computed together, and reused. (Output is reused
# too, as input of the next turn: what cannot be cached is its *making*.) Cutting text into tokens is cheap, as
# article B says, and yet everything above is counted in tokens.
#
# A price is a business decision, as article A says. With prices relative to input, which you may edit (5 for output,
# 0.1 for a cache read, 1.25 for a cache write are common multiples in public lists, **[not verifiable here: prices
# change]**):

# %%
PRICE = {"new": 1.0, "write": 1.25, "read": 0.1, "output": 5.0}


def bill(**tokens):
    return sum(PRICE[kind] * count for kind, count in tokens.items())


INPUT, OUTPUT = 1.9e9, 1.12e7
assert PRICE["output"] / PRICE["read"] > 10
print(f"tokens {INPUT / OUTPUT:.0f}:1")
for rest in ("new", "write"):
    for_input = bill(read=0.895 * INPUT, **{rest: 0.105 * INPUT})
    ratio = for_input / bill(output=OUTPUT)
    print(f"cost {ratio:.1f} : 1, input is {ratio / (1 + ratio):.0%} of the bill, if the rest is {rest}")
bill_guess.reveal("input" if ratio > 1 else "output")

# %% [markdown]
# Article A gives 1.9 thousand million input tokens, 11.2 million output tokens and 89.5 % cache reads, and says that
# the cost is far from 170:1. Right: **[computed]**. It advises to save output rather than input. **[corrected: per
# token, yes; on its own totals input is most of the bill, so a tenth less input saves more than a tenth less
# output]** For *time*, the advice holds: see row 1.

# %%
per_token = PRICE["output"] / (for_input / INPUT)
assert 20 < per_token < 30
assert bill(write=1) + bill(read=1) < 2 * bill(new=1)
print(f"a token of output costs as much as {per_token:.0f} average tokens of input")
print("writing a prefix to the cache pays from its second use")

# %% [markdown]
# The discount that article B mentions is in `usage`, which the two APIs write differently: `input_tokens` leaves
# cached tokens out, `prompt_tokens` has them inside.

# %%
views.usage_ledger(mock.trace, served.request_id.iloc[-1])

# %% [markdown]
# ## Explain
#
# Half of these rows come down to one loop, which looks for a prompt's blocks in the cache and stops at the first
# miss:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.prefix_hash import HashIndex

excerpt(HashIndex.match, "for start in range", 8)

# %% [markdown]
# `digest` covers a block *and all before it*, so a change at the start changes every digest. What is not found is
# computed in the request's first steps, and nobody gets a word before that is done: rows 1, 2, 5, 6 and 9. The other
# half is decode: one token a step, each step reading weights and keys and values, together with whoever is in the
# batch: rows 3, 4 and 7. Rows 8 and 10 are decided before the model: how many tokens a text becomes, and what a
# client sends.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. What was computed
#
# *Easy, 3 minutes.* With the word in the middle: how many prompt tokens were computed?
#
# <details><summary>Hint</summary>
#
# Everything is in the row `middle` of `hits`. One column counts all prompt tokens, another those that did not have to
# be computed.
#
# </details>

# %% tags=["exercise"]
computed_answer = ...
check.lab15.q1(computed_answer, hits)

# %% tags=["solution"]
computed_answer = hits.num_prompt_tokens["middle"] - hits.num_cached_tokens["middle"]
check.lab15.q1(computed_answer, hits)

# %% [markdown]
# ### 2. How much is hit
#
# *Medium, 10 minutes.* A prompt of `num_tokens` was just sent. Now the token at index `changed` is another one. How
# many tokens come from the cache?
#
# <details><summary>Hint</summary>
#
# Which blocks lie wholly before the change? `changed` may also be `num_tokens`, so that nothing differs: then think
# of the token that is always computed.
#
# </details>


# %% tags=["exercise"]
def hit_tokens(changed, num_tokens, block_size):
    return ...


check.lab15.q2(hit_tokens)


# %% tags=["solution"]
def hit_tokens(changed, num_tokens, block_size):
    return min(changed, num_tokens - 1) // block_size * block_size


check.lab15.q2(hit_tokens)

# %% [markdown]
# ### 3. The bill
#
# *Medium, 10 minutes.* From the counts of a Chat Completions `usage`, in hundredths of the price of an input token:
# input 100, cached input 10, output 500.
#
# <details><summary>Hint</summary>
#
# In this API `cached_tokens` are a part of `prompt_tokens`. Split the prompt into two parts, so that each token is
# billed once.
#
# </details>


# %% tags=["exercise"]
def cost(prompt_tokens, cached_tokens, completion_tokens):
    return ...


check.lab15.q3(cost)


# %% tags=["solution"]
def cost(prompt_tokens, cached_tokens, completion_tokens):
    return 100 * (prompt_tokens - cached_tokens) + 10 * cached_tokens + 500 * completion_tokens


check.lab15.q3(cost)

# %% [markdown]
# ## Break it
#
# Peak time with too little memory: the pool has 40 blocks, eight neighbours want more.

# %%
seen, crowded = at_peak(8, num_blocks=40)
assert crowded.check() == []
assert crowded.requests.num_preemptions.sum() >= 1
assert crowded.requests.num_preempted_tokens.sum() > 0
print("preemptions:", crowded.requests.num_preemptions.sum(), " computed again:", end=" ")
print(crowded.requests.num_preempted_tokens.sum(), "tokens; the probe", seen)

# %%
views.batch_lanes(crowded)

# %%
mock.close()
lab.close()

# %% [markdown]
# Work was thrown away and done again, at the very time when there was most to do. It shows as a pause in the middle
# of an answer, for one user and not for the others.
#
# ## Recap
#
# - How long until the first word? Ask how much of the prompt is not in the cache.
# - How fast does it flow? Ask how long the context is, who else is in the batch, and who just arrived.
# - How dear is it? Count output and thinking first per token, then look at the totals: input is many times more.
# - Why did it get slower from one request to the next? Compare the prompts from the front; the first difference
#   decides.
#
# ## Next
#
# Take a complaint of your own, and find its row: `lab.trace.schedule` says for every step why a request waited. All of
# this was one model on one machine; lab 16 begins with what fits on one, and what to do when it does not.
