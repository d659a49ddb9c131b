# %% [markdown]
# # Hand out K/V memory in pages and share prefixes
#
# **Goal.** You watch an engine hand out memory block by block, find blocks again that were computed before, copy and
# evict them, and can predict to the token what a prompt gets from the cache.
#
# **Time.** 25 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU; no network once the model is there. Labs 00 and 08 help.

# %%
import random
from time import process_time

import pandas as pd

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.labs.excerpt import excerpt
from llmlab.widgets import dashboard

lab = llmlab.open(dtype="float32", threads=1, num_blocks=64)
weights = lab.loaded is not None  # the repository's quick tests run this notebook on a model without weights
lab.model

# %% [markdown]
# The pool of K/V memory is cut into **blocks** (also: pages) of 16 tokens. A request's **block table** says in which
# block each 16 of its positions lie, so they may lie anywhere. A full block gets a hash, chained on the blocks before
# it; the **prefix cache** finds it by that when another prompt begins the same way.
#
# ## Predict

# %%
again_guess = predict("A prompt of 40 tokens, sent a second time: how many come from the cache?", [0, 32, 39, 40])
again_guess

# %%
front_guess = predict("The same prompt with its first token replaced: how many?", [0, 16, 31, 32])
front_guess

# %% [markdown]
# ## Run
#
# The panel shows the blocks of the pool while the next cells work.

# %%
live = dashboard(lab, ["block_map"])
live

# %%
rng = random.Random(9)


def prompt(length):
    return rng.choices(range(40, 250), k=length)


known = prompt(40)
cold, warm = (lab.ask(known, max_tokens=1) for _ in range(2))
assert cold.token_ids == warm.token_ids
again_guess.reveal(warm.usage["cached_tokens"])

# %%
replaced = lab.ask([known[0] + 1, *known[1:]], max_tokens=1)
inserted = lab.ask([*known[:20], 39, *known[20:]], max_tokens=1)
front_guess.reveal(replaced.usage["cached_tokens"])
print("one token inserted at position 20:", inserted.usage["cached_tokens"])

# %% [markdown]
# ## Observe
#
# ### Only whole blocks, never the last token

# %%
rows = []
for length in (31, 32, 33, 37, 48, 49):
    tokens = prompt(length)
    lab.ask(tokens, max_tokens=1)
    second = lab.ask(tokens, max_tokens=1)
    given = second.trace.steps.num_tokens.iloc[0]  # tokens the forward pass was given, embedding included
    assert given == length - second.usage["cached_tokens"]
    rows.append((length, second.usage["cached_tokens"], given))
pd.DataFrame(rows, columns=["prompt", "from the cache", "computed"])

# %% [markdown]
# Hits are the first so-many whole blocks, and at least one token is computed, since its logits are needed (article A,
# section 5.6, **[measured here]**). What is hit is not even looked up in the embedding (section 4.1): the model never
# sees it. A change at the front costs everything behind it. Engines that share token by token exist; this is a rule
# of blocks.

# %%
views.block_map(lab.trace)

# %% [markdown]
# No request is running, and blocks are still *cached* (dashed): unused, but findable until their memory is needed. How
# much time a hit saves, with a prompt of 512 tokens:


# %%
def compute_s(tokens):
    start = process_time()
    run = lab.ask(tokens, max_tokens=1)
    return process_time() - start, run


long = prompt(512)
(cold_s, _), (warm_s, second) = compute_s(long), compute_s(long)
assert second.usage["cached_tokens"] == 496
assert not weights or cold_s > 3 * warm_s
print("the first token needs less than a third of the computing" if weights else "no weights")

# %% [markdown]
# **[measured here]**. A system prompt is what requests most often have in common:

