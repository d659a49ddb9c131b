# %% [markdown]
# # Choose the next token
#
# **Goal.** You can follow one choice from 49,152 numbers to one token, say what temperature, top-k, top-p and min-p
# each took away, and when the chosen token's keys and values are really stored.
#
# **Time.** 30 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters, about 2 GB of memory). No GPU, no network.

# %%
import pandas as pd
import torch

import llmlab
from llmlab import Capture, views
from llmlab.checks import check, predict
from llmlab.client.assemble import Options, assemble
from llmlab.client.entry import Entry
from llmlab.engine.distribution import probabilities
from llmlab.engine.scheduler import Scheduler
from llmlab.errors import LabError
from llmlab.labs.excerpt import excerpt
from llmlab.widgets import dashboard

lab = llmlab.open(dtype="float32", num_blocks=128)
has_weights = lab.loaded is not None
lab.model

# %% [markdown]
# After each forward pass the model has one number for every token of its **vocabulary**: the **logits**. **Softmax**
# turns them into probabilities. **Sampling** draws one token; before the draw a request may change the distribution:
# **temperature** divides the logits, **top-k** keeps the k likeliest tokens, **top-p** (nucleus) the fewest likeliest
# that reach the probability p together, **min-p** those that have at least a share of the likeliest one's probability.
#
# ## Predict
#
# `top_p=0.9`, for two texts that go on very differently:

# %%
counting = predict("How many of 49,152 tokens are kept after '1, 2, 3, 4, 5,'?", [1, 2, 40, 44236])
counting

# %%
favourite = predict("And after 'My favourite'?", ["fewer than 50", "50 to 1000", "more than 1000"])
favourite

# %%
stored = predict("Prompt 15 tokens, answer 2. How many positions have keys and values at the end?", [14, 15, 16, 17])
stored

# %% [markdown]
# ## Run
#
# The panels show the choices as they are made. `capture=Capture(distribution=10)` records, for every output token, what
# each stage of the sampler did to the ten likeliest.

# %%
live = dashboard(lab, ["distribution", "token_strip"])
live

# %%
settings = {"temperature": 0.8, "top_k": 50, "top_p": 0.9, "min_p": 0.05, "seed": 1}
run = lab.ask("I think that", raw=True, max_tokens=1, **settings, capture=Capture(distribution=10))
assert run.trace.check() == []
views.distribution(run.trace)

# %% [markdown]
# Read it from left to right: a column is a stage. Temperature changes heights and excludes nobody; the filters exclude
# and the rest is scaled up to 1 again. The draw is one number between 0 and 1: the token whose stretch it falls on.
#
# ## Observe
#
# ### From the hidden state to the distribution
#
# The last layer's state at the last position, normed and multiplied by the output matrix (**LM head**), is the logits:

# %%
if has_weights:
    seen = lab.ask("The capital of France is", raw=True, max_tokens=1, logprobs=0, capture=Capture(hidden=[-1]))
    model = lab.engine.runner.loaded_model
    state = torch.as_tensor(seen.captured.hidden.values[-1, -1])
    with torch.inference_mode():
        logits = model.lm_head(model.model.norm(state))
    log_probabilities = logits.log_softmax(dim=-1)
    assert abs(float(log_probabilities.exp().sum()) - 1) < 1e-4
    assert int(logits.argmax()) == seen.token_ids[0]
    assert abs(float(log_probabilities[seen.token_ids[0]]) - seen.outputs[0].logprobs[0]) < 1e-4
    print(tuple(state.shape), "->", tuple(logits.shape), repr(seen.text))

# %% [markdown]
# **[measured here]** 576 numbers become 49,152, of the last position only (article B, "The model draws a token", has
# 128,256 for Llama 3). Checked against the log-probability the engine recorded.
#
# ### Temperature


# %%
def choice(text, count=8, **params):
    """How the token after ``text`` was chosen."""
    run = lab.ask(text, raw=True, max_tokens=1, seed=1, **params, capture=Capture(distribution=count))
    return run.captured.distribution.choices[0]


