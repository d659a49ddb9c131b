# %% [markdown]
# # Weigh the K/V cache
#
# **Goal.** You can say for any model what a token of context costs in memory, show on a running engine that the formula
# is exact, and say what it would cost to keep nothing.
#
# **Time.** 25 minutes to read and run, 20 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU; no network once the model is there. Labs 00 and 07 help.

# %%
import random
from dataclasses import dataclass
from time import process_time

import pandas as pd
import torch

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.labs.excerpt import excerpt

lab = llmlab.open(dtype="float32", threads=1, num_blocks=120, prefix_cache="off", background=False)
weights = lab.loaded is not None  # the repository's quick tests run this notebook on a model without weights
lab.model

# %% [markdown]
# In attention each token leaves a **key** (what it is found by) and a **value** (what it gives), for every layer. Later
# tokens look at all of them; keeping them is the **K/V cache**. `prefix_cache="off"` keeps requests from sharing it,
# which is lab 09's subject; `background=False` lets us step the engine by hand.
#
# ## Predict
#
# The model has 30 layers, 9 query heads and 3 K/V heads of 64 numbers each; a float32 number has 4 bytes.

# %%
size_guess = predict("Bytes of K/V for one token?", ["1,536", "23,040", "46,080", "138,240"])
size_guess

# %%
passes_guess = predict(
    "A prompt of 36 tokens, an answer of 16, and nothing is kept between steps: tokens computed?", [51, 576, 696, 832]
)
passes_guess

# %% [markdown]
# ## Run
#
# One request, step by step, with what it holds after each.

# %%
question = "Name the capital of France."
run = lab.submit(question, max_tokens=16, ignore_eos=True)
rows = []
while not run.finished:
    lab.engine.step()
    rows += [(len(r.tokens), r.num_computed, len(r.block_table)) for r in lab.engine.scheduler.running]
