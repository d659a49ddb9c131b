# %% [markdown]
# # Watch a server that is not yours
#
# **Goal.** Given nothing but an address and a key, you can say how a server treats your requests, what it will charge,
# which of its inner workings you have measured, and which you only guess.
#
# **Time.** 20 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters, fetched once); twice, in two processes, so about 3 GB of memory.
# No GPU; no network once the model is there.

# %%
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep, time_ns

import pandas as pd

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.client.metrics import scrape
from llmlab.client.proxy import Proxy
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import AuthenticationFailed, ClientError, IdleTimeout
from llmlab.client.timeouts import Timeouts
from llmlab.labs.elsewhere import Elsewhere, server_arguments
from llmlab.labs.excerpt import excerpt
from llmlab.trace.readings import HITS, OUTPUT_TOKENS, PROMPT_TOKENS, QUERIES
from llmlab.trace.recorder import Recorder
from llmlab.widgets import dashboard

OTHERS = os.environ.get("LLMLAB_UPSTREAM", "")  # the address of a vLLM, SGLang or llama.cpp server, if you have one
lab = llmlab.open(dtype="float32", num_blocks=96)
is_real = lab.loaded is not None  # the stand-in without weights runs this too, but says and takes something else

# %% [markdown]
# Every lab before this one could look inside. Here the server runs in another process, and this notebook knows its
# address only, which is all that anybody knows of a paid API. It is `llmlab serve`, so that the notebook runs anywhere;
# with the environment variable `LLMLAB_UPSTREAM` it is any server that speaks Chat Completions, put behind our gateway.
# Section *Point it at your own* has the commands.
#
# Badges say how each statement was checked: **[measured here]**, **[computed]**, **[on the wire]**, **[not verifiable
# here: why]**.
#
# ## Predict

# %%
hit_guess = predict(
    "You send the same long prompt again. What changes for you?",
    ["nothing", "only the wait", "only the bill", "the wait and the bill"],
)
hit_guess

# %%
dead_guess = predict(
    "The server dies in the middle of an answer. What do you know for certain?",
    ["the text so far", "the text and its price", "nothing"],
)
dead_guess

# %% [markdown]
# ## Run
#
# First the half that is ours: four prompts, answered by the engine in this process with the likeliest token each time.
# Then the engine is closed and the other server started.

# %%
PROMPTS = (
    "Name the capital of France.",
    "Repeat this text: 你好，世界 🦊",
    "Write a Python function that adds two numbers.",
    "List three colours.",
)
ours = [lab.ask(prompt, max_tokens=16) for prompt in PROMPTS]
lab.close()
server = Elsewhere(*server_arguments(lab.model, OTHERS))

# %%
recorder = Recorder()
client = llmlab.connect(server.url, api_key="not-a-real-key", recorder=recorder)
(model, *_) = [each["id"] for each in client.models()]


def body(prompt, max_tokens=16):
    """A request for the likeliest tokens."""
    talk = [{"role": "user", "content": prompt}]
    return {"model": model, "max_tokens": max_tokens, "temperature": 0, "messages": talk}


def prompt_tokens(usage):
    """All tokens of the prompt: new ones, those written to the cache, those read from it."""
    return usage["input_tokens"] + usage["cache_creation_input_tokens"] + usage["cache_read_input_tokens"]


theirs = [client.send(body(prompt)) for prompt in PROMPTS]
print(theirs[0].text if is_real else "an answer without meaning")

# %% [markdown]
# ## Observe
#
# ### Is it the same model?
#
# A name proves nothing; answers do. In float32, with equal weights and the same template, two engines of different make
# should choose the same tokens. Text, prompt tokens and output tokens of each:

# %%
rows = []
for prompt, run, message in zip(PROMPTS, ours, theirs, strict=True):
    same = (
        message.text == run.text,
        prompt_tokens(message.usage) == run.usage["prompt_tokens"],
        message.usage["output_tokens"] == run.usage["output_tokens"],
    )
    rows.append((prompt, *same))
