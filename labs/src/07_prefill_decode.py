# %% [markdown]
# # Measure prefill against decode
#
# **Goal.** You measure on one processor core why a long prompt delays the first token, why the tokens after it come one
# by one, and which limit of the machine each of the two runs into.
#
# **Time.** 25 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU; no network once the model is there. Labs 00 and 06 help.

# %%
import random
from dataclasses import replace
from time import process_time

import numpy as np
import pandas as pd
import torch

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.checks.lab07 import Series, chart
from llmlab.labs.excerpt import excerpt

lab = llmlab.open(
    dtype="float32", threads=1, num_blocks=128, max_num_batched_tokens=1024, max_num_seqs=16, background=False
)
weights = lab.loaded is not None  # the repository's quick tests run this notebook on a model without weights
lab.model

# %% [markdown]
# `threads=1` keeps everything on one core, so that its limits can be measured too. `background=False`: the engine steps
# only while we wait. A step may compute up to 1,024 tokens.
#
# **Prefill** is the step (or steps) that computes the prompt; **decode** is every later step, which computes one token
# of the answer. **TTFT** is the time to the first token, **ITL** the time between two tokens of the answer.
#
# ## Predict

# %%
growth_guess = predict("A prompt 8 times as long (64, then 512 tokens): TTFT grows about ...", [1, 8, 64])
growth_guess

# %%
passes_guess = predict("Forward passes before the first token of a 64-token prompt?", [1, 2, 64, 65])
passes_guess

# %% [markdown]
# ## Run
#
# Prompts of random tokens, all different, so that nothing comes from the prefix cache; one output token each. Times
# are processor time of this process, which other programs disturb little; of two tries the faster one counts.

# %%
rng = random.Random(7)


def prompt(length):
    return rng.choices(range(40, 250), k=length)


def timed(work):
    """What ``work`` returns, and the milliseconds it computed."""
    start = process_time()
    done = work()
    return done, 1e3 * (process_time() - start)


def ask_once(length):
    return timed(lambda: lab.ask(prompt(length), max_tokens=1))


lengths = (64, 128, 256, 512, 1024)
first, prefill_ms = {}, {}
for n in lengths:
    tries = [ask_once(n) for _ in range(2 if n < 1000 else 1)]
    first[n], prefill_ms[n] = min(tries, key=lambda done: done[1])
requests = pd.concat([first[n].trace.requests for n in lengths], ignore_index=True)
requests[["num_prompt_tokens", "num_cached_tokens", "num_output_tokens", "stop_reason"]]

# %%
steps = pd.concat([first[n].trace.steps for n in lengths], ignore_index=True)
assert list(steps.num_prefill_tokens) == list(lengths)
assert steps.num_decode_tokens.sum() == 0
passes_guess.reveal(len(first[64].trace.steps))

# %% [markdown]
# One forward pass computes the whole prompt, because all of it is known, and the first token is chosen from the
# logits of its last position (article A, sections 1 and 5.4: **[measured here]**). Article B ("Prefill and decode")
# counts a decode step more: **[corrected: no decode step has run when the first token is there]**.

# %%
growth = prefill_ms[512] / prefill_ms[64]
assert not weights or 3 < growth < 22
growth_guess.reveal(min((1, 8, 64), key=lambda option: abs(np.log(growth / option))))

# %% [markdown]
# Almost all of TTFT is that pass, and the rest of the growth is nearly a straight line:

# %%
shares = steps.forward_ms / requests.ttft_ms
assert not weights or (shares.min() > 0.8 and prefill_ms[64] < prefill_ms[256] < prefill_ms[1024])
print("share of TTFT spent in the forward pass: more than 0.8 for every length" if weights else "no weights")

# %% [markdown]
# ## Observe
#
# ### The fit
#
# Prefill has a part that grows with the length *n* (every token passes the same matrices) and one that grows with
# *n*² (every token looks at all before it). Both can be counted from the model's shape; the fit is to the measured
# times.