temperatures = [0, 0.3, 0.7, 1, 1.5, 2]
final = [choice("My favourite", temperature=t) for t in temperatures]
entropies = [one.entropy[-1] for one in final]
assert entropies == sorted(entropies)
assert list(final[0].prob[-1][:2]) == [1, 0]  # temperature 0: the likeliest has everything
assert abs(final[3].prob[0] - final[3].prob[-1]).max() < 1e-6  # temperature 1: the model's own distribution
top = [one.prob[-1].max() for one in final]
assert top == sorted(top, reverse=True)
pd.DataFrame({"temperature": temperatures, "entropy (nats)": [abs(round(e, 1)) for e in entropies]})

# %% [markdown]
# **[measured here]** Higher is flatter, every time: the **entropy** (how open the choice is; 0 when it is settled)
# rises and the likeliest token's share falls. At 0 the likeliest is taken without a draw (**greedy**).
#
# ### Top-k and top-p
#
# The same two filters in five places:

# %%
texts = ["1, 2, 3, 4, 5,", "The capital of France is", "The opposite of hot is", "I think that", "My favourite"]
by_p = {text: choice(text, temperature=1, top_p=0.9) for text in texts}
by_k = {text: choice(text, temperature=1, top_k=40) for text in texts}
kept_by_p = {text: int(one.possible[-1]) for text, one in by_p.items()}
assert {int(one.possible[-1]) for one in by_k.values()} == {40}
counting.reveal(kept_by_p["1, 2, 3, 4, 5,"])
many = kept_by_p["My favourite"]
favourite.reveal("more than 1000" if many > 1000 else "50 to 1000" if many >= 50 else "fewer than 50")

# %%
assert not has_weights or list(kept_by_p.values()) == sorted(kept_by_p.values())
assert not has_weights or many > 500 * kept_by_p["1, 2, 3, 4, 5,"]
pd.Series({text: "more than 1000" if n > 1000 else n for text, n in kept_by_p.items()}, name="kept by top_p=0.9")

# %% [markdown]
# **[measured here]** Top-k keeps 40 everywhere: 38 too many after the numbers, and too few for a fair choice of
# favourites. Top-p follows the model's certainty. Is its set really the smallest?

# %%
whole = choice("I think that", count=49152, temperature=1, top_p=0.9)
kept = whole.prob[0][whole.prob[-1] > 0]
assert len(kept) == whole.possible[-1]
assert kept.sum() >= 0.9 > kept.sum() - kept.min()
print("The kept tokens reach 0.9 together; without the least likely of them they do not.")

# %% [markdown]
# ### When does an answer end?
#
# `max_tokens` ends it after a number of tokens, wherever that is; a **stop sequence** ends it before a string. Strings
# know no tokens: this one begins in the middle of one and ends in the middle of the next.

# %%
prompt = "Name three primary colours, one per line."
free = lab.ask(prompt, max_tokens=16)
at = len(free.text) // 2
stop = free.text[at : at + 5]
stopped = lab.ask(prompt, max_tokens=16, stop=stop)
assert (free.stop_reason, stopped.stop_reason) == ("length", "stop_string")
assert stopped.text == free.text[:at]
print(repr(free.text), repr(stop), repr(stopped.text), sep="\n")

# %%
views.token_strip(stopped.trace)

# %% [markdown]
# **[measured here]** The engine stops when the string is *complete*: the token that completes it was chosen and is
# counted, its text is cut. Text that may be the beginning of a stop sequence is held back, so that nothing of it is
# ever sent. The same through the Messages API:

# %%
client = lab.client()
body = {"model": lab.model, "max_tokens": 16, "messages": [{"role": "user", "content": prompt}]}
plain = client.send(body)
at = len(plain.text) // 2
stop = plain.text[at : at + 5]
message = client.send(body | {"stop_sequences": [stop]})
assert message.text == plain.text[:at]
print(plain.stop_reason, plain.usage["output_tokens"])
print(message.stop_reason, repr(message.stop_sequence), message.usage["output_tokens"])

# %% [markdown]
# **[on the wire]** Two stop reasons, two meanings. Which sampling fields an API takes at all is a matter of its version
# (article A, section 2.5, describes the older one):