agreed = pd.DataFrame(rows, columns=["prompt", "same text", "same prompt tokens", "same output tokens"])
assert OTHERS or not is_real or agreed.iloc[:, 1:].all(axis=None)
agreed

# %% [markdown]
# If only the texts differ, look at precision (bfloat16 rounds near ties the other way) and at quantised weights; if the
# prompt tokens differ, at the chat template. The table is our engine in two processes **[measured here]**; against a
# vLLM server on the same weights in float32 it says what you see when you run it there.
#
# ### Your half of every exchange
#
# The client recorded what it sent and when each piece came. That needs nothing from the server:

# %%
trace = llmlab.Trace(recorder.snapshot())
assert len(trace.exchanges[trace.exchanges.path == "/v1/messages"]) == len(PROMPTS)
views.exchanges(trace)

# %% [markdown]
# A page for that, live: a form, every exchange, and the server's own metrics, asked every second.

# %%
live = dashboard(client)
live

# %% [markdown]
# **Time to first token** (TTFT) and **inter-token latency** (ITL) as you meet them, not as the server counts them:


# %%
def waits(message):
    """TTFT, and the mean time from one output token to the next, in seconds."""
    took = message.timings
    return took.first_delta, (took.end - took.first_delta) / max(1, message.usage["output_tokens"] - 1)


for message in theirs:
    first, between = waits(message)
    assert 0 < first < message.timings.end
    assert between > 0

# %% tags=["nbval-ignore-output"]
pd.DataFrame([waits(message) for message in theirs], index=PROMPTS, columns=["TTFT (s)", "ITL (s)"]).round(3)

# %% [markdown]
# A TTFT holds the way there, the wait in a queue and the prefill, and no client can take them apart: **[not verifiable
# here: only the server has the other two clocks]**. What you *can* do is change one of them. Distance is a floor under
# every wait, whatever the prompt (article A, section 5.1). A proxy adds 200 ms to the way, a delay put in on purpose
# **[measured here]**:

# %%
with (
    Proxy(server.url, rtt_s=0.2, recorder=recorder) as proxy,
    llmlab.connect(proxy.url, recorder=recorder) as far,
):
    farther = [waits(far.send(body(PROMPTS[0]))) for _ in range(3)]
assert min(first for first, _ in farther) > 0.2
print("from afar no answer began within 0.2 s; the way is in the wait for the first token")

# %% [markdown]
# Where it ran is a field of `usage`, if the server tells. Article A saw `global` in 63 % of its replies, and in 36 %
# what is here **[not verifiable here: its author's log]**; it means that the server does not say **[on the wire]**:

# %%
theirs[0].usage["inference_geo"]

# %% [markdown]
# ### The cache, from outside
#
# The same long prompt twice. `usage` says what was read from the server's prefix cache, and the wait confirms it:

# %%
document = " ".join(f"Item {number} costs {number * 7 % 50} coins." for number in range(40 if is_real else 12))
fresh = f"Visit {time_ns()}. " if OTHERS else ""  # such a server may remember an earlier run of this cell
question = body(f"{fresh}{document} Which item is the cheapest?", 4)
cold, warm = client.send(question), client.send(question)
share = warm.usage["cache_read_input_tokens"] / prompt_tokens(warm.usage)
assert prompt_tokens(cold.usage) == prompt_tokens(warm.usage)
assert share > 0.9 or OTHERS
assert OTHERS or not is_real or waits(warm)[0] < waits(cold)[0]
print("read from the cache: more than nine tenths of the prompt" if share > 0.9 else f"{share:.0%} of the prompt")
hit_guess.reveal("the wait and the bill")

# %% [markdown]
# Counts of hits even give away something inside. A cache keeps whole blocks, so every count is a multiple of the
# block's size (lab 09):

# %%
cached = []
for number in (40, 60, 75, 100):
    again = body(f"Text {number}: " + "word " * number, 1)
    client.send(again)
    cached.append(client.send(again).usage["cache_read_input_tokens"])
cached

