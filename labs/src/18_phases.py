# %% [markdown]
# # Split prefill from decode, and send a prompt where its prefix is
#
# **Goal.** You can say what moves when prompts are computed in one place and tokens in another, count its bytes, and
# say when that pays; and you know what a router must do so that a prefix cache is any use to several servers.
#
# **Time.** 30 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model twice, in two processes (135 million parameters, about 3 GB of memory in all). Two CPU
# cores, or the two processes take turns. No GPU, no network.

# %%
import os
import signal
import time

import httpx2
import pandas as pd

import llmlab
from llmlab import views
from llmlab.bench.routing import Session, measure_routing
from llmlab.checks import check, predict
from llmlab.client.proxy import Proxy
from llmlab.client.retry import RetryPolicy
from llmlab.engine.engine import Engine
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.errors import PrefillLost
from llmlab.gateway.routing import Router
from llmlab.lab import Lab
from llmlab.labs.excerpt import excerpt
from llmlab.parallel.disaggregated import DecodeEngine
from llmlab.parallel.replicas import Replicas
from llmlab.planner.disaggregation import handover

# %% [markdown]
# **Prefill** computes a prompt: many positions at once, limited by arithmetic. **Decode** makes one token after the
# other: little arithmetic, all weights read each time. Both run in one batch, so a long prompt holds up everybody who
# is reading along (lab 10). **Disaggregated prefill** gives each phase a pool of its own and sends the prompt's keys
# and values from one to the other (article A, section 5.7.1; article B, "Prefill and decode"). Here both pools are
# processes of this machine, and everything between them is counted.
#
# ## Predict
#
# Three answers are being written when a prompt of 400 tokens arrives.

# %%
beside = predict("Split: how many positions of that prompt does the decoding process compute?", [0, 1, 16, 400])
beside

# %%
moved = predict("What has to be sent from one process to the other?", ["the tokens", "K/V blocks", "the weights"])
moved

# %% [markdown]
# And one about servers: two of them behind a gateway that takes turns, one conversation of six turns.

# %%
missed = predict("In how many of the six turns does the prefix cache find nothing at all?", [0, 1, 2, 6])
missed

# %% [markdown]
# ## Run
#
# ### One process
#
# The long prompt is computed whole, then in chunks, beside the three. Steps are taken by hand, so the counts repeat.

# %%
settings = {"dtype": "float32", "num_blocks": 160, "max_num_seqs": 8, "threads": 1}
one = llmlab.open(**settings, background=False)
has_weights = one.loaded is not None
words = "apple pear plum cherry lemon quince grape fig "
long_prompt = one.tokenizer.encode("Count these words: " + words * 60)[:400]
questions = [f"{n} is a number that I like because" for n in range(3)]


def arrive(lab, limit=20):
    """Three answers under way, then the long prompt; their tokens, and who the long one is."""
    runs = [lab.submit(question, raw=True, max_tokens=limit, ignore_eos=True) for question in questions]
    while not all(len(run.token_ids) > 4 for run in runs):
        lab.engine.step()
    runs.append(lab.submit(long_prompt, max_tokens=6, ignore_eos=True))
    for run in runs:
        run.wait()
    return [run.token_ids for run in runs], runs[-1].id


def one_process(budget):
    """The same over the same weights with another token budget of a step: trace, tokens, id of the long prompt."""
    config = SchedulerConfig(max_num_batched_tokens=budget)
    eos = one.engine.eos_token_ids
    engine = Engine(one.engine.runner, one.tokenizer, eos_token_ids=eos, config=config, prefix_cache=False)
    tokens, long_id = arrive(Lab(engine, one.tokenizer, one.model, None))
    return engine.trace, tokens, long_id


whole, whole_tokens, long_id = one_process(1024)
chunked, chunked_tokens, _ = one_process(64)
assert whole_tokens == chunked_tokens
views.handoff(whole)

# %% [markdown]
# A tick is a token. While the prompt is computed (blue) the three get none; the red line is the longest gap of each.
#
# ### Two processes
#
# `disaggregated=True` starts a process that opens the same model and computes prompts. This one decodes.

