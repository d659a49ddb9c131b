# %% [markdown]
# # Tell two embeddings apart
#
# **Goal.** You can say what happens to a token id in the first layer of every call, what a sentence embedding and a
# reranker are for, and why these two belong to a chain of their own that ends before the call begins.
#
# **Time.** 25 minutes to read and run, 20 more for the exercises.
#
# **Needs.** The default model (135 million parameters, fetched once, about 2 GB of memory). No GPU; no network once the
# model is there.

# %%
import numpy as np
import torch

import llmlab
from llmlab import Capture, views
from llmlab.checks import check, predict
from llmlab.checks.lab05 import PASSAGES, QUESTIONS
from llmlab.labs.excerpt import excerpt
from llmlab.opening import open as open_model

lab = open_model(dtype="float32", num_blocks=256, optimize=False)
matrix = lab.loaded.model.get_input_embeddings()
tuple(matrix.weight.shape)

# %% [markdown]
# `optimize=False` leaves the model's modules as they are, so that we can put a hook on one of them.
#
# Two things are called **embedding**. The **token embedding** is the matrix above, the first layer of the model: a row
# of 576 numbers for each of its 49,152 tokens. A **sentence embedding** is one vector for a whole text, made to be
# compared with others. They share a name (article A, section 4.1).
#
# ## Predict

# %%
rows_guess = predict("A prompt of 36 tokens: how many vectors leave the first layer?", [1, 36, 576, 49_152])
rows_guess

# %%
again_guess = predict("The same prompt again: how many rows are looked up for its prompt?", [0, 1, 4, 36])
again_guess

# %% [markdown]
# ## Run
#
# A hook writes down which ids the first layer is given, every time it is called.

# %%
looked_up = []
hook = matrix.register_forward_hook(lambda module, args, output: looked_up.append(args[0].flatten().tolist()))
run = lab.ask("Name the capital of France.", max_tokens=10, capture=Capture(embed=True))
print(run.text, [len(ids) for ids in looked_up])

# %%
first_calls = list(looked_up)
looked_up.clear()
again = lab.ask("Name the capital of France.", max_tokens=10)
hook.remove()
print(again.text, [len(ids) for ids in looked_up])

# %% [markdown]
# ## Observe
#
# ### A row per token

# %%
computed = [*run.prompt_token_ids, *run.token_ids[:-1]]
assert [token for ids in first_calls for token in ids] == computed
assert len(first_calls) == len(run.trace.schedule.query("action == 'ran'"))
assert np.array_equal(run.captured.embed.values, matrix.weight[torch.tensor(computed)].numpy())
rows_guess.reveal(len(first_calls[0]))
run.captured.embed

# %% [markdown]
# Each forward pass of the run called the layer once, for every token it computed; the vectors are the matrix's rows,
# **bit for bit**. No arithmetic. **[measured here]** Article B's example: Llama 3 8B has 128,256 rows of 4,096 numbers,
# and token 857 is row 857. **[computed]**

# %%
parameters = 128_256 * 4_096
assert torch.equal(matrix(torch.tensor([857]))[0], matrix.weight[857])
assert 0.06 < parameters / 8.03e9 < 0.07
print(f"Llama 3 8B: {parameters:,} numbers, {parameters * 2 / 1e9:.2f} GB in 16 bits; 40 tokens make [40 x 4096]")
print(f"here: {matrix.weight.numel():,} numbers; {len(run.prompt_token_ids)} tokens make [36 x 576]")

# %% [markdown]
# The second time most of the prompt was served from the prefix cache. Its keys and values were there, so these tokens
# were **not even looked up**, as article A says. **[measured here]**

# %%
assert len(looked_up[0]) == len(run.prompt_token_ids) - again.usage["cached_tokens"]
again_guess.reveal(len(looked_up[0]))

# %% [markdown]
# ### What a row knows
#
# Rows are learned, so tokens that are used alike have similar rows. Similarity here is the **cosine**, the angle
# between two vectors: 1 for the same direction, 0 for none in common.

# %%
words = " doctor Paris strawberry Monday 7"
near = lab.ask(words, raw=True, max_tokens=1, capture=Capture(embed=True, neighbours=3)).captured.neighbours
named = {}
for position in near.labels["position"]:
    word = lab.tokenizer.encode(words)[position]
    named[lab.tokenizer.decode([word])] = [
        lab.tokenizer.decode([int(token)]) for token in near.sel(position=position).values
    ]
print(*named.items(), sep="\n")

# %% [markdown]
# ` doctor` finds ` doctors`, a day finds other days, a digit other digits. A row is the same in every text: it cannot
# know whether *bank* is by a river. That is the business of the layers that follow.
#
# ### One vector per text
#
# Sentence embeddings come from a model of their own. None comes with llmlab; those that article A names, bge and
# text-embedding-3, are **[not verifiable here: needs their weights]**. As a stand-in we use our own model: run it over
# a text, take the states after layer 10, average them over the positions (without the first, whose state is far longer
# than all others), and subtract the average of all texts.


