# %% [markdown]
# # Follow one request from prompt to last token
#
# **Goal.** You ask a real language model one question and can say, for every token of the answer, which engine step
# made it and where its keys and values lie.
#
# **Time.** 20 minutes to read and run, 20 more for the exercises.
#
# **Needs.** The default model (135 million parameters, fetched once, about 2 GB of memory). No GPU; no network once the
# model is there.
#
# The labs check what two Chinese articles say about the way of one request through the whole stack. They are called A,
# 《从敲下回车到吐出第一个字：一次 LLM 请求的全链路解剖》, and B, 《当你向 ChatGPT 提问时会发生什么》.

# %%
import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.labs.excerpt import excerpt
from llmlab.widgets import dashboard

lab = llmlab.open(dtype="float32", num_blocks=64)
lab.model

# %% [markdown]
# `num_blocks=64` makes the pool of K/V blocks small enough to draw; with `dtype="float32"` other machines choose the
# same tokens. Otherwise this is how the model is always served here: paged K/V, prefix cache, continuous batching.
#
# ## Predict
#
# The question is *Name the capital of France.* The engine works in **steps**: one forward pass of the model each. The
# prompt has 36 tokens, and the answer, with the token that ends it, 8. Choose before you go on.

# %%
steps_guess = predict("How many engine steps does the request take part in?", [8, 9, 36, 44])
steps_guess

# %%
blocks_guess = predict("How many K/V blocks of 16 tokens does it hold at the end?", [1, 2, 3, 44])
blocks_guess

# %% [markdown]
# ## Run
#
# The panels below follow the engine while it works. Run the cell, then the next one, and watch them. The form above
# them sends questions of your own; they do not disturb the rest of this notebook.

# %%
live = dashboard(lab, ["token_strip", "batch_lanes", "block_map"])
live

# %%
run = lab.submit("Name the capital of France.", max_tokens=40)
for text in run:
    print(text, end="", flush=True)

# %%
trace = run.trace
assert trace.check() == []
run.stop_reason, run.usage

# %% [markdown]
# `run.trace` is what was recorded about this request, `lab.trace` is everything so far. `check()` recomputes the
# numbers of a trace from one another; an empty list means that all of them agree.
#
# ## Observe
#
# First, where the time went. Bars are to scale; what lies below another bar happened inside it.

# %%
views.waterfall(trace)

# %% [markdown]
# The tokens: the prompt first, as the model's chat template writes it, then the answer.

# %%
views.token_strip(trace)

# %% [markdown]
# The steps: one column each. The first computes the whole prompt, every later one a single token.

# %%
views.batch_lanes(lab.trace)

# %%
steps = trace.schedule.query("action == 'ran'")
assert steps.num_tokens.sum() == run.usage["prompt_tokens"] + run.usage["output_tokens"] - 1
steps_guess.reveal(len(steps))

# %% [markdown]
# The memory, after the last step in which the request ran: the blocks of the pool, and under them its block table.

# %%
views.block_map(lab.trace, int(steps.step.iloc[-2]))

# %%
allocated = trace.blocks.query("action == 'allocate'")
assert list(allocated.block_id) == sorted(set(allocated.block_id))
blocks_guess.reveal(len(allocated))

# %% [markdown]
# Last, the bill: every token counted once, and what the two public APIs would say about it.

# %%
views.usage_ledger(trace)

# %% [markdown]
# ## Explain
#
# The engine knows no prefill mode and no decode mode. In each step a request is given the tokens it is behind:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.request import Request
from llmlab.engine.scheduler import Scheduler

excerpt(Request.num_remaining.fget, lines=4)

# %% tags=["nbval-ignore-output"]
excerpt(Scheduler._share, lines=4)