# %%
wire = llmlab.open("mock")
thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 1025}


def status(version, fields):
    """The HTTP status of a small request with these fields."""
    hello = {"model": wire.model, "max_tokens": 1, "messages": [{"role": "user", "content": "Hello"}]}
    try:
        wire.client(version=version).send(hello | fields)
    except LabError as error:
        return error.status
    return 200


asked = {
    "temperature 0.5": {"temperature": 0.5},
    "temperature 1": {"temperature": 1},
    "thinking, temperature 0.5": thinking | {"temperature": 0.5},
    "thinking, top_k 5": thinking | {"top_k": 5},
    "thinking, top_p 0.9": thinking | {"top_p": 0.9},
    "thinking, top_p 0.97": thinking | {"top_p": 0.97},
}
answers = {v: {name: status(v, fields) for name, fields in asked.items()} for v in ("2023-06-01", "2026-10-21")}
wire.close()
pd.DataFrame(answers)

# %% [markdown]
# **[corrected: depends on the version]** Locked to 1 while thinking is on: true on version 2023-06-01. Since version
# 2026-10-21 sampling fields are refused always, which is article B's "some APIs drop the knobs". That reasoning models
# run at lower temperatures is **[not verifiable here: no such model]**. A client that follows article A leaves the
# field out when thinking is on:

# %%
says = [Entry("user", ({"type": "text", "text": "Hello"},))]
modes = {"thinking off": None, "thinking on": thinking["thinking"]}
sent = {name: assemble(lab.model, says, options=Options(temperature=1, thinking=mode)) for name, mode in modes.items()}
sampling = ("temperature", "top_p", "top_k", "stop_sequences")
{name: [field for field in body.request if field in sampling] for name, body in sent.items()}

# %% [markdown]
# The default is a fact about each service: article B gives temperature 1 and no top-p for Chat Completions, which is
# **[not verifiable here: another service's default]**; this engine is greedy unless told otherwise, so that runs
# repeat. What can be checked is that 1 and "off" change nothing:

# %%
spelled = {"temperature": 1, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "seed": 7}
first = lab.ask(prompt, max_tokens=12, temperature=1, seed=7)
assert lab.ask(prompt, max_tokens=12, **spelled).token_ids == first.token_ids
print("Same tokens.")

# %% [markdown]
# ### When are keys and values stored?
#
# A prompt of 15 tokens, an answer of 2, blocks of 16 positions:

# %%
short = lab.ask([*range(100, 115)], max_tokens=2, ignore_eos=True)
ran = short.trace.schedule.query("action == 'ran'").set_index("step")
chosen = short.trace.tokens.dropna(subset="index").set_index("step").position
first, last = ran.start, ran.start + ran.num_tokens - 1
timing = pd.DataFrame({"stores K/V of": [f"{a} to {b}" for a, b in zip(first, last, strict=True)]})
timing["then chooses the token for"] = list(chosen)
timing.rename_axis("step of the request")

# %%
blocks = short.trace.blocks.query("action == 'allocate'")
assert len(blocks) == 1  # 17 tokens, but only 16 have keys and values
assert last.max() == chosen.max() - 1
stored.reveal(int(last.max()) + 1)

# %% [markdown]
# **[measured here]** As article A (section 5.8) stresses: a step stores keys and values of its *input*. The token it
# chooses has none yet; they come with the next step, and for the last token never. 17 tokens fit into one block of 16.
#
# ## Explain
#
# The whole sampler before the draw. `_kept` applies top-k, top-p and min-p in this order, each to what is left:

# %% tags=["nbval-ignore-output"]
excerpt(probabilities, containing="weights = ", lines=7)

# %% [markdown]
# The draw is a place on the line of cumulated probabilities. Its number is made from the request's seed and the
# position, not from what was drawn before, so neighbours in the batch change nothing. And the line that moves on what
# is stored, after the forward pass and before the choice:

# %% tags=["nbval-ignore-output"]
excerpt(Scheduler.advance, containing="num_computed", lines=1)