# %% [markdown]
# Exercise 1 finds the size in them.
#
# ### What the server says about itself
#
# Many servers publish **counters** at `/metrics`, totals since they began. Ours uses vLLM's names, so one reader does
# for both. Two readings, and between them three requests of yours and one of somebody else's:

# %%
readings = [scrape(server.url)]
mine = [client.send(body(f"Say {word}.", 6)) for word in ("one", "two", "three")]
with llmlab.connect(server.url) as somebody:
    other = somebody.send(body("Say something else.", 6))
sleep(0.5)  # a server may count a little after it answered
readings.append(scrape(server.url))
NAMES = {"prompt tokens": PROMPT_TOKENS, "output tokens": OUTPUT_TOKENS, "looked up": QUERIES, "found": HITS}
told = {name: key for name, key in NAMES.items() if key in readings[1].values}
grew = {name: int(readings[1].values[key] - readings[0].values.get(key, 0)) for name, key in told.items()}
used = {
    "prompt tokens": sum(prompt_tokens(message.usage) for message in mine),
    "output tokens": sum(message.usage["output_tokens"] for message in mine),
    "looked up": sum(prompt_tokens(message.usage) for message in mine),
    "found": sum(message.usage["cache_read_input_tokens"] for message in mine),
}
table = pd.DataFrame({"the server counted": grew, "your replies say": {name: used[name] for name in told}})
table["somebody else's"] = table["the server counted"] - table["your replies say"]
assert table["somebody else's"]["prompt tokens"] == prompt_tokens(other.usage)
assert table["somebody else's"]["output tokens"] == other.usage["output_tokens"]
table

# %% tags=["nbval-ignore-output"]
views.server_metrics(readings)

# %% [markdown]
# The two books agree to the token **[measured here]**: what the counters have and your ledger has not is other
# people's. A counter cannot say *whose*, nor when between two readings, and it starts again at 0 with the server
# (exercise 2). A gauge such as *running* shows the moment of the reading and nothing between. A paid API publishes none
# of them: there, your own ledger is all you have.
#
# ### The bill
#
# Prices are not part of any protocol. Put your provider's into the table (per million tokens; these are invented, with
# the proportions that lab 15 discusses):

# %%
PRICE = {
    "input_tokens": 3.00,
    "cache_creation_input_tokens": 3.75,
    "cache_read_input_tokens": 0.30,
    "output_tokens": 15.0,
}


def cost(usage):
    return sum(price * usage[name] for name, price in PRICE.items()) / 1e6


ledger = [*theirs, cold, warm, *mine]
total = sum(cost(message.usage) for message in ledger)
assert cost(warm.usage) < cost(cold.usage) or OTHERS
of_output = sum(PRICE["output_tokens"] * message.usage["output_tokens"] for message in ledger) / 1e6 / total
assert 0 < of_output < 1
print(len(ledger), "replies in the ledger;", "the second long prompt is cheaper than the first")

# %% [markdown]
# **[computed]** from counts that the server reported itself. Whether it counts honestly can be checked in part: a
# prompt's tokens with the model's own tokenizer (`count_tokens`, or the table above), an output's by asking for exactly
# `max_tokens`. Thinking that is billed and not shown cannot be checked **[not verifiable here: it never leaves]**.
#
# ### Refused, and asked again
#
# A server you do not own is sometimes full. This one says so twice (a fault made on purpose), then serves. The client
# waits as long as it is told:

# %%
slept = []
patient = llmlab.connect(server.url, recorder=recorder, retries=RetryPolicy(max_retries=3), sleep=slept.append)
served = patient.send(body(PROMPTS[0], 4), {"llmlab-fault": "status=529x2"})
assert served.attempts == 3
assert len(slept) == 2
print(served.attempts, "attempts for one answer; refused ones cost waits and no tokens")

# %% [markdown]
# ### The key stays here
#
# `client` was given a key. It travels in one header, and nothing that was recorded holds it:

# %%
recorded = llmlab.Trace(recorder.snapshot()).wire.text.str.cat(sep="\n")
assert "Name the capital of France." in recorded
assert "not-a-real-key" not in recorded
recorded.count("not-a-real-key")