# %% [markdown]
# After submission it is behind by the whole prompt, so one step computes 36 tokens; the logits of the last of them
# choose the first output token. From then on it is behind by one token a step. The last token, which ends the answer,
# is chosen and never computed: 36 + 8 - 1 positions have keys and values. They fill two blocks and part of a third.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Count steps
#
# *Easy, 3 minutes.* From `trace.requests` alone, without looking at the steps: in how many did the request run?
#
# <details><summary>Hint</summary>
#
# Which column of `trace.requests` counts something that happens exactly once in each of the request's steps? The step
# that computes the prompt does it too.
#
# </details>

# %% tags=["exercise"]
steps_answer = ...
check.lab00.q1(steps_answer, trace)

# %% tags=["solution"]
steps_answer = trace.requests.num_output_tokens.iloc[-1]
check.lab00.q1(steps_answer, trace)

# %% [markdown]
# ### 2. Count blocks
#
# *Easy, 5 minutes.* From the numbers of prompt and output tokens and `trace.info.block_size`: how many blocks?
#
# <details><summary>Hint</summary>
#
# Not every token has keys and values: see under *Explain* which one is chosen and never computed. A block that is only
# partly filled is held too, so think about the rounding.
#
# </details>

# %% tags=["exercise"]
blocks_answer = ...
check.lab00.q2(blocks_answer, trace)

# %% tags=["solution"]
stored = run.usage["prompt_tokens"] + run.usage["output_tokens"] - 1
blocks_answer = -(-stored // trace.info.block_size)
check.lab00.q2(blocks_answer, trace)

# %% [markdown]
# ### 3. Ask again
#
# *Medium, 10 minutes.* The same question a second time:

# %%
again = lab.ask("Name the capital of France.", max_tokens=40)
assert again.token_ids == run.token_ids
again.usage

# %% [markdown]
# Part of the prompt was found in the prefix cache and not computed. How much, for any prompt and block size?
#
# <details><summary>Hint</summary>
#
# Only full blocks are shared, and the last token of the prompt is always computed, because its logits choose the first
# output token. Try a prompt that fills its blocks exactly, such as 32 tokens in blocks of 16.
#
# </details>


# %% tags=["exercise"]
def cached_tokens(num_prompt_tokens, block_size):
    return ...


check.lab00.q3(cached_tokens)


# %% tags=["solution"]
def cached_tokens(num_prompt_tokens, block_size):
    return (num_prompt_tokens - 1) // block_size * block_size


assert cached_tokens(again.usage["prompt_tokens"], 16) == again.usage["cached_tokens"]
check.lab00.q3(cached_tokens)

# %% [markdown]
# ## Break it
#
# A pool of 20 blocks of 4 tokens holds 80 tokens. Two requests that grow to 43 and more do not fit: watch who gives
# way, and whether the answers change.

# %%
small = llmlab.open(dtype="float32", num_blocks=20, block_size=4, background=False)
first = small.submit("Name the capital of France.", max_tokens=40)
second = small.submit("What is the capital of Japan?", max_tokens=40)
print(first.wait().text, second.wait().text, sep="\n")

# %%
assert first.token_ids == run.token_ids
assert first.usage["preemptions"] == 0
assert second.usage["preemptions"] >= 1
print(first.usage, second.usage, sep="\n")

# %%
views.batch_lanes(small.trace)

# %%
views.block_map(small.trace, 5)

# %% [markdown]
# The younger request gave up its blocks in step 4 and came back in step 5. It did not compute everything again: both
# prompts begin alike, so it now shares the older request's first blocks, and some of its own were still cached. Shared
# blocks are needed once, which is why both fit this time. Its tokens are the same, only later.
#
# ## Recap
#
# - A request is a list of tokens and a number: how many of them are computed. Each step moves that number on.
# - Prefill is the step that catches up with the prompt; decode is every step that catches up with one token.
# - Keys and values lie in blocks; a block table says in which. Full blocks are shared with whoever begins the same way.
# - When blocks run out, the youngest request gives way and recomputes what it cannot find; its tokens do not change.
#
# ## Next
#
# Send questions of your own with the form under *Run*. One of its presets sends several at once.