# %%
def states(texts, layer=10):
    """One vector per text: the mean state after a layer."""
    looking = Capture(hidden=[layer], positions="prompt")
    runs = [lab.submit(text, raw=True, max_tokens=1, capture=looking) for text in texts]
    return np.stack([run.wait().captured.hidden.values[0, 1:].mean(axis=0) for run in runs])


def cosines(query, store):
    """Similarity of one vector with every row, measured from the store's centre."""
    rows, query = store - store.mean(axis=0), query - store.mean(axis=0)
    return rows @ query / np.linalg.norm(rows, axis=1) / np.linalg.norm(query)


store = states(PASSAGES)
cat, kitten, invoice = states(
    ["A cat sleeps on the sofa.", "A kitten is napping on the couch.", "The invoice is due on Friday."]
)
same, other = cosines(cat, np.stack([*store, kitten, invoice]))[-2:]
assert same > 0.4 > 0.2 > other
print(len(PASSAGES), "passages,", store.shape, "numbers; a paraphrase lies nearer than another subject")

# %% [markdown]
# A passage of any length becomes one vector of 576 numbers, and texts that mean the same lie close. **[measured here]**
#
# ### Retrieval and rerank: the chain before the call
#
# **Retrieval** finds texts for a question; the **vector store** is a table of such vectors. Article A's chain (4.3):
# the 50 nearest passages, then a **reranker**, a model that scores each of the 50 with the question, and the 5 best go
# into the prompt. Our 60 passages are notes of an invented company. First the coarse half, for ten questions:

# %%
questions, wanted = zip(*QUESTIONS, strict=True)
orders = [np.argsort(-cosines(vector, store), kind="stable") for vector in states(questions)]
places = [int(np.flatnonzero(order == passage)[0]) for order, passage in zip(orders, wanted, strict=True)]
within = {top: sum(place < top for place in places) for top in (1, 5, 50)}
assert within == {1: 6, 5: 9, 50: 10}
print({f"among the first {top}": f"{count} of 10" for top, count in within.items()})

# %% [markdown]
# For nine of ten the right passage is among the first 5, for all among the first 50. Now the tenth. No reranker comes
# with llmlab either, so a causal model does the scoring: how probable does each passage make the question?


# %%
def rerank(question, passages):
    """One score per passage, one model call each: the log-probability of the question after it."""
    asked = lab.tokenizer.encode("\nQuestion: " + question)
    runs = [lab.submit(lab.tokenizer.encode(passage) + asked, max_tokens=1, prompt_logprobs=0) for passage in passages]
    return np.array([sum(value for value, _ in run.wait().prompt_logprobs[-len(asked) :]) for run in runs])


hard = next(number for number, place in enumerate(places) if place >= 5)
question, coarse = questions[hard], orders[hard][:50]
scores = rerank(question, [PASSAGES[passage] for passage in coarse])
best = coarse[np.argsort(-scores, kind="stable")][:5]
assert wanted[hard] not in coarse[:5]
assert best[0] == wanted[hard]
print(f"{question} {len(scores)} scores; first of the coarse order: {PASSAGES[coarse[0]]}")
print(*(PASSAGES[passage] for passage in best[:2]), sep="\n")

# %% [markdown]
# 50 of only 60 is no sieve; with a million passages it is. 50 candidates, 50 calls of a model, and the right passage
# moves from behind the fifth place to the first. **[measured here]** All this yields is text for a prompt:

# %%
notes = "\n".join(f"- {PASSAGES[passage]}" for passage in best)
bare = lab.ask(question, max_tokens=20)
helped = lab.ask(f"Answer from these notes.\n{notes}\n\n{question}", max_tokens=20)
assert ("twenty-fifth" in bare.text, "twenty-fifth" in helped.text) == (False, True)
assert 2.5 < helped.usage["prompt_tokens"] / bare.usage["prompt_tokens"] < 3.5
print(bare.text, helped.text, sep="\n")
print("prompt tokens:", bare.usage["prompt_tokens"], "and", helped.usage["prompt_tokens"])

# %%
views.compare(bare.trace, helped.trace, labels=("without notes", "with notes"))

# %% [markdown]
# Without notes the model invents an answer; with them it reads one. The price is a prompt of about three times the
# tokens, and every one of them is prefilled before the first token comes. The time to it on this machine:

# %% tags=["nbval-ignore-output"]
ttft = [run.trace.requests.ttft_ms.iloc[-1] for run in (bare, helped)]
print(f"{ttft[0]:.0f} ms without notes, {ttft[1]:.0f} ms with them")

# %% [markdown]
# ### And in a plain call?
#
# The same question over the wire, and everything the server did with it. What stages there are does not depend on the
# weights, so the byte-level stand-in answers. **[on the wire]**

# %%
with llmlab.open("mock") as plain:
    body = {"model": plain.model, "max_tokens": 8, "messages": [{"role": "user", "content": question}]}
    plain.client().send(body)
    wire = plain.trace