# %% [markdown]
# ### Inside and outside
#
# | | from outside | only inside |
# |---|---|---|
# | the wait for the first token | its length | what of it was queue, prefill or way |
# | the pace | time between pieces | batch size, other requests, preemption |
# | the prefix cache | hits in `usage`, the block's size | what else is kept, and for how long |
# | the model | its answers | its weights, their precision, a change overnight |
# | speculation | several tokens in one piece, perhaps | drafts, acceptance |
# | the bill | reported counts | counting itself, hidden thinking |
# | load | refusals, gauges where published | who causes it, how replicas are chosen |
#
# The right column is what labs 06 to 13 show, because there the engine is yours. For somebody else's server those
# statements are **general principle** and no measurement.
#
# ## Point it at your own
#
# Start a server, or take one that runs, and give this notebook its address before the kernel starts:
#
# ```bash
# # vLLM, port 8000
# vllm serve HuggingFaceTB/SmolLM2-135M-Instruct --dtype float32 --enable-prompt-tokens-details
# # SGLang, port 30000
# python -m sglang.launch_server --model-path MODEL --enable-metrics --enable-cache-report
# # llama.cpp, port 8080
# llama-server -m MODEL.gguf --metrics --jinja
#
# LLMLAB_UPSTREAM=http://127.0.0.1:8000 llmlab lab 20
# ```
#
# The same variable puts that server behind the labs that ask over HTTP (01, 02, 13, 14); cells that read the engine's
# own trace fail there, because that engine saw no request. `python -m llmlab.labs.against URL` says which. Without a
# notebook:
#
# ```bash
# llmlab serve --no-engine --upstream http://127.0.0.1:8000     # both protocols before it, one address
# ```
#
# A paid API that speaks Chat Completions is an upstream too; its key goes into the environment variable
# `LLMLAB_UPSTREAM_API_KEY`, where no process list shows it. One that speaks Messages needs no gateway:
# `llmlab.connect("https://...", api_key=os.environ["..."])`. Put a key into the environment or ask for it with
# `getpass`; never into a cell, because a notebook is a file that is passed on. The gateway passes on what vLLM says
# about itself at `/metrics`; SGLang and llama.cpp use names of their own, so there the table above is shorter.
#
# ## Explain
#
# A reply begins with the first chunk that carries something, and its counts go into one ledger:

# %% tags=["nbval-ignore-output"]
from llmlab.gateway.upstream_chunks import ChunkUsage
from llmlab.gateway.upstream_reader import ChunkReader

excerpt(ChunkReader.feed, containing="if not self._started", lines=3)

# %% tags=["nbval-ignore-output"]
excerpt(ChunkUsage.usage.fget, containing="details = ", lines=4)

# %% [markdown]
# Those lines stand in the gateway, and read the stream of another server. The first chunk of most servers names a role
# and holds no text, so the time to the first token would be wrong with it. Each prompt token is in exactly one place of
# the ledger, and what a server does not count is not made up. That is the whole bridge: one internal form of a request
# and of a reply, and a writer and a reader for each protocol. What the other protocol has no place for is dropped, and
# named in the header `llmlab-ignored`.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Measure a block
#
# *Easy, 5 minutes.* `counts` are cached tokens of several requests, each a whole number of blocks. The size of a block,
# as large as they allow?
#
# <details><summary>Hint</summary>
#
# The size divides every count. Which function of `math` gives the largest number that does?
#
# </details>


# %% tags=["exercise"]
def block_size(counts):
    return ...


check.lab20.q1(block_size)

# %% tags=["solution"]
from math import gcd


def block_size(counts):
    return gcd(*counts)


print("this server's block:", block_size(cached), "tokens")
check.lab20.q1(block_size)

# %% [markdown]
# ### 2. Read a counter
#
# *Medium, 10 minutes.* `readings` of one counter, in order; the server may have started again in between. How much was
# counted from the first reading to the last, as far as they tell?
#
# <details><summary>Hint</summary>
#
# Go through neighbours. A counter that is lower than before began at 0: how much has it counted since then?
#
# </details>


