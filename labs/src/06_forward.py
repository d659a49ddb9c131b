# %% [markdown]
# # Open one forward pass
#
# **Goal.** You follow one prompt through all layers of a model that is serving, recompute its attention by hand, and
# can say what each position has seen, where the answer appears, and why the next token needs a pass of its own.
#
# **Time.** 30 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters, fetched once, about 2 GB of memory). No GPU; no network once the
# model is there.

# %%
import numpy as np
import pandas as pd
import torch

import llmlab
from llmlab import Ablate, Capture, Patch, views
from llmlab.checks import check, predict
from llmlab.engine.attention import TILE, Variant, attend_prefill
from llmlab.labs.excerpt import excerpt
from llmlab.opening import open as open_model
from llmlab.probes import online_softmax_walk
from llmlab.widgets import dashboard

lab = open_model(dtype="float32", num_blocks=128, optimize=False)
model, config = lab.loaded.model, lab.loaded.model.config
config.num_hidden_layers, config.num_attention_heads, config.num_key_value_heads, config.hidden_size

# %% [markdown]
# 30 **layers**, each with **attention** (9 heads, which move information between positions) and a **feed-forward
# network** (FFN, which works on every position alone). `optimize=False` leaves the modules as they are, for our hooks.
#
# ## Predict
#
# The prompt: *The capital of France is Paris. The capital of Japan is*

# %%
PROMPT = "The capital of France is Paris. The capital of Japan is"
seen_guess = predict(
    "Change the last word of a prompt: whose hidden states change?",
    ["all positions", "the last position", "the first position"],
)
seen_guess

# %%
where_guess = predict("After which of the 30 layers (0-29) is ' Tokyo' the likeliest word?", [0, 10, 20, 29])
where_guess

# %% [markdown]
# ## Run
#
# A `Capture` records what one request computes, for that request only. Hooks write down what goes in and out of the
# model's parts.

# %%
passed = []


def note(name):
    """A hook that writes down shape and kind of what comes in and what goes out."""

    def hook(module, args, kwargs, output):
        given = args[0] if args else kwargs["hidden_states"]
        made = output[0] if isinstance(output, tuple) else output
        passed.append((name, *(f"{str(x.dtype)[6:]} {list(x.shape[1:])}" for x in (given, made))))

    return hook


parts = {
    "embedding": model.model.embed_tokens,
    "layer 0": model.model.layers[0],
    "layer 29": model.model.layers[29],
    "final norm": model.model.norm,
    "head": model.lm_head,
}
hooks = [part.register_forward_hook(note(name), with_kwargs=True) for name, part in parts.items()]
everything = Capture(attention=True, scores=True, qkv=True, hidden=True, lens=True, targets=[" Tokyo"])
run = lab.ask(PROMPT, raw=True, max_tokens=3, capture=everything)
for hook in hooks:
    hook.remove()
looked = run.captured
run.text

# %% [markdown]
# ## Observe
#
# ### Text at the two ends only

# %%
journey = pd.DataFrame(passed[: len(parts)], columns=["part", "in", "out"]).set_index("part")
assert list(journey["in"])[1:] == [f"float32 [{rows}, 576]" for rows in (12, 12, 12, 1)]
print(type(PROMPT).__name__, "->", [type(token).__name__ for token in run.prompt_token_ids[:1]], "...")
journey

# %% [markdown]
# Text becomes 12 integers, these become 12 rows of 576 numbers, and between embedding and head nothing but floats
# passes (article A, 5.3). The head is asked for **one** position: the last, whose 49,152 **logits** choose the next
# token, an integer again. **[measured here]**
#
# ### Attention by hand
#
# Every head makes a **query**, a **key** and a **value** of 64 numbers per position. A position weighs the values of
# those before it by softmax(QK^T / sqrt(64)). From the captured queries and keys of layer 14:

# %%
LAYER = 14
query, key, value, weights = (
    looked.array(kind).sel(layer=LAYER).values for kind in ("query", "key", "value", "attention")
)
heads_per_key = len(query) // len(key)