# %%
LAYERS, WIDTH, VOCABULARY = 30, 576, 49152


def in_layers(layers, width, kv_width, inner):
    """Parameters of all layers: queries and output, keys and values, the three matrices after them, two norms."""
    return layers * (2 * width * width + 2 * width * kv_width + 3 * width * inner + 2 * width)


layer_parameters, head_parameters = in_layers(LAYERS, WIDTH, 192, 1536), VOCABULARY * WIDTH
assert layer_parameters + head_parameters + WIDTH == 134_515_008  # what the model's file holds
crossover = layer_parameters // (WIDTH * LAYERS)
print(f"{layer_parameters:,} parameters in the layers; both parts are equal at {crossover:,} tokens")
for name, layers, width, kv_width, inner in (("8B", 32, 4096, 1024, 14336), ("70B", 80, 8192, 1024, 28672)):
    print(f"Llama-3-{name}: at {in_layers(layers, width, kv_width, inner) // (width * layers):,}")
pd.DataFrame(
    {
        "length": lengths,
        "linear, GFLOP": [round(2 * layer_parameters * n / 1e9, 1) for n in lengths],
        "quadratic, GFLOP": [round(2 * n * n * WIDTH * LAYERS / 1e9, 1) for n in lengths],
    }
)

# %% tags=["nbval-ignore-output"]
n = np.array(lengths, dtype=float)
t = np.array([prefill_ms[length] for length in lengths])
(a, b), *_ = np.linalg.lstsq(np.stack((n, n * n), axis=1) / t[:, None], np.ones(len(n)), rcond=None)
print(f"fit: {a:.3f} ms x n + {1e3 * b:.4f} us x n^2")
grid = np.linspace(1, 1024, 60)
chart(
    "Prefill time against prompt length",
    "Prefill times of five prompt lengths, the fit of a linear and a quadratic part, and the linear part alone.",
    ("tokens of the prompt", "ms"),
    [
        Series("measured", list(zip(n, t, strict=True))),
        Series("a n + b n²", list(zip(grid, a * grid + b * grid**2, strict=True)), is_line=True),
        Series("a n alone", list(zip(grid, a * grid, strict=True)), is_line=True, dash=True),
    ],
)

# %% [markdown]
# Counted, the linear part is the larger one up to 6,146 tokens on this model and up to many tens of thousands on the
# large ones **[computed]**: article A, section 5.4, is right that it dominates at usual lengths. At 1,024 tokens the
# square is a sixth of the linear part, so a fit to times sees little of it, and a disturbed machine may hide it.
#
# ### What a fused kernel saves
#
# Article A, section 5.4, says that kernels like FlashAttention save memory and not the square. Our prefill works
# in tiles too, so both can be counted: operations, and the largest tensor made on the way.

# %%
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from llmlab.engine.attention import Variant, attend_prefill


class Largest(TorchDispatchMode):
    """Remembers the most bytes that one operation returned."""

    most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.most = max(self.most, out.nbytes)
        return out


def whole_matrix(query, keys, values, variant):
    scores = query.flatten(1, 2) @ keys.transpose(1, 2) * variant.scale
    length = keys.shape[1]
    future = torch.ones(length, length, dtype=torch.bool).triu(1).repeat(query.shape[1], 1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ values).view_as(query)