stages, spans = ([*dict.fromkeys(names)] for names in (wire.stages.name, wire.spans.name))
assert not any(word in name for name in stages + spans for word in ("embed", "retriev", "rerank", "search"))
print("stages:", ", ".join(sorted(stages)))
views.waterfall(wire)

# %% [markdown]
# No sentence embedding, no search, no rerank: a chain that exists, and is not this one. Whoever wants it runs it before
# the call. The token embedding has no stage either: it is inside the forward pass.
#
# | | token embedding | sentence embedding |
# |---|---|---|
# | where | first layer of the model | a model of its own |
# | in | one id | a whole text |
# | out | one row, always the same | one vector for the text |
# | computed | no, looked up | by a full forward pass |
# | compared | by nobody | with a store of others |
# | when | in every pass, for tokens not cached | before the call, if at all |
#
# A reranker is a third thing: it takes question and passage *together* and returns one number, so nothing can be
# prepared in advance. That is why it only sees what the cheap search let through.
#
# ## Explain
#
# The lookup is one indexing of the weights, and the capture proves it by doing the same:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.lean import LeanModel

excerpt(LeanModel.__call__, "self.embed", lines=1)

# %% tags=["nbval-ignore-output"]
from llmlab.probes import neighbours

excerpt(neighbours._nearest, "cosine = ", lines=4)

# %% [markdown]
# Both take rows of the same matrix; the second uses its transpose and adds lengths, to compare one row with all. A
# prompt needs only the first. The cosine search of this lab is the second with another table: one row per passage in
# place of one row per token. That is all a vector store computes; its art lies in not looking at every row.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. The size of a first layer
#
# *Easy, 3 minutes.* How many bytes does Llama 3 8B's embedding matrix take in 16-bit numbers?
#
# <details><summary>Hint</summary>
#
# Rows and numbers per row of that matrix are under *A row per token*. Their product counts numbers; the question is
# about bytes.
#
# </details>

# %% tags=["exercise"]
matrix_bytes = ...
check.lab05.q1(matrix_bytes)

# %% tags=["solution"]
matrix_bytes = 128_256 * 4_096 * 2
check.lab05.q1(matrix_bytes)

# %% [markdown]
# ### 2. A vector store
#
# *Medium, 10 minutes.* `query` is a list of numbers, `rows` a list of such lists. Return the numbers of the `top` rows
# with the largest cosine, nearest first. (No row is zero. Do not subtract a centre.)
#
# <details><summary>Hint</summary>
#
# The cosine is the dot product divided by the lengths of both vectors; the length of `query` is the same for every row.
# `np.argsort` puts the smallest first.
#
# </details>


# %% tags=["exercise"]
def nearest(query, rows, top):
    return ...


check.lab05.q2(nearest)


# %% tags=["solution"]
def nearest(query, rows, top):
    rows = np.array(rows, dtype=float)
    cosine = rows @ np.array(query) / np.linalg.norm(rows, axis=1)
    return [int(row) for row in np.argsort(-cosine, kind="stable")[:top]]


check.lab05.q2(nearest)

# %% [markdown]
# ### 3. What a question costs
#
# *Easy, 5 minutes.* The store of `num_passages` vectors is made once, in advance. How many model calls happen for
# **one** question, before the call that answers it, when `top` candidates are reranked?
#
# <details><summary>Hint</summary>
#
# Go through the chain under *Retrieval and rerank*: which of its steps run a model for this question, and how often,
# and which is only arithmetic? Then think of a store with fewer passages than `top`.
#
# </details>


# %% tags=["exercise"]
def calls_before(num_passages, top):
    return ...


check.lab05.q3(calls_before)


# %% tags=["solution"]
def calls_before(num_passages, top):
    return 1 + min(top, num_passages)


check.lab05.q3(calls_before)

# %% [markdown]
# ## Break it
#
# The store was made with one embedder; somebody changes the embedder and keeps the store. Same width, no error:

# %%
mixed = [np.argsort(-cosines(vector, store), kind="stable") for vector in states(questions, layer=28)]
hits = sum(passage in order[:5] for order, passage in zip(mixed, wanted, strict=True))
assert hits < within[5]
print(f"right passage among the first 5: {within[5]} of 10 before, {hits} of 10 after")
lab.close()

# %% [markdown]
# Vectors of two models, or of two layers, live in different spaces. The search still returns passages, in some order,
# and what is made of them is wrong without any error.
#
# ## Recap
#
# - The token embedding is a table: id in, row out, in every forward pass, only for tokens the cache does not serve.
# - A sentence embedding is a forward pass of some model, averaged to one vector, to be compared with others.
# - Retrieval and rerank happen before the call. What they leave is a longer prompt, and you pay for its prefill.
# - Which of the three (row, sentence vector, rerank score) may be computed before the question is known?
#
# ## Next
#
# [Lab 06](06_forward.ipynb) follows the rows through the layers.