# %%
one.close()
split = llmlab.open(**settings, background=False, disaggregated=True)
split_tokens, split_id = arrive(split)
assert split_tokens == whole_tokens
assert split.trace.check() == []
print("the tokens are those of one process:", [len(tokens) for tokens in split_tokens])

# %%
views.handoff(split.trace)

# %% [markdown]
# The three go on while the other process works (orange); then the K/V travels, and the prompt's *last* position is
# computed here, among the others: its logits choose the first token, by the same rules as ever.
#
# ## Observe
#
# ### What a step of the decoding process had to carry


# %%
def beside_others(trace, request_id):
    """Positions of the long prompt in the steps of this process: how many in all, and most in one step."""
    rows = trace.schedule.query("action == 'ran' and request_id == @request_id and is_prefill")
    return {"in all": int(rows.num_tokens.sum()), "most in a step": int(rows.num_tokens.max()), "steps": len(rows)}


traces = {"whole": whole, "in chunks": chunked, "split": split.trace}
carried = pd.DataFrame({name: beside_others(trace, long_id) for name, trace in traces.items()}).T
assert split_id == long_id
assert carried["most in a step"].is_monotonic_decreasing
beside.reveal(int(carried.loc["split", "in all"]))
carried

# %% [markdown]
# **[measured here]** Whole: one long step. Chunks: several steps, each longer than a plain one. Split: one position.
# Chunks spread the stall; the split removes it, and a second core (or a second card) pays for that.
# `llmlab bench --phases` measures the same arrivals in milliseconds.
#
# ### What was sent