rows = []
for length in (256, 512, 1024):
    query, keys, values = torch.randn(3, 3, length, 64), torch.randn(3, length, 64), torch.randn(3, length, 64)
    row = {"length": length}
    for name, function in (("whole", whole_matrix), ("tiled", attend_prefill)):
        with FlopCounterMode(display=False) as counted, Largest() as largest:
            row[f"{name}: out"] = function(query, keys, values, Variant(scale=0.125))
        row |= {f"{name}: MFLOP": counted.get_total_flops() // 10**6, f"{name}: largest, KB": largest.most // 1000}
    assert torch.allclose(row.pop("whole: out"), row.pop("tiled: out"), atol=1e-4)
    rows.append(row)
attention = pd.DataFrame(rows).set_index("length")
attention

# %%
per_doubling = attention.loc[1024] / attention.loc[512]
assert per_doubling[["whole: MFLOP", "whole: largest, KB"]].min() > 3.9
assert per_doubling["tiled: MFLOP"] > 3.7
assert per_doubling["tiled: largest, KB"] < 2.1
per_doubling.round(1)

# %% [markdown]
# Per doubling the operations grow about fourfold either way; the largest tensor grows fourfold whole and twofold in
# tiles **[measured here]**. What spares long prompts their wait is the prefix cache (lab 09), not the kernel.
#
# ### The roofline
#
# A core has two limits: operations a second, and bytes a second from memory. A step reads all weights once, whatever
# the number of tokens in it, and computes about two operations per weight *and token*. Measure both limits:


# %% tags=["nbval-ignore-output"]
def best_s(work):
    return min(timed(work)[1] for _ in range(6)) / 1e3


x, w = torch.rand(512, WIDTH), torch.rand(WIDTH, 1536)
peak = 2 * 512 * WIDTH * 1536 / best_s(lambda: x @ w)
matrix, vector = torch.rand(6144, 6144), torch.rand(6144)  # 151 MB: more than a processor keeps in its caches
bandwidth = matrix.nbytes / best_s(lambda: matrix @ vector)
flip = peak / bandwidth * 4 / 2  # four bytes a weight, two operations a token
print(f"{peak / 1e9:.0f} GFLOP/s, {bandwidth / 1e9:.1f} GB/s: reading and computing take equally long at {flip:.0f}")

# %% [markdown]
# Now real steps: decode with 1, 4 and 16 requests at once, and the prefills from above.

# %%
decode_ms = {}
for batch in (1, 4, 16):
    runs = [lab.submit(prompt(4), max_tokens=6, ignore_eos=True) for _ in range(batch)]
    lab.engine.step()  # the prompts; then five steps of nothing but decode
    decode_ms[batch] = min(timed(lab.engine.step)[1] for _ in range(5))
    assert all(run.finished for run in runs)
print("decode steps measured with", *decode_ms, "requests")


def gflops(tokens, rows, ms):
    attention = 2 * tokens**2 * WIDTH * LAYERS if tokens > rows else 0
    return (2 * layer_parameters * tokens + 2 * head_parameters * rows + attention) / ms / 1e6


decode = {batch: gflops(batch, batch, ms) for batch, ms in decode_ms.items()}
prefill = {length: gflops(length, 1, ms) for length, ms in prefill_ms.items()}
assert not weights or prefill[512] > 3 * decode[1]
assert not weights or decode_ms[16] < 8 * decode_ms[1]
assert 1 < flip < 2000

# %% tags=["nbval-ignore-output"]
reach = (1, flip, 1100)
chart(
    "Roofline of this core: what its steps reach",
    "Operations a second of decode steps and prefills over tokens in a step, under the two measured limits.",
    ("tokens in the step", "GFLOP/s"),
    [
        Series("measured limits", [(v, min(v * bandwidth / 2, peak) / 1e9) for v in reach], is_line=True),
        Series("decode", list(decode.items()), labels=[f"batch {batch}" for batch in decode]),
        Series("prefill", list(prefill.items()), labels=[str(length) for length in prefill]),
    ],
    log=True,
)

# %% [markdown]
# Left of the bend a step waits for memory: 16 requests share one reading of the weights, and 16 times the tokens take
# less than 8 times as long. Right of it a step waits for arithmetic, and further tokens are no longer free: that is
# where batching stops paying (article A, sections 1 and 5.7). A 512-token prefill does at least 3 times the
# operations a second of decode at batch 1 **[measured here]**.
#
# For the cards in the articles the bend is computed from the maker's figures (dense bf16 operations and memory
# bandwidth, two bytes a weight):

# %%
cards = pd.DataFrame({"TFLOP/s": [312, 989, 989], "TB/s": [2.04, 3.35, 4.8]}, index=["A100 80 GB", "H100", "H200"])
cards["bend, tokens"] = (cards["TFLOP/s"] / cards["TB/s"]).round().astype(int)
cards["8B: prefill of 1,000, ms"] = (2 * 8.03e9 * 1000 / cards["TFLOP/s"] / 1e9).round().astype(int)
cards["8B: prefill of 50,000, ms"] = (
    ((2 * 6.98e9 * 5e4 + 2 * 5e4**2 * 4096 * 32) / cards["TFLOP/s"] / 1e9).round(-2).astype(int)
)
cards["8B: decode step, ms"] = (2 * 8.03e9 / cards["TB/s"] / 1e9).round(1)
print(f"22 tokens: {22 * 5} to {22 * 10} ms at 5 to 10 ms a token, {22_000 // 80} to {22_000 // 20} at 80 to 20/s")
cards

# %% [markdown]
# These are floors **[computed]**. Article B's milliseconds for 1,000 tokens are tens of milliseconds; article A's
# 100 to 2,000 ms for tens of thousands fits one card and such a model (section 1). Article B's 5 to 10 ms a step on an
# A100: **[corrected: reading 16 GB takes at least 7.9 ms there]**. Its answer of about 20 tokens takes a few hundred
# milliseconds by either of its own rates; article A's 10 to 50 ms a token are 20 to 100 tokens a second. Here:

# %% tags=["nbval-ignore-output"]
print(f"{1e3 / decode_ms[1]:.0f} tokens a second for one request, {16e3 / decode_ms[16]:.0f} for 16 together")

# %% [markdown]
# ### A newcomer stops the others
#
# A stream is decoding when a prompt of 300 tokens arrives: once with room for it in one step, once with a budget of
# 64 tokens a step, which cuts it into chunks.


# %%
def disturbed(budget):
    scheduler = lab.engine.scheduler
    scheduler.config = replace(scheduler.config, max_num_batched_tokens=budget)
    stream = lab.submit("Name three colours.", max_tokens=16, ignore_eos=True, cache_salt=f"budget {budget}")
    while len(stream.token_ids) < 4:
        lab.engine.step()
    newcomer = lab.submit(long, max_tokens=2, ignore_eos=True, cache_salt=f"budget {budget}")
    newcomer.wait(), stream.wait()
    return stream, newcomer


long = prompt(300)
(stream, newcomer), (calm_stream, chunked) = disturbed(1024), disturbed(64)
assert (stream.token_ids, newcomer.token_ids) == (calm_stream.token_ids, chunked.token_ids)
for name, run in (("in one step", newcomer), ("in chunks", chunked)):
    ran = run.trace.schedule.query("request_id == @run.id and action == 'ran' and is_prefill")
    print(f"{name}: {list(ran.num_tokens)}")

# %%
whole_pause, chunk_pause = (
    run.trace.steps.query("num_decode_tokens >= 1 and num_prefill_tokens >= 1").total_ms.median()
    for run in (newcomer, chunked)
)
assert not weights or whole_pause > 1.5 * chunk_pause
print("whole, the stream pauses more than 1.5 times as long as for a typical chunk" if weights else "no weights")

# %%
calm = chunked.trace.steps
views.step_timeline(lab.trace, first_step=int(calm.step.min()) - 4, last_step=int(calm.step.max()) + 2)

# %% [markdown]
# Same tokens, smaller pauses: chunked prefill (article A, section 5.4, and article B, **[measured here]**). The
# newcomer waits for several steps now; each of them also serves the stream.
#
# ### What TTFT consists of
#
# Article A (sections 0 and 1) splits the time to the first character into assembly, network, queue and prefill. A body
# is assembled from a long conversation, then a request crosses HTTP, directly and through a proxy that adds 100 ms.

# %%
from llmlab.client.assemble import Options, SystemText, assemble
from llmlab.client.entry import Entry
from llmlab.client.proxy import Proxy

for kilobytes in (1, 10, 100):
    entries = [Entry("user", ({"type": "text", "text": "word " * 200 * kilobytes},))]
    start = process_time()
    body = assemble(lab.model, entries, options=Options(max_tokens=8), system=[SystemText("Be brief.")]).body
    assert process_time() - start < 0.25
    assert kilobytes * 1000 < len(body) < kilobytes * 1000 + 1000
print("assembled 1, 10 and 100 KB")

# %%
question = {"model": lab.model, "max_tokens": 4, "messages": [{"role": "user", "content": "Name three colours."}]}
server = lab.serve()
client = lab.client(server)
near = client.send(question)
with Proxy(server.url, rtt_s=0.1, recorder=client.recorder) as proxy:
    far_client = llmlab.connect(proxy.url, recorder=client.recorder)
    cold, warm = far_client.send(question), far_client.send(question)
    far_client.close()
assert near.text == cold.text == warm.text
assert cold.timings.first_delta >= 0.2
assert warm.timings.first_delta >= 0.1
assert lab.trace.check() == []
exchange = lab.trace.exchanges.iloc[0]
inside = lab.trace.requests.set_index("request_id").loc[exchange.request_ids[0]]
assert 0 < inside.queue_ms < inside.ttft_ms < exchange.ttft_ms
assert not weights or inside.ttft_ms > 0.4 * exchange.ttft_ms
print(f"{len(lab.trace.exchanges)} exchanges, {proxy.connections} connection through the proxy")

# %%
views.waterfall(lab.trace, lab.trace.exchanges.request_ids.iloc[0][0])

# %% [markdown]
# Every span of the picture was recorded, and `check()` verifies that they add up to what the client waited
# **[on the wire]**; more than 0.4 of it is queue and prefill in the engine. Distance is injected, never measured: a new
# connection pays at least two round trips, a kept one at least one (stage 2, 30 to 200 ms: **[not verifiable here: no
# network]**). About two seconds to the first character, and stages that differ 1,000-fold: **[not verifiable here: one
# author's case]**, as is everything article A's section 0 bases on a binary that is not here. The queue, stage 3, is a
# matter of load:

# %%
with llmlab.open("mock", max_num_seqs=1, background=False) as crowded:
    waiting = [crowded.submit(f"Question {number}", max_tokens=10, ignore_eos=True) for number in range(3)]
    for run in waiting:
        run.wait()
    queued = crowded.trace.schedule
first_steps = queued[queued.action == "ran"].groupby("request_id", sort=False).step.min()
print("one slot, three requests: first steps", list(first_steps))

# %% [markdown]
# Input decides the wait, output the length of the stream (article A, section 1). As counts of the grid:

# %%
grid = []
with llmlab.open("mock", num_blocks=256, max_num_batched_tokens=1024, prefix_cache="off", background=False) as counted:
    for given in (64, 512):
        for wanted in (16, 64):
            trace = counted.ask([65] * given, max_tokens=wanted, ignore_eos=True).trace.steps
            grid.append((given, wanted, trace.num_tokens.iloc[0], len(trace) - 1))
pd.DataFrame(grid, columns=["input", "output", "tokens computed before the first", "decode steps after it"])

# %% [markdown]
# ## Explain
#
# A step's weights pass through the core once. Prefill multiplies them with hundreds of rows, decode with one row per
# request, so the first is limited by arithmetic and the second by reading. The budget decides how much of a prompt
# shares a step with running streams:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.scheduler import Scheduler

excerpt(Scheduler._schedule_running, "budget == 0", 5)

# %% [markdown]
# and attention goes through a prompt in tiles, whose scores are small enough for the processor's cache:

# %% tags=["nbval-ignore-output"]
excerpt(attend_prefill, "for first in range", 9)

# %% [markdown]
# The K/V cache (lab 08), pages (lab 09), batching and drafts (labs 10 and 12) each answer one of these costs, as
# article A's section 1 says. That the difference explains nearly every phenomenon (section 8) holds for waiting and
# flow: **[corrected: token counting, time to live and compaction have other causes]**.
#
# ## Exercises
#
# ### 1. Count chunks
#
# *Easy, 5 minutes.* A prompt arrives while `num_streams` requests decode. In how many steps is it computed?
#
# <details><summary>Hint</summary>
#
# Each stream takes one token of the budget in every step: how many are left for the prompt? The last chunk may be short
# and is a step too.
#
# </details>


# %% tags=["exercise"]
def chunked_steps(num_prompt_tokens, budget, num_streams):
    return ...


check.lab07.q1(chunked_steps)


# %% tags=["solution"]
def chunked_steps(num_prompt_tokens, budget, num_streams):
    return -(-num_prompt_tokens // (budget - num_streams))


assert chunked_steps(300, 64, 1) == 5
check.lab07.q1(chunked_steps)

# %% [markdown]
# ### 2. Where the square wins
#
# *Medium, 10 minutes.* At which prompt length (rounded down) does causal attention cost as many operations as the
# layers' matrices? A token costs 2 operations per parameter; a pair of positions 4 per number of the width and layer.
#
# <details><summary>Hint</summary>
#
# Write down the operations of both sides for `n` tokens, set them equal and solve for `n`. Mind the causal mask: which
# part of the `n * n` pairs does it leave?
#
# </details>


# %% tags=["exercise"]
def crossing(layer_parameters, width, layers):
    return ...


check.lab07.q2(crossing)


# %% tags=["solution"]
def crossing(layer_parameters, width, layers):
    return layer_parameters // (width * layers)  # the mask leaves half of the n x n pairs


assert crossing(layer_parameters, WIDTH, LAYERS) == crossover
check.lab07.q2(crossing)

# %% [markdown]
# ### 3. Find the bend
#
# *Medium, 10 minutes.* From how many tokens in a step (rounded) does computing take longer than reading the weights?
#
# <details><summary>Hint</summary>
#
# Take one weight and `n` tokens: two operations per token, and its bytes are read once. Write down both times and find
# the `n` at which they are equal.
#
# </details>


# %% tags=["exercise"]
def bend(flops_per_s, bytes_per_s, bytes_per_weight):
    return ...


check.lab07.q3(bend)


# %% tags=["solution"]
def bend(flops_per_s, bytes_per_s, bytes_per_weight):
    return round(flops_per_s / bytes_per_s * bytes_per_weight / 2)


check.lab07.q3(bend)

# %% [markdown]
# ## Break it
#
# Take from prefill what makes it fast: with a budget of one token, a prompt of 24 tokens is fed token by token, as if
# each had to wait for the one before.

# %%
scheduler = lab.engine.scheduler
short = prompt(24)
runs = {}
for budget in (1024, 1):
    scheduler.config = replace(scheduler.config, max_num_batched_tokens=budget)
    runs[budget] = lab.ask(short, max_tokens=1, logprobs=1, cache_salt=f"fed by {budget}")
together, one_by_one = runs[1024], runs[1]
assert together.token_ids == one_by_one.token_ids
assert abs(together.outputs[0].logprobs[0] - one_by_one.outputs[0].logprobs[0]) < 1e-3
print("steps:", len(together.trace.steps), "and", len(one_by_one.trace.steps), "- same token")

# %%
ratio = one_by_one.trace.steps.total_ms.sum() / together.trace.steps.total_ms.sum()
assert not weights or ratio > 3
print("more than 3 times slower, token by token" if weights else "no weights")
lab.close()

# %% [markdown]
# The result is the same to rounding: prefill is parallel because its tokens are known, not because they are
# independent (article A, section 1, **[measured here]**). For output tokens there is no such choice.
#
# ## Recap
#
# - Why is the first token there after one forward pass, and why can the second not be?
# - Which limit does a prefill meet, which a decode step, and how many tokens lie between them on your machine?
# - Which part of prefill's cost does a tiled kernel change, and which does it leave?
# - What does a chunk cost the newcomer, and what does it save the others?
#
# ## Next
#
# Lab 08 weighs what prefill leaves behind: the K/V cache.