# %% tags=["exercise"]
def counted(readings):
    return ...


check.lab20.q2(counted)

# %% tags=["solution"]
from itertools import pairwise


def counted(readings):
    return sum(later - earlier if later >= earlier else later for earlier, later in pairwise(readings))


check.lab20.q2(counted)


# %% [markdown]
# ### 3. Write the other bill
#
# *Medium, 10 minutes.* In Chat Completions `prompt_tokens` has the cached ones inside. A token costs 30 as new input, 3
# when it was cached, 150 as output. The price of a request?
#
# <details><summary>Hint</summary>
#
# Split the prompt into two parts first; every token is paid once. Compare with `cost` above, where the protocol has
# split it already.
#
# </details>


# %% tags=["exercise"]
def bill(prompt, cached, output):
    return ...


check.lab20.q3(bill)


# %% tags=["solution"]
def bill(prompt, cached, output):
    return (prompt - cached) * 30 + cached * 3 + output * 150


check.lab20.q3(bill)

# %% [markdown]
# ## Break it
#
# A wrong key, at a server that asks for one (in this process, for once):

# %%
with TemporaryDirectory() as folder, llmlab.open("mock", num_blocks=64) as guarded:
    keys = Path(folder) / "keys"
    keys.write_text("the-right-key alice\n")
    keys.chmod(0o600)
    with guarded.serve(keys_file=keys, drain_s=0) as desk, llmlab.connect(desk.url, api_key="the-wrong-key") as wrong:
        try:
            wrong.send(body(PROMPTS[0]) | {"model": "mock"})
        except AuthenticationFailed as error:
            refused = error
assert "the-wrong-key" not in str(refused)
print(type(refused).__name__, refused.status, "after", refused.attempts, "attempt")

# %% [markdown]
# One attempt: trying again cannot help, and the message does not repeat the key. Next, a server that goes silent in the
# middle of an answer (on purpose, after 4 frames). Slow and dead look alike from here; a clock of your own decides:

# %%
brisk = llmlab.connect(server.url, recorder=recorder, retries=RetryPolicy(max_retries=0), timeouts=Timeouts(idle_s=1.0))
try:
    brisk.send(body(PROMPTS[3]), {"llmlab-fault": "stall=4"})
except IdleTimeout as error:
    silent = error
assert not silent.partial.is_complete
print(type(silent).__name__, "| complete:", silent.partial.is_complete)

# %% [markdown]
# Last, the server dies in the middle of an answer:

# %%
hasty = llmlab.connect(server.url, recorder=recorder, retries=RetryPolicy(max_retries=0))
try:
    with hasty.stream(body("Tell me a long story about a fox.", 400 if is_real else 3000)) as exchange:
        for number, _ in enumerate(exchange):
            if number == 5:
                server.kill()
except ClientError as error:
    lost = error
assert lost.partial.text
assert not lost.partial.is_complete
assert lost.partial.stop_reason is None
print("some text:", bool(lost.partial.text), "| complete:", lost.partial.is_complete, "| server:", server.is_running)
dead_guess.reveal("the text so far")

# %%
try:
    hasty.send(body(PROMPTS[0]))
except ClientError as error:
    print(type(error).__name__)
for each in (client, patient, brisk, hasty):
    each.close()

# %% [markdown]
# The text so far is certain. How many tokens were made, and whether they are charged, is not: the count comes with the
# end, and the end never came. Keep the client's id of the request, the provider's log has the rest. A request sent to
# an address where nobody listens fails in another way, and that one is safe to repeat.
#
# ## Recap
#
# - An address gives you text, counts and moments. Everything else about the server is inference; say so.
# - Compare greedy answers before you believe a model's name, and prompt tokens before you blame the model.
# - Hits show twice, in `usage` and in the wait, and their counts give away the block.
# - Counters tell totals of everybody; your own ledger is what you can be charged for.
# - Which failures may be repeated without paying twice, and which leave you not knowing?
#
# ## Next
#
# This is the last lab. Take one question of your own about a server that you use, decide which of the columns above it
# belongs to, and measure it.