def softmax(scores):
    """Rows that are positive and sum to 1."""
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def by_hand(head, kv_head):
    """One head's attention weights, later keys hidden."""
    scores = query[head] @ key[kv_head].T / np.sqrt(query.shape[-1])
    return softmax(np.where(np.tri(len(scores), dtype=bool), scores, -np.inf))


for head in range(len(query)):
    assert np.abs(by_hand(head, head // heads_per_key) - weights[head]).max() < 1e-5
    assert np.abs(by_hand(head, (head // heads_per_key + 1) % 3) - weights[head]).max() > 0.01
assert np.triu(weights, 1).max() == 0
print("queries", query.shape, "keys", key.shape, "weights", weights.shape)

# %% [markdown]
# Equal within 1e-5, for the formula of article B. **[measured here]** There are 9 query heads and 3 K/V heads: three
# query heads share one, which is **grouped-query attention** (GQA), and with the wrong K/V head the weights come out
# otherwise. Only keys and values are stored, so the cache is a third of what 9 would need; in Llama 3 8B (32 and 8) a
# quarter. **[computed]**

# %%
views.attention_heads(run.trace, layer=LAYER)

# %%
views.attention(run.trace, layer=LAYER, head=0)

# %% [markdown]
# In the panel, click a head to enlarge it and a row to list its keys:

# %%
dashboard(run.trace, ["attention_heads", "attention"], key="inside")

# %% [markdown]
# Two things to see. The upper right half is empty: no position looks at later ones. And many heads give most of their
# weight to the very first token. Taken over all heads of all layers, how much of the last position's weight is that?

# %%
share = looked.attention.values[:, :, -1, 0].mean()
assert 0.4 < share < 0.6
print("about half of the weight goes to position 0")

# %% [markdown]
# A row must sum to 1, so a head that has nothing to add still needs a place for its weight.
#
# ### Who has seen whom
#
# Article B writes that every position gathers from all others. We change the last word, *is* to *was*, and compare the
# **hidden states** (what a layer hands on, 576 numbers per position) of both runs.


# %%
def states(prompt, **changes):
    """Hidden states ``(layer, position, width)``, everything computed."""
    looking = Capture(hidden=True, use_cache=False)
    return lab.ask(prompt, raw=True, max_tokens=1, capture=looking, **changes).captured.hidden.values


before = states(PROMPT)
difference = np.abs(states(PROMPT.replace("Japan is", "Japan was")) - before).max(axis=-1)
assert difference[:, :-1].max() < 1e-4
assert difference[:, -1].min() > 0.1
seen_guess.reveal("the last position" if difference[:, :-1].max() < 1e-4 else "all positions")

# %% [markdown]
# **[corrected: only earlier positions]** In all 30 layers nothing before the change moves. The model is **causal**;
# only the last position has seen everything. Article A says so, and the K/V cache rests on it: what was computed for a
# position never has to be computed again because of what follows.
#
# Attention mixes, the FFN does not. We add 1 to the numbers of position 5 after layer 13, and look one layer on; then
# give the changed states to layer 14's FFN alone.

# %%
pushed = Patch(13, 5, before[13, 5] + 1)
after_layer = np.abs(states(PROMPT, intervene=pushed)[14] - before[14]).max(axis=-1)
layer = model.model.layers[LAYER]
rows = torch.tensor(before[13])[None]
changed = rows.clone()
changed[0, 5] += 1
with torch.no_grad():
    alone = [layer.mlp(layer.post_attention_layernorm(x)) for x in (rows, changed)]
after_ffn = (alone[0] - alone[1]).abs().amax(dim=-1)[0].numpy()
print("changed by the layer:", np.flatnonzero(after_layer > 1e-3).tolist())
print("changed by its FFN:  ", np.flatnonzero(after_ffn > 1e-3).tolist())

# %% [markdown]
# The FFN touches position 5 alone; with attention every **later** position takes part. **[measured here]**
#
# A layer *adds* to what it is given, which is the **residual stream**. With layer 15 knocked out, its output is its
# input, bit for bit:

# %%
without = states(PROMPT, intervene=Ablate(layer=15))
assert np.array_equal(without[15], without[14])
views.hidden(run.trace)

# %% [markdown]
# Lengths, from layer to layer: they grow, since layers add. The first token is the exception, more than fifty
# times as long as the others in the middle layers: it is the one that so many heads look at.

# %%
lengths = np.linalg.norm(before, axis=-1)
assert lengths[15, 0] > 50 * lengths[15, 1:].max()
assert lengths[28, 1:].min() > 3 * lengths[0, 1:].max()
print("longest at position", sorted(set(lengths[11:27].argmax(axis=1).tolist())), "in layers 11 to 26")

# %% [markdown]
# ### Where the answer appears
#
# The **logit lens** asks every layer what the last one is asked: final norm and head, applied to its states.

# %%
views.lens(run.trace, positions=[3, 4, 8, 9, 11])

# %%
tokyo = lab.tokenizer.encode(" Tokyo")[0]
ranks = looked.lens.rank_trajectory(tokyo, len(run.prompt_token_ids) - 1)
assert ranks[:23].min() > 1_000 > 10 > ranks[28] > ranks[29] == 0
assert np.nanmax(looked.lens.error.values) < 1e-3
where_guess.reveal(int(ranks.idxmin()))
print({f"rank below {bound:,}": f"first after layer {(ranks < bound).idxmax()}" for bound in (1_000, 100, 10, 1)})

# %% [markdown]
# For more than twenty layers the answer is nowhere among the first thousand words; in the last six it climbs to the
# top. **[measured here]** The lens' last row is no guess: it is computed like the model's own logits and equals them.
#
# ### Tile by tile
#
# The weights of one head are a matrix, tokens by tokens. **Fused kernels** (FlashAttention) never write it down: they
# take the keys in tiles and keep only a running maximum, sum and output. One row of our model, in tiles of 4:

# %%
row = looked.scores.sel(layer=11, head=8).values[-1]
row_values = looked.value.sel(layer=11, kv_head=8 // heads_per_key).values
views.online_softmax(online_softmax_walk(row, row_values, tile=4), scores=row, values=row_values)

# %% [markdown]
# The result is the same. **[measured here]** Our engine works in tiles as well, of 64 queries. For 4,096 tokens, 9
# heads and 32-bit numbers:

# %%
whole, tiled = 9 * 4096 * 4096 * 4, 9 * TILE * 4096 * 4
assert whole == 64 * tiled
print(f"{whole / 1e6:.0f} MB of scores per layer at once, {tiled / 1e6:.1f} MB in tiles")

# %% [markdown]
# **[computed]** That such tiles stay in a GPU's on-chip memory is what makes them fast there:
# **[not verifiable here: needs a GPU]**.
#
# ### A sliding window
#
# Some models let some layers see only the latest positions (article B). Ours has no such layer, but the engine's
# attention can do it: the same queries, keys and values, with a window of 4.

# %%
grouped = torch.tensor(query).view(len(key), heads_per_key, -1, 64)
outputs = [
    attend_prefill(grouped, torch.tensor(key), torch.tensor(value), Variant(scale=64**-0.5, window=window))
    for window in (0, 4)
]
moved = (outputs[0] - outputs[1]).abs().amax(dim=(0, 1, 3)).numpy()
print("positions whose output changes:", np.flatnonzero(moved > 1e-3).tolist())

# %% [markdown]
# The first four still see everything. Through many layers information travels further than one window: layer by layer,
# by three positions each. **[computed]**
#
# ### The next token needs the next pass
#
# Article A (5.8) and B ("Over and over again") describe the loop. Step by step, with the byte-level stand-in, whose
# scheduling is the same:

# %%
with llmlab.open("mock", background=False, block_size=4, num_blocks=16) as stand_in:
    loop = stand_in.submit([1, 2, 3, 4, 5], max_tokens=4, ignore_eos=True)
    while not loop.finished:
        stand_in.engine.step()
    ran = loop.trace.schedule.query("action == 'ran'")
    sampled = loop.trace.tokens.query("source != 'prompt'")
sequence, end, rows = [*loop.prompt_token_ids, *loop.token_ids], 0, []
for step, count in zip(ran.step, ran.num_tokens, strict=True):
    made = sampled[sampled.step == step].token_id.tolist()
    rows.append((step, sequence[end : end + count], f"{end}-{end + count - 1}", made))
    end += count
steps = pd.DataFrame(rows, columns=["step", "input ids", "positions stored", "sampled"]).set_index("step")
assert [len(made) for made in steps.sampled] == [1] * 4
assert list(steps["input ids"])[1:] == list(steps.sampled)[:-1]
steps

# %% [markdown]
# Each step stores keys and values of its **input**; the token it samples is the next step's input. Four tokens took
# four passes: the first comes with the prefill, and the last is never computed. **[measured here]** Article B counts 20
# passes *after* the prefill for an answer of about 20 tokens; here the sentence has **[corrected: 25 tokens, so 24
# passes after the prefill]**, and one more if the model is to say that it has ended.

# %%
ANSWER = (
    "The KV cache stores precomputed keys and values so each new token does not redo attention over the whole prompt."
)
len(lab.tokenizer.encode(ANSWER))

# %% [markdown]
# ### Why a step costs the same for one and for eight
#
# A decode step multiplies every weight of the model with few numbers, so it waits for memory. Then more requests in
# the same step should cost little. Milliseconds of the fastest step, for 1 and for 8 requests:


# %% tags=["nbval-ignore-output"]
def fastest_step(num_requests):
    """Milliseconds of the fastest pass in which all requests decode."""
    words = ["ice", "tea", "sand", "moss", "rain", "salt", "iron", "wool"][:num_requests]
    runs = [lab.submit(f"Tell me about {word}.", max_tokens=6, ignore_eos=True) for word in words]
    last = [run.wait().trace.steps for run in runs][-1]
    return last[(last.num_decode_tokens == num_requests) & (last.num_prefill_tokens == 0)].forward_ms.min()


single, eight = fastest_step(1), fastest_step(8)
weight_bytes = sum(part.numel() * part.element_size() for part in model.parameters())
print(f"{single:.1f} ms for 1, {eight:.1f} ms for 8; {weight_bytes / 1e6:.0f} MB of weights per step")
print(f"{weight_bytes / single / 1e6:.1f} GB/s of weights with one request")

# %%
assert eight < 6 * single
floors = {"A100 80 GB": 2.039e12, "A100 40 GB": 1.555e12, "H100": 3.35e12}
for device, bandwidth in floors.items():
    print(f"{device}: {8.03e9 * 2 / bandwidth * 1e3:.1f} ms to read 8.03 billion 16-bit weights once")

# %% [markdown]
# Eight requests cost less than six times one. **[measured here]** Article B's 5 to 10 ms for an 8B model on an A100:
# **[corrected: not below 7.9 ms]** on one of 80 GB with 16-bit weights, since reading them takes that long; 5 ms needs
# 8-bit weights or an H100. **[computed]**
#
# ## Explain
#
# One layer of the model, as the engine runs it by default: two additions to the residual stream, attention and FFN.

# %% tags=["nbval-ignore-output"]
from llmlab.engine.lean import LeanLayer

excerpt(LeanLayer.run, "rotary = ", lines=4)

# %% tags=["nbval-ignore-output"]
excerpt(attend_prefill, "for first in range", lines=11)

# %% [markdown]
# The second is its attention. `keys` has an entry per K/V head and is never repeated: the query heads that share one
# are rows of the same product. A tile of queries reads keys from its window's beginning (`low`) to its own last
# position (`high`) and no further, so most of the empty triangle costs nothing.
#
# Every layer has the same shapes in and out. That is why a layer can be knocked out, patched, or asked by the lens.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Which K/V head?
#
# *Easy, 3 minutes.* `num_heads` query heads share `num_kv_heads` K/V heads, neighbours the same one. Which K/V head
# does a query head read?
#
# <details><summary>Hint</summary>
#
# How many query heads share one K/V head? Write down the query heads 0 to 8 in groups of neighbours for 9 heads that
# share 3, and number the groups from 0.
#
# </details>


# %% tags=["exercise"]
def kv_head(head, num_heads, num_kv_heads):
    return ...


check.lab06.q1(kv_head)


# %% tags=["solution"]
def kv_head(head, num_heads, num_kv_heads):
    return head // (num_heads // num_kv_heads)


check.lab06.q1(kv_head)

# %% [markdown]
# ### 2. What a position sees
#
# *Medium, 7 minutes.* Return the list of positions that `position` sees in a causal layer with a window of `window`
# positions, its own included; 0 means no window.
#
# <details><summary>Hint</summary>
#
# The last position is `position` itself; the question is where the list begins. Test a position near 0, where the
# window would reach back too far, and a window of 0.
#
# </details>


# %% tags=["exercise"]
def visible(position, window):
    return ...


check.lab06.q2(visible)


# %% tags=["solution"]
def visible(position, window):
    first = max(0, position - window + 1) if window else 0
    return list(range(first, position + 1))


assert visible(6, 4) == [3, 4, 5, 6]
check.lab06.q2(visible)

# %% [markdown]
# ### 3. Scores in memory
#
# *Medium, 7 minutes.* Bytes of the 32-bit scores that exist at one time in a layer with `heads` query heads, for a
# prompt of `tokens`, when `tile` queries are worked on together and all their keys at once. (A prompt may be shorter
# than a tile.)
#
# <details><summary>Hint</summary>
#
# Each head has one score for every pair of a query in the tile and a key of the prompt. How many queries are there when
# the prompt is shorter than a tile, and how many bytes are 32 bits?
#
# </details>


# %% tags=["exercise"]
def score_bytes(tokens, heads, tile):
    return ...


check.lab06.q3(score_bytes)


# %% tags=["solution"]
def score_bytes(tokens, heads, tile):
    return heads * min(tile, tokens) * tokens * 4


assert score_bytes(4096, 9, TILE) == tiled
check.lab06.q3(score_bytes)

# %% [markdown]
# ## Break it
#
# One word's row is erased before the first layer, as if the word had no embedding: *Japan*, position 10. And three
# times a whole layer is left out.

# %%
faults = {"nothing": (), "the word Japan": Ablate(positions=[10])}
faults |= {f"layer {number}": Ablate(layer=number) for number in (0, 15, 29)}
said = {name: lab.ask(PROMPT, raw=True, max_tokens=1, intervene=fault).text for name, fault in faults.items()}
assert [said[name] for name in ("nothing", "the word Japan", "layer 15")] == [" Tokyo", " Paris", " Tokyo"]
assert " Tokyo" not in (said["layer 0"], said["layer 29"])
for name, text in said.items():
    print(f"without {name}: {text if text in (' Tokyo', ' Paris') else 'something else'}")

# %%
again = lab.ask(PROMPT, raw=True, max_tokens=3)
assert again.token_ids == run.token_ids
lab.close()

# %% [markdown]
# Without *Japan* the model falls back on the capital that the prompt names. A middle layer can go missing, the first
# and the last cannot: the stream carries on what the others added. The last cell shows that none of these faults
# reached the shared cache: asked again, the model answers as before.
#
# ## Recap
#
# - Text exists at the two ends. Between them, rows of floats, added to by every layer.
# - Attention looks back, never ahead; the FFN works on each position alone. So what is stored stays valid.
# - Query heads share K/V heads; a window bounds what is seen; tiles bound what is held. None changes the formula.
# - A token can only be chosen after the pass over the one before it. Which part of a step would you try to share?
#
# ## Next
#
# The keys and values that this pass left behind are the K/V cache, the subject of the next labs.