held = pd.DataFrame(rows, columns=["tokens", "with K/V", "blocks"])
assert (held.tokens - held["with K/V"] == 1).all()
assert (held.blocks == -(-held["with K/V"] // 16)).all()
held.iloc[[0, 1, -2, -1]]

# %% [markdown]
# Between steps there is always one token more than keys and values: the one just chosen, which becomes input in the
# next step (article A, section 5.8, **[measured here]**). Article B ("The model draws a token") adds its column a step
# too early. The last token of an answer never has any.
#
# ## Observe
#
# ### Growth

# %%
views.kv_growth(run.trace, run.id)

# %% [markdown]
# The line jumps when a block of 16 tokens is begun, the area grows token by token. Is the formula what the engine
# really allocates? The pool's class counts the bytes of its tensors; on PyTorch's device `meta` it can be as large as
# one likes, because nothing is stored there.

# %%
from llmlab.engine.kv_pool import KVPool, LayerShape


@dataclass
class Shape:
    layers: int
    query_heads: int
    kv_heads: int
    dim: int

    def per_token(self, heads, number_bytes=2):
        return 2 * self.layers * heads * self.dim * number_bytes

    def pool(self, tokens, dtype=torch.float16):
        layer = LayerShape(self.kv_heads, self.dim, self.dim, torch.device("meta"), dtype)
        return KVPool([layer] * self.layers, tokens // 16, 16)


SHAPES = {
    "SmolLM2-135M": Shape(30, 9, 3, 64),
    "Qwen2.5-0.5B": Shape(24, 14, 2, 64),
    "Gemma 3 270M": Shape(18, 4, 1, 256),
    "Llama-3-8B": Shape(32, 32, 8, 128),
    "Llama-3-70B": Shape(80, 64, 8, 128),
}
ours = SHAPES["SmolLM2-135M"]
pool = lab.engine.runner.pool if weights else ours.pool(120 * 16, torch.float32)
assert pool.nbytes == 120 * 16 * ours.per_token(ours.kv_heads, 4)
print(f"{pool.nbytes:,} bytes for {120 * 16:,} tokens")
size_guess.reveal(f"{pool.bytes_per_token:,}")

# %% [markdown]
# Exact, for the pool the request above ran in **[measured here]**.
#
# ### The articles' numbers
#
# Query heads share K/V heads: **grouped-query attention** (GQA). One K/V head for each query head would be
# **multi-head attention** (MHA). For 16-bit numbers:

# %%
table = pd.DataFrame(
    {
        name: {
            "bytes a token": shape.per_token(shape.kv_heads),
            "query heads would give": shape.per_token(shape.query_heads),
            "times": shape.query_heads / shape.kv_heads,
            "GB at 2,000": shape.pool(2_000).nbytes / 1e9,
            "GB at 100,000": shape.pool(100_000).nbytes / 1e9,
        }
        for name, shape in SHAPES.items()
    }
).T
assert table.loc["Llama-3-70B", "bytes a token"] == 327_680
assert SHAPES["Llama-3-8B"].pool(2_000).nbytes == 250 * 2**20
assert SHAPES["Llama-3-8B"].per_token(32) * 2_000 == 1_000 * 2**20
for name, shape in SHAPES.items():
    assert shape.pool(100_000).nbytes == shape.per_token(shape.kv_heads) * 100_000, name
table.round(3).astype({"bytes a token": int, "query heads would give": int})

# %% [markdown]
# All **[computed]**, and as stated: 0.33 MB a token and about 32 GB at 100,000 for Llama-3-70B (article A, section
# 5.5; 32.8 exactly); about 250 MB at 2,000 tokens for Llama-3-8B, 1 GB with MHA, so a factor 4, and about 12.5 GB at
# 100,000 (article B; its MB are 2²⁰ bytes, in plain GB it is 13.1). Counting query heads is 4 to 8 times too much on
# the articles' models, 3 times on ours (article A, section 5.5).

# %%
cards = pd.DataFrame({"card, GB": [24, 32, 80, 141]})
cards["tokens of Llama-3-70B"] = cards["card, GB"] * 10**9 // 327_680
cards["100,000 tokens take"] = (100 * 327_680e5 / cards["card, GB"] / 1e9).round().astype(int).astype(str) + " %"
cards

# %% [markdown]
# "One request fills a whole GPU" (article A, section 5.5): **[corrected: 100,000 tokens fill a 32 GB card, but 41 % of
# an 80 GB one, weights not counted]**.
#
# ### A smaller thing to keep
#
# DeepSeek's **multi-head latent attention** (MLA) keeps one compressed vector per token and layer. The scores can be
# had from it without ever rebuilding the keys, by moving the key matrix over to the query. A toy of it:

# %%
torch.manual_seed(0)
heads, dim, latent, tokens = 4, 16, 24, 50
kept = torch.randn(tokens, latent, dtype=torch.float64)  # all that is cached of a layer
up_keys, up_values = torch.randn(2, heads, dim, latent, dtype=torch.float64)
query = torch.randn(heads, dim, dtype=torch.float64)

keys, values = (torch.einsum("hdl,tl->htd", up, kept) for up in (up_keys, up_values))
rebuilt = torch.softmax(torch.einsum("hd,htd->ht", query, keys), -1)[:, None] @ values
absorbed = torch.einsum("hd,hdl->hl", query, up_keys)
mixed = torch.softmax(absorbed @ kept.T, -1) @ kept
direct = torch.einsum("hl,hdl->hd", mixed, up_values)
assert torch.allclose(rebuilt[:, 0], direct)
print(f"cached: {kept.numel():,} numbers instead of {keys.numel() + values.numel():,}, same output")

# %%
per_token = (512 + 64) * 61 * 2
ordinary = 128 * (192 + 128) * 61 * 2
print(f"DeepSeek-V3: {per_token:,} bytes a token, {per_token * 1e5 / 1e9:.2f} GB at 100,000")
print(f"all keys and values of its 128 heads: {ordinary * 1e5 / 1e9:.0f} GB, {ordinary / per_token:.0f} times as much")

# %% [markdown]
# About 70 KB, 7 GB and hundreds of GB, as article B says **[computed]**, with two remarks: of its 576 numbers 512 are
# the latent and 64 a rotary key beside it (the toy leaves that out), and an engine need not rebuild keys and values
# **[measured here, on the toy]**. Some models save in another way: a **sliding window**, so that a layer's tokens
# see only the latest ones.

# %%
from llmlab.engine.attention import Variant, attend_prefill

query, keys, values = torch.randn(1, 1, 64, 16), torch.randn(1, 64, 16), torch.randn(1, 64, 16)
changed = keys.clone()
changed[:, 0] += 5  # the oldest key
moved = {}
for window in (8, 0):
    variant = Variant(scale=0.25, window=window)
    difference = attend_prefill(query, keys, values, variant) - attend_prefill(query, changed, values, variant)
    moved[window] = int((difference.abs().amax(-1) > 0).sum())
print(f"positions that notice the oldest key: {moved[8]} with a window of 8, {moved[0]} without")
full, sliding = 3, 15  # layers of Gemma 3 270M; its window is 512
share = (sliding * 512 + full * 8192) / ((sliding + full) * 8192)
print(f"Gemma 3 270M at 8,192 tokens: {share:.0%} of what full layers would keep")

# %% [markdown]
# What the window hides has no weight at all (article B, **[measured here]**; position 0 sees one key either way). The
# memory saved is **[computed]**: our own pool keeps every position of every layer.
#
# ### What no cache would cost
#
# Generate the same answer without keeping anything: each step is a request of its own, with the whole sequence.

# %%
sequence, passed = list(run.prompt_token_ids), 0
for _ in range(16):
    step = lab.ask(sequence, max_tokens=1, ignore_eos=True)
    passed += step.trace.steps.num_tokens.sum()
    sequence += step.token_ids
assert sequence[len(run.prompt_token_ids) :] == run.token_ids
assert run.trace.steps.num_tokens.sum() == len(run.prompt_token_ids) + 16 - 1
passes_guess.reveal(passed)

# %%
n = 500
without, reads = n * (n + 1) // 2, sum(range(1, n + 1))
print(f"{n} tokens after a prompt of one: {without:,} computed without a cache, {n} with one: {without // n} times")
print(f"keys read with a cache, per layer and head: {reads:,}")

# %% [markdown]
# Same answer, about 250 times the work at 500 tokens (articles A, section 5.5, and B, **[measured here]** for 16,
# **[computed]** for 500). What remains is reading: with a cache the number of keys read still grows with the square.
# That shows in each step's time:

# %%
rng = random.Random(8)


def decode_s(length):
    """Processor seconds of one decode step, the fastest of twenty, after a random prompt."""
    stream = lab.submit(rng.choices(range(40, 250), k=length), max_tokens=22, ignore_eos=True)
    while len(stream.token_ids) < 2:
        lab.engine.step()
    seconds = []
    while not stream.finished:
        start = process_time()
        lab.engine.step()
        seconds.append(process_time() - start)
    return min(seconds)


short_s, long_s = decode_s(64), decode_s(1600)
bytes_model = (4 * 134_515_008 + 1600 * 46_080) / (4 * 134_515_008 + 64 * 46_080)
assert not weights or 1.02 < long_s / short_s < 4
print(f"bytes to read at 1,600 tokens against 64: {bytes_model:.2f} times; the step took longer" if weights else "-")

# %% tags=["nbval-ignore-output"]
print(f"measured: {1e3 * short_s:.0f} ms and {1e3 * long_s:.0f} ms, {long_s / short_s:.2f} times")

# %% [markdown]
# A long context slows every later token, but 25 times the context costs less than 4 times the step, while in lab 07 8
# times the prompt cost about 8 times the wait (article A, sections 1 and 5.4, **[measured here]**).
#
# ### Why keeping is allowed
#
# A position sees only earlier ones, so what comes later cannot change its keys. The keys of 16 positions in the last
# layer, computed with 4, 14 and 104 tokens after them, and with another first token:


# %%
def last_keys(tokens):
    request = lab.submit(tokens, max_tokens=2, ignore_eos=True)
    lab.engine.step()
    first_block = lab.engine.scheduler.running[0].block_table[0]
    keys = pool.keys[-1][:, first_block].clone()  # K/V heads x 16 positions x 64
    request.wait()
    return keys


if weights:
    text = rng.choices(range(40, 250), k=120)
    alone, later, latest = last_keys(text[:20]), last_keys(text[:30]), last_keys(text)
    other_start = last_keys([text[0] + 1, *text[1:20]])
    assert (alone - later).abs().max() < 1e-3
    assert (alone - latest).abs().max() < 1e-3
    changed = (alone - other_start).abs().amax((0, 2)) > 1e-2
    assert changed.all()
print("later tokens change no key; another first token changes all 16")

# %% [markdown]
# The first half is why a cache works at all (article A, section 5.5, **[measured here]**), the second why a prefix must
# match from its first token on (lab 09).
#
# ### Memory decides how many
#
# Requests of 64 positions hold 4 blocks at their end. How many of 14 run at once?

# %%
most = {}
for blocks in (16, 24, 40):
    with llmlab.open("mock", num_blocks=blocks, max_num_seqs=16, background=False) as crowd:
        waiting = [crowd.submit([40 + i] * 60, max_tokens=5, ignore_eos=True) for i in range(14)]
        for each in waiting:
            each.wait()
        most[blocks] = int(crowd.trace.steps.running.max())
        assert crowd.trace.requests.num_preemptions.sum() == 0
        if blocks == 24:
            lanes = views.batch_lanes(crowd.trace)
assert most == {blocks: blocks // 4 for blocks in most}
print(most)
lanes

# %% [markdown]
# As many as there are sets of 4 blocks; the rest wait for memory, not for arithmetic (article A, section 5.5,
# **[measured here]**).
#
# ## Explain
#
# A layer's memory is two times its K/V heads; query heads do not appear:

# %% tags=["nbval-ignore-output"]
excerpt(KVPool._allocate, "for heads, dim", 3)

# %% [markdown]
# A step writes the keys and values of its new tokens into their slots and gathers the request's blocks again to
# attend to them. Nothing that lies there is computed twice, and all of it is read in every step: memory is traded for
# computing, and reading remains.

# %% tags=["nbval-ignore-output"]
excerpt(KVPool.write, "parts =", 5)

# %% [markdown]
# ## Exercises
#
# ### 1. The formula
#
# *Easy, 5 minutes.* Bytes of K/V for `tokens` tokens.
#
# <details><summary>Hint</summary>
#
# Begin with one token in one layer: each K/V head stores a key and a value, of `head_dim` numbers each. One of the
# arguments is not needed.
#
# </details>


# %% tags=["exercise"]
def kv_bytes(layers, query_heads, kv_heads, head_dim, tokens, number_bytes):
    return ...


check.lab08.q1(kv_bytes)


# %% tags=["solution"]
def kv_bytes(layers, query_heads, kv_heads, head_dim, tokens, number_bytes):
    return 2 * layers * kv_heads * head_dim * tokens * number_bytes


assert kv_bytes(30, 9, 3, 64, 120 * 16, 4) == pool.nbytes
check.lab08.q1(kv_bytes)

# %% [markdown]
# ### 2. Keep nothing
#
# *Medium, 7 minutes.* How many tokens are computed for an answer of `num_output` tokens when each step starts over?
#
# <details><summary>Hint</summary>
#
# Write down how many tokens the first three steps compute. A step takes the prompt and all tokens chosen before it,
# but not the one that it chooses.
#
# </details>


# %% tags=["exercise"]
def passes_without_cache(num_prompt, num_output):
    return ...


check.lab08.q2(passes_without_cache)


# %% tags=["solution"]
def passes_without_cache(num_prompt, num_output):
    return sum(num_prompt + done for done in range(num_output))


assert passes_without_cache(len(run.prompt_token_ids), 16) == passed
check.lab08.q2(passes_without_cache)

# %% [markdown]
# ### 3. Fill a pool
#
# *Medium, 8 minutes.* How many equal requests can run to their end at once, none of them giving way?
#
# <details><summary>Hint</summary>
#
# How many positions of one request have keys and values at its end (the last token chosen has none)? Count the blocks
# for them, a block begun being held wholly, and only then look at the pool.
#
# </details>


# %% tags=["exercise"]
def requests_that_fit(num_blocks, block_size, num_prompt, num_output):
    return ...


check.lab08.q3(requests_that_fit)


# %% tags=["solution"]
def requests_that_fit(num_blocks, block_size, num_prompt, num_output):
    return num_blocks // -(-(num_prompt + num_output - 1) // block_size)


assert requests_that_fit(24, 16, 60, 5) == most[24]
check.lab08.q3(requests_that_fit)

# %% [markdown]
# ## Break it
#
# Wipe the block that holds positions 16 to 31 while the answer is being written. No later step computes them again.

# %%
victim = lab.submit(question, max_tokens=16, ignore_eos=True)
lab.engine.step()
block = lab.engine.scheduler.running[0].block_table[1]
if weights:
    pool.clear(torch.tensor([block]))
else:
    lab.engine.runner.slots[block] = 0
victim.wait()
assert victim.token_ids[0] == run.token_ids[0]
assert victim.token_ids != run.token_ids
print("the first token is the same, the answer is not")

# %% tags=["nbval-ignore-output"]
print(run.text, victim.text, sep="\n---\n")

# %% [markdown]
# The first token was chosen before; the rest looked at keys that are no longer there. Nothing noticed: an engine must
# be right about who owns a block, because the model cannot tell. That bookkeeping is the next lab.

# %%
lab.close()

# %% [markdown]
# ## Recap
#
# - Which factors make up the bytes of a token, and which number of heads must not be among them?
# - Why may keys be kept, and why only as long as everything before them stays the same?
# - What does the cache save, what does it still cost in every step, and what does it decide about a machine?
# - How do grouped heads, a latent and a window each make it smaller?
#
# ## Next
#
# Lab 09 shows how this memory is handed out: pages, shared prefixes, and what is thrown away first.