# %% [markdown]
# ## Exercises
#
# ### 1. The nucleus
#
# *Easy, 5 minutes.* How many tokens does top-p keep? `probs` are in any order and add up to 1.
#
# <details><summary>Hint</summary>
#
# Add up, beginning with the likeliest token. Decide with care whether the token with which the sum reaches `top_p`
# belongs to the set, and whether one more does.
#
# </details>


# %% tags=["exercise"]
def kept_by_top_p(probs, top_p):
    return ...


check.lab11.q1(kept_by_top_p)


# %% tags=["solution"]
def kept_by_top_p(probs, top_p):
    mass, count = 0, 0
    for prob in sorted(probs, reverse=True):
        if mass < top_p:
            mass, count = mass + prob, count + 1
    return count


check.lab11.q1(kept_by_top_p)

# %% [markdown]
# ### 2. Min-p
#
# *Easy, 5 minutes.* How many tokens does min-p keep?
#
# <details><summary>Hint</summary>
#
# `min_p` is not the limit itself, but a share of one of the numbers in `probs`. A token exactly at the limit has *at
# least* that share.
#
# </details>


# %% tags=["exercise"]
def kept_by_min_p(probs, min_p):
    return ...


check.lab11.q2(kept_by_min_p)


# %% tags=["solution"]
def kept_by_min_p(probs, min_p):
    return sum(prob >= min_p * max(probs) for prob in probs)


check.lab11.q2(kept_by_min_p)

# %% [markdown]
# ### 3. What a stop sequence costs
#
# *Medium, 10 minutes.* `pieces` are the texts of the tokens in the order in which they are chosen. How many tokens are
# chosen, and so counted as output, when generation ends at the stop sequence?
#
# <details><summary>Hint</summary>
#
# The string may begin in one piece and end in a later one, so look at the text of all pieces so far. Ask which token
# completes it, and what happens when none does.
#
# </details>


# %% tags=["exercise"]
def tokens_until_stop(pieces, stop):
    return ...


check.lab11.q3(tokens_until_stop)


# %% tags=["solution"]
def tokens_until_stop(pieces, stop):
    for count in range(1, len(pieces) + 1):
        if stop in "".join(pieces[:count]):
            return count
    return len(pieces)


pieces = [lab.tokenizer.decode([token_id]) for token_id in free.token_ids]
assert tokens_until_stop(pieces, free.text[len(stopped.text) :][:5]) == len(stopped.token_ids)
check.lab11.q3(tokens_until_stop)

# %% [markdown]
# ## Break it
#
# Temperature 1.8 and no filter. The tail of the distribution has tens of thousands of tokens, each of them nearly
# impossible; together they are not.

# %%
hot = {"max_tokens": 24, "temperature": 1.8, "seed": 3, "ignore_eos": True, "capture": Capture(distribution=5)}
wild, tamed = (lab.ask("Name the capital of France.", min_p=min_p, **hot) for min_p in (0, 0.1))
worst = [max(int(one.rank[one.chosen]) for one in run.captured.distribution.choices) for run in (wild, tamed)]
assert not has_weights or worst[0] > 1000 > 100 > worst[1]
print("Least likely token chosen: rank above 1000 without a filter, below 100 with min_p=0.1.")

# %% tags=["nbval-ignore-output"]
print(wild.text, tamed.text, sep="\n---\n")

# %% [markdown]
# The same seed and temperature. Without a filter, words fall apart after a few tokens, and every bad one is context for
# the next. With `min_p` only what is not absurd beside the likeliest can come; the answer wanders, but it reads. That
# is why services give top-p or a default filter together with temperature.
#
# ## Recap
#
# - A choice is: logits, penalties, temperature, top-k, top-p, min-p, one number drawn. Each stage can be recorded.
# - Top-k keeps a fixed number, top-p a fixed mass, min-p whatever is not too far below the likeliest.
# - A stop sequence is looked for in text; tokens that complete it are chosen, counted and not shown.
# - A step stores the keys and values of its input, never those of the token it chooses.
# - Why does a seeded request give the same tokens alone and in a batch?
#
# ## Next
#
# Lab 12 lets something cheap guess several tokens and the model check them at once, without changing this distribution.