# %%
info = split.trace.info
sent = split.trace.transfers.query("action == 'send' and request_id == @long_id").iloc[0].to_dict()
positions = len(long_prompt) - 1
blocks = -(-positions // info.block_size)
by_formula = blocks * info.block_size * info.kv_bytes_per_token
assert sent["nbytes"] == by_formula
assert not has_weights or info.kv_bytes_per_token == 2 * info.num_layers * info.num_kv_heads * info.head_dim * 4
moved.reveal("K/V blocks")
print(f"{sent['num_tokens']} positions in {blocks} blocks of {info.block_size}: {sent['nbytes']:,} bytes")
print(f"by the formula: {by_formula:,}, over {sent['medium']}")

# %% [markdown]
# **[measured here]** Whole blocks, keys and values, every layer: the bytes are lab 08's formula. The prompt's tokens
# alone are four bytes each; that is what a decoding process would get if it had to compute the prompt itself.
#
# ### Both processes on one clock

# %%
there, here = split.trace.ranks.num_tokens.sum(), split.trace.steps.num_prefill_tokens.sum()
assert there + here == split.trace.requests.num_prompt_tokens.sum()
assert here == 4
print("prompt positions computed here:", here, "of four requests; all others by the prefill process")
spans = split.trace.spans.query("request_id == @long_id and depth == 1").name
list(dict.fromkeys(name for name in spans if name not in ("between stages", "between steps", "wait")))

# %% [markdown]
# The same stages as in lab 00, with two between queue and prefill that are not in this process.
#
# A second prompt with the same beginning is found in the *prefill* process's cache; `usage` says so as always:

# %%
again = split.submit([*long_prompt, *long_prompt[:9]], max_tokens=2, ignore_eos=True).wait()
assert again.usage["cached_tokens"] >= 384
again.usage["cached_tokens"], again.usage["prompt_tokens"]


# %% [markdown]
# ### When does it pay?
#
# **[computed]** from the shape of Llama 3 8B, an A100's data sheet and the nominal rate of a link, nothing measured:
# the seconds a prompt's K/V travels, the seconds the prompt takes to compute, and the decoding streams from which the
# waiting that is spared is more than the waiting that is added.


# %%
def row(tokens, over):
    """A prompt of so many tokens over this link."""
    found = handover("Llama-3-8B", tokens, over, "a100")
    return {
        "prompt": tokens,
        "link": over,
        "K/V, GB": round(found.kv_bytes / 1e9, 2),
        "sent in, ms": round(found.transfer_s * 1e3, 1),
        "computed in, ms": round(found.prefill_s * 1e3, 1),
        "pays from": f"{int(found.break_even_streams) + 1} streams",
    }


paid = pd.DataFrame([row(tokens, over) for tokens in (1_000, 10_000) for over in ("400gbps", "10gbps")])
assert not paid.query("prompt == 10_000 and link == '10gbps'")["sent in, ms"].lt(1_000).any()
assert paid.query("prompt == 10_000 and link == '400gbps'")["sent in, ms"].between(25, 28).all()
paid

# %% [markdown]
# 10,000 tokens are 1.31 GB: 26 ms at 400 Gb/s, more than a second at 10 Gb/s, for a prompt that is computed in about
# half a second. Both articles are right that the link decides, and that small scale does not ask for it: on the slow
# link one reader alone waits less than the transfer takes. (Floors at peak arithmetic and nominal rate; a real card
# needs longer for both.)
#
# ### Two servers and a router
#
# Now whole servers: processes of `llmlab serve` without weights, each with its own prefix cache, and a gateway before
# them. Three conversations, three turns, every turn sends all that was said before.

# %%
replicas = Replicas(2, "mock", num_blocks=1024, threads=1)
figures = measure_routing(
    replicas, ("round_robin", "prefix_affine"), sessions=3, num_turns=3, max_tokens=12, at_once=False
)
robin, affine = figures
assert affine.cached_tokens > 1.5 * robin.cached_tokens
{each.routing: f"{each.moves} of 6 later turns changed the server" for each in figures}

# %% tags=["nbval-ignore-output"]
{each.routing: f"{each.hit_rate:.0%} of {each.prompt_tokens:,} prompt tokens from a cache" for each in figures}

# %%
with replicas.gateway("round_robin") as front:
    talk = Session(front.url, "alone", 0, max_tokens=12)
    turns = [talk.turn(number) for number in range(6)]
found_nothing = sum(turn.cached_tokens < 100 for turn in turns)
missed.reveal(found_nothing)
[turn.cached_tokens > 100 for turn in turns]

# %% [markdown]
# **[measured here]** A cache helps only where the next turn goes to the server that saw the last one. Taking turns,
# every server computes the beginning once, and later finds only what it saw itself, which is older. Routing by prefix
# sends what begins alike to one place, unless that one has much more to do than the others. A hash of the *beginning*
# is enough; nobody has to know what is in the caches (article B, "Why the next token is cheap").
#
# ### Distance
#
# Wherever it is computed, the answer has to travel. A proxy adds 100 ms of round trip and says so:

# %%
body = {"model": "any", "max_tokens": 2, "messages": [{"role": "user", "content": "hello"}]}
with Proxy(replicas.url, rtt_s=0.1) as far, httpx2.Client() as client:
    took = []
    for address in (replicas.url, far.url):
        client.post(f"{address}/v1/messages", json=body)  # opens the connection
        begin = time.perf_counter()
        reply = client.post(f"{address}/v1/messages", json=body)
        took.append(time.perf_counter() - begin)
assert took[1] > 0.1
print("no answer from afar was there before 100 ms; where it was computed:", reply.json()["usage"]["inference_geo"])

# %% [markdown]
# **[measured here]** A floor that no faster server lowers (article A, section 5.1). `inference_geo` in the reply says
# where a service computed; `not_available` is documented for models without a choice of region. The shares that the
# article counted are one person's log: **[not verifiable here: not ours to count]**.
#
# ### When all are busy
#
# 529 three times in a row, then another model: the rule article A reads out of a client (section 3.6) is in ours, as a
# setting. The public documentation has a fallback and no number: **[not verifiable here: the three]**.

# %%
replicas.close()
small = llmlab.open("mock", num_blocks=64)
server = small.serve(allow_faults=True)
client = small.client(server, fallback_model="other", sleep=lambda seconds: None, retries=RetryPolicy())
question = {"model": "mock", "max_tokens": 3, "messages": [{"role": "user", "content": "hello"}]}
message = client.send(question, {"llmlab-fault": "status=529x3"})
wire = small.trace.wire.query("side == 'client' and kind == 'request'").text
small.close()
assert message.attempts == 4
["other" if '"other"' in text else "mock" for text in wire]

# %% [markdown]
# ## Explain
#
# What arrived is written into blocks of this pool, and the request joins the batch as after a prefix hit:

# %% tags=["nbval-ignore-output"]
excerpt(DecodeEngine._land, containing="landing", lines=8)

# %% [markdown]
# The router's choice by prefix, with its way out when one server has too much to do:

# %% tags=["nbval-ignore-output"]
excerpt(Router._affine, lines=6)

# %% [markdown]
# The prefill process runs the same engine with `max_tokens=0`: same scheduler, same pool, same prefix cache. At the
# end of a prompt it copies the blocks into memory both processes see. No position is computed twice: all but the last
# there, the last here. A request that is preempted here is computed again *here*; sending it back would cost another
# trip.
#
# ## Exercises
#
# ### 1. How long does it travel?
#
# *Easy, 5 minutes.* Microseconds for `nbytes` bytes over a link of `gbits` gigabits per second, latency left out.
#
# <details><summary>Hint</summary>
#
# Links count bits. A gigabit per second is a thousand bits per microsecond.
#
# </details>


# %% tags=["exercise"]
def transfer_us(nbytes, gbits):
    return ...


check.lab18.q1(transfer_us)


# %% tags=["solution"]
def transfer_us(nbytes, gbits):
    return nbytes * 8 / (gbits * 1000)


check.lab18.q1(transfer_us)

# %% [markdown]
# ### 2. Hits under round robin
#
# *Medium, 10 minutes.* One conversation of `turns` turns; the prompt of turn `t` (from 0) has `base + t * growth`
# tokens and begins with the prompt before. `replicas` servers take turns. How many prompt tokens come from a cache in
# all? Leave block boundaries and the answers out.
#
# <details><summary>Hint</summary>
#
# Which was the last turn that the server of turn `t` has seen? That prompt is what it holds.
#
# </details>


# %% tags=["exercise"]
def prefix_hits(base, growth, turns, replicas):
    return ...


check.lab18.q2(prefix_hits)


# %% tags=["solution"]
def prefix_hits(base, growth, turns, replicas):
    return sum(base + (t - replicas) * growth for t in range(replicas, turns))


check.lab18.q2(prefix_hits)

# %% [markdown]
# ### 3. From how many readers on?
#
# *Medium, 8 minutes.* Whole milliseconds: a prompt's K/V travels `transfer_ms`; computing the prompt holds up everybody
# who decodes for `prefill_ms`. From how many decoding streams on does the split spare *more* waiting than it adds?
#
# <details><summary>Hint</summary>
#
# Each stream is spared the prefill once. Only the new request waits for the transfer. Equal is not more.
#
# </details>


# %% tags=["exercise"]
def streams_needed(transfer_ms, prefill_ms):
    return ...


check.lab18.q3(streams_needed)


# %% tags=["solution"]
def streams_needed(transfer_ms, prefill_ms):
    return transfer_ms // prefill_ms + 1


check.lab18.q3(streams_needed)

# %% [markdown]
# ## Break it
#
# The prefill process is killed while a prompt waits for it. One pool less must not be silence:

# %%
victim = split.submit(long_prompt[::-1], max_tokens=4)
os.kill(split.engine.prefill.pid, signal.SIGKILL)
while not split.engine.prefill.is_lost:
    time.sleep(0.01)
try:
    victim.wait()
except PrefillLost as error:
    print(type(error).__name__, "-", error)

# %%
left = split.engine.pool
assert (left.num_used, victim.stop_reason) == (0, "error")
split.close()
print("blocks in use:", left.num_used)

# %% [markdown]
# The request fails by name, its blocks are free, answers being written would go on: their K/V is here. The next
# request starts another prefill process.
#
# ## Recap
#
# - Prefill and decode want different machines. Apart, neither waits for the other; what is sent is K/V, in whole
#   blocks.
# - The bytes are layers x heads x width x 2 x positions. Whether that is little depends on the link and on how many
#   are held up otherwise.
# - Chunks need no second machine, and the newcomer pays with its own first token.
# - A prefix cache on several servers is worth what the router makes of it.
# - Why is the last position of a prompt not sent, but computed where the tokens are made?
#
# ## Next
#
# Lab 19 puts many such machines together: a fleet, simulated with the same scheduler and checked against this engine.