# %%
SYSTEM = "You are a patient librarian. Answer in one short sentence and name a book when you can."
first = lab.ask(f"{SYSTEM}\nWho wrote Faust?", raw=True, max_tokens=1)
other = lab.ask(f"{SYSTEM}\nWhat is a sonnet?", raw=True, max_tokens=1)
pairs = zip(first.prompt_token_ids, other.prompt_token_ids, strict=False)
common = next(i for i, (a, b) in enumerate(pairs) if a != b)
assert other.usage["cached_tokens"] == common // 16 * 16
print(f"{common} tokens in common, {other.usage['cached_tokens']} from the cache")
lab.close()

# %% [markdown]
# Article B ("The POST leaves your laptop") promises this for its own example **[measured here]**; there, by Llama 3's
# tokenizer, exactly 16 tokens are common, one block, and Anthropic's service would not cache so short a prefix.
#
# From here on a model without weights serves: its tokens are bytes, its blocks are managed by the same code.
#
# ### Pages


# %%
def table_of(run):
    return next(r.block_table for r in paged.engine.scheduler.running if r.id == run.id)


paged = llmlab.open("mock", num_blocks=19, background=False)
leaving, staying = paged.submit([65] * 50, max_tokens=4), paged.submit([66] * 50, max_tokens=200, ignore_eos=True)
leaving.wait()
newcomer = paged.submit([67] * 100, max_tokens=100, ignore_eos=True)
while len(newcomer.token_ids) < 60:
    paged.engine.step()
    for request in paged.engine.scheduler.running:
        assert len(request.block_table) == -(-request.num_computed // 16)
at = paged.trace.steps.step.max()
tables = [table_of(staying), table_of(newcomer)]
assert tables[1] != sorted(tables[1])
print(*tables, sep="\n")

# %%
views.block_map(paged.trace, at)

# %% [markdown]
# Tables grow by a block when one is full, and the blocks come in no order of place: logical order is the table's
# (article A, section 5.6, **[measured here]**). When a request leaves or is aborted, its blocks go back:

# %%
newcomer.abort()
staying.wait()
counts = paged.trace.steps
assert (counts.free + counts.cached + counts.used == 19).all()
assert paged.engine.pool.num_used == 0
print(paged.engine.pool.num_used, "used,", paged.engine.pool.num_cached, "cached,", paged.engine.pool.num_free, "free")
paged.close()

# %% [markdown]
# In each step free, cached and used blocks were 19 together (article B, "Your request is not alone",
# **[measured here]**).
#
# ### What a reservation wastes
#
# Older servers reserved one piece per request, as long as a sequence may become. 40 requests of 100 to 500 tokens with
# answers of 20 to 60, 1,024 allowed: two allocators are **[simulated]**, the third is our engine.

# %%
mix = [(rng.randint(100, 500), rng.randint(20, 60)) for _ in range(40)]
with llmlab.open("mock", num_blocks=400, max_num_seqs=16, max_num_batched_tokens=2048, background=False) as busy:
    runs = [busy.submit(prompt(length), max_tokens=answer, ignore_eos=True) for length, answer in mix]
    for run in runs:
        run.wait()
    growth = views.kv_growth(busy.trace).table()
held = [length + answer - 1 for length, answer in mix]
reserved, doubled = 1024 * len(held), sum(1 << (tokens - 1).bit_length() for tokens in held)
waste = {
    "reserve 1,024": 1 - sum(held) / reserved,
    "reserve the next power of two": 1 - sum(held) / doubled,
    "blocks of 16, measured": growth.unfilled_slots.sum() / (growth.used_blocks.sum() * 16),
}
assert 0.6 < waste["reserve 1,024"] < 0.8
assert waste["blocks of 16, measured"] < 0.04
print(
    f"2,000 tokens in a place for 200,000: {1 - 2_000 / 200_000:.0%} unused; in blocks of 16 at most {15 / 2_000:.2%}"
)
for name, share in waste.items():
    print(f"{name}: {share:.0%} wasted")

# %% [markdown]
# With these lengths, the 60 to 80 % and under 4 % that article A (section 5.6) quotes from the PagedAttention paper are
# met; other lengths give other shares. Both are about K/V memory alone. 2,000 of 200,000 is **[computed]**.
#
# ### Sharing inside a request, and copying
#
# Four samples of one prompt share its blocks. The last one is not full; whoever writes into it while others hold it
# gets a copy first (**copy-on-write**).

# %%
samples = llmlab.open("mock", num_blocks=24, background=False)
run = samples.submit(prompt(40), n=4, max_tokens=9, temperature=1.0, seed=1, ignore_eos=True)
samples.engine.step()
shared = [samples.engine.pool.blocks[block].ref_count for block in samples.engine.scheduler.running[0].block_table]
samples.engine.step()
after = samples.trace
run.wait()
actions = run.trace.blocks.action.value_counts()
print("held by", shared, "tables; copies:", actions["copy"])
assert shared == [4, 4, 4]
assert actions["copy"] == 3

# %%
views.block_map(after)

# %% [markdown]
# Three copies for four samples: the last one may keep the original. This is the sharing of the paper; finding prefixes
# of *other* requests is a second mechanism on top of pages, and can be switched off (article A, section 5.6,
# **[measured here]**):

# %%
twice = prompt(40)
with llmlab.open("mock", prefix_cache="off", background=False) as off:
    uncached = [off.ask(twice, max_tokens=1).usage["cached_tokens"] for _ in range(2)]
cached = [samples.ask(twice, max_tokens=1).usage["cached_tokens"] for _ in range(2)]
print("prefix cache off:", uncached, "- on:", cached)
samples.close()

# %% [markdown]
# ### Twenty requests with one system prompt
#
# 64 tokens in common, 8 of their own. One after the other, one step apart, and all in the same step:

# %%
system, rows = prompt(64), []
tails = [prompt(8) for _ in range(20)]
for arrival in ("one after the other", "one step apart", "same step"):
    with llmlab.open("mock", max_num_seqs=20, max_num_batched_tokens=2048, background=False) as many:
        runs = []
        for tail in tails:
            runs.append(many.submit(system + tail, max_tokens=30, ignore_eos=True))
            if arrival == "one step apart":
                many.engine.step()
            elif arrival == "one after the other":
                runs[-1].wait()
        for run in runs:
            run.wait()
        hits = [run.usage["cached_tokens"] for run in runs]
        prefix = sum(64 - hit for hit in hits) // 64
        rows.append((arrival, hits.count(64), prefix, many.trace.steps.used.max()))
twenty = pd.DataFrame(rows, columns=["arrival", "hits", "times the prefix was computed", "most blocks used"])
assert list(twenty.hits) == [19, 19, 0]
twenty

# %% [markdown]
# Computed once and not 20 times, as article B ("Why the next token is cheap") says **[measured here]**, unless all
# arrive at once: a block can be found only after the step that computed it. Running side by side, they also hold the
# prefix once.
#
# ### What is thrown away
#
# A pool of 12 blocks. *A* and *B* leave three cached blocks each, *A* is asked again, then *C* needs eight.

# %%
small = llmlab.open("mock", num_blocks=12, background=False)
a, b, c = prompt(48), prompt(48), prompt(127)
for tokens in (a, b, a, c):
    small.ask(tokens, max_tokens=1)
evicted = small.trace.blocks.query("action == 'evict'")
owners = small.trace.blocks.query("action == 'cache'").groupby("hash", sort=False).first()
whose = dict(zip(small.trace.requests.request_id, "ABAC", strict=True))
print("evicted:", [f"{whose[owners.loc[h].request_id]}{owners.loc[h]['index']}" for h in evicted.hash])

# %%
kept = {name: small.ask(tokens, max_tokens=1).usage["cached_tokens"] for name, tokens in (("A", a), ("B", b))}
assert kept["A"] > kept["B"]
print("found again:", kept)
small.close()

# %% [markdown]
# The least recently used goes first: *A*'s third block was not used again, since a hit leaves the last token to
# compute; then come *B*'s. Of one prefix the end goes before the start: a start without its end is still useful, an
# end without its start can never be found. Nothing leaves before its memory is needed.
#
# ### Time to live is a matter of the bill
#
# Anthropic's API forgets a marked prefix after five minutes or an hour without use. Our gateway keeps that in a ledger
# of its own, here with a clock that we set **[simulated]**:

# %%
from llmlab.gateway.prompt_cache import Position, PromptCache

now = 0.0
ledger = PromptCache(min_tokens=64, clock=lambda: now)
tokens, marked = prompt(100), [Position(80, "5m")]
ledger.begin(ledger.look_up("", tokens, marked))
found = []
for now in (299.0, 598.0, 899.0):
    found.append((int(now), ledger.look_up("", tokens, marked).found))
found

# %% [markdown]
# Each use gives it five more minutes; 301 seconds without one, and it is gone. On the wire a **marker**
# (`cache_control`) says up to where a prefix is to be kept:

# %%
from llmlab.client.stream_errors import ClientError

MARK = {"cache_control": {"type": "ephemeral"}}
RULES = "Rules of the reading room: " + "whisper, and put books back. " * 4


def tool(name):
    return {"name": name, "description": f"Does {name}.", "input_schema": {"type": "object"}}


def usage(**fields):
    message = {"role": "user", "content": fields.pop("ask", "Hello?")}
    reply = client.send({"model": "mock", "max_tokens": 1, "messages": [message], **fields})
    counts = reply.usage
    return counts["cache_read_input_tokens"], counts["cache_creation_input_tokens"], counts["input_tokens"]


wire = llmlab.open("mock", num_blocks=512)
client = wire.client()
block = {"type": "text", "text": RULES}
print("block, marked:   ", usage(system=[block | MARK]))
print("the same again:  ", usage(system=[block | MARK]))
print("text, no marker: ", usage(system=RULES))
print("marked at the top:", usage(system=RULES, cache_control={"type": "ephemeral"}))

# %%
plain, as_block = usage(system=RULES, ask="Which?"), usage(system=[block], ask="Which?")
assert sum(plain) == sum(as_block)
for markers in (4, 5):
    parts = [{"type": "text", "text": RULES + str(i)} | MARK for i in range(markers)]
    try:
        usage(system=parts)
        print(markers, "markers: accepted")
    except ClientError as error:
        print(markers, "markers:", error.status)

# %%
x, y = tool("find"), tool("lend")
usage(tools=[x, y], system=[block | MARK])
changed = y | {"description": "Lends."}
cases = {"same": [x, y], "other order": [y, x], "one more": [x, y, tool("sort")], "other words": [x, changed]}
for name, tools in cases.items():
    read, *_ = usage(tools=tools, system=[block | MARK])
    print(f"{name}: {'read' if read else 'nothing read'}")
wire.close()

# %% [markdown]
# Three numbers each: read, written, neither. Text and a block give the same prompt; blocks carry markers, though a
# marker at the top of the request exists today too (article A, section 2.2: **[corrected: blocks are not the only
# place]**). Four markers at most, five give status 400. Tools come before the system prompt, so their order, number
# and words decide (section 2.7). All **[on the wire]**. A beta switch that is part of the key, flipped in the middle of
# a session, would do the same (section 2.11, **[not verifiable here: our gateway renders none]**).
#
# **[not verifiable here: internals of one company's server]**: why one client sets exactly one marker in its messages,
# pages tied to markers, local and dense pages, and a hint at the end of a session that lets its memory go (section 5.6
# and 5.6.1; the author calls these leads). Reference counts as described are what you saw above.
#
# ## Explain
#
# A hit compares whole blocks from the first one on, and stops at the first that is not there:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.blocks import BlockPool
from llmlab.engine.prefix_hash import HashIndex

excerpt(HashIndex.match, "hits: list", 11)

# %% [markdown]
# `limit` leaves the last token out, and the chained parent makes equal blocks after unequal ones differ.
# Everything unused is one list in the order in which it was given up, so taking memory is also choosing what to forget:

# %% tags=["nbval-ignore-output"]
excerpt(BlockPool._take, "block = ", 8)

# %% [markdown]
# ## Exercises
#
# ### 1. Predict a hit
#
# *Easy, 5 minutes.* A prompt of `num_prompt` tokens has its first `num_common` in common with one computed before.
#
# <details><summary>Hint</summary>
#
# There are two limits: only whole blocks are shared, and the last token of a prompt is always computed, even when all
# of it is known. Apply the second limit before you round.
#
# </details>


# %% tags=["exercise"]
def hit_tokens(num_common, num_prompt, block_size):
    return ...


check.lab09.q1(hit_tokens)


# %% tags=["solution"]
def hit_tokens(num_common, num_prompt, block_size):
    return min(num_common, num_prompt - 1) // block_size * block_size


assert hit_tokens(40, 40, 16) == warm.usage["cached_tokens"]
check.lab09.q1(hit_tokens)

# %% [markdown]
# ### 2. Count the blocks of four samples
#
# *Medium, 10 minutes.* How many blocks do `num_samples` samples hold together at their end? (At least two tokens each.)
#
# <details><summary>Hint</summary>
#
# Count the blocks of one sample at its end; the last token chosen has no keys and values. Then separate the blocks of
# the prompt that nobody writes into, which all samples share, from the others.
#
# </details>


# %% tags=["exercise"]
def sampled_blocks(num_prompt, num_output, num_samples, block_size):
    return ...


check.lab09.q2(sampled_blocks)


# %% tags=["solution"]
def sampled_blocks(num_prompt, num_output, num_samples, block_size):
    shared = num_prompt // block_size
    each = -(-(num_prompt + num_output - 1) // block_size)
    return shared + num_samples * (each - shared)


assert sampled_blocks(40, 9, 4, 16) == after.steps.used.max()
check.lab09.q2(sampled_blocks)

# %% [markdown]
# ### 3. What is left to others
#
# *Easy, 5 minutes.* Slots that blocks leave free of the `longest` that a reservation would take.
#
# <details><summary>Hint</summary>
#
# A block that is filled in part is held wholly. Count in whole blocks first, then turn them back into slots.
#
# </details>


# %% tags=["exercise"]
def slots_left(num_tokens, longest, block_size):
    return ...


check.lab09.q3(slots_left)


# %% tags=["solution"]
def slots_left(num_tokens, longest, block_size):
    return longest - -(-num_tokens // block_size) * block_size


check.lab09.q3(slots_left)

# %% [markdown]
# ## Break it
#
# Put the time of day where it looks harmless: at the top of the system prompt. Five turns of a session, one minute
# apart, against the same session with the time at the end:

# %%
history = "".join(f"Question {i}? Answer {i}. " for i in range(12))
for place in ("at the front", "at the end"):
    with llmlab.open("mock", num_blocks=256, background=False) as session:
        shares = []
        for minute in range(5):
            clock = f"It is 10:{minute:02}. "
            text = clock + RULES + history if place == "at the front" else RULES + history + clock
            turn = session.ask(text, max_tokens=1)
            shares.append(round(turn.usage["cached_tokens"] / turn.usage["prompt_tokens"], 2))
    print(f"{place}: {shares}")

# %% [markdown]
# With the time in front nearly nothing is found, although almost every character is the same: what changes belongs to
# the end. A client that keeps its prefix stable byte by byte is paid for it (article A, section 5.6).
#
# ## Recap
#
# - Why does paging waste less than one block a request, and what decides how much a reservation wastes?
# - Which of two equal prompts' tokens are computed the second time, and why at least one?
# - When is a block copied, when forgotten, and why does a prefix lose its end first?
# - What is the difference between a block that is still there and a prefix the bill calls a cache read?
#
# ## Next
#
# Lab 10 fills the batch: who runs in which step, and who waits for what.
