# %% [markdown]
# # Work out what fits, and make it smaller
#
# **Goal.** You can say, from a model's configuration, how many bytes its weights and its keys and values take, which
# device holds them with how many requests, and what rounding the weights saves, costs and slows down.
#
# **Time.** 30 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters, about 3 GB of memory for three copies). No GPU, no network.

# %%
import pandas as pd
from safetensors import safe_open

import llmlab
from llmlab import views
from llmlab.bench.linear_pass import passes_ms
from llmlab.bench.quality import fixed_text, perplexity, same_share
from llmlab.checks import check, predict
from llmlab.labs.excerpt import excerpt
from llmlab.models.quantize import linear_bytes, quantized_layers, resident_bytes
from llmlab.models.quantized_format import Quantization
from llmlab.models.quantized_weight import round_weight
from llmlab.opening import open as open_model
from llmlab.planner.memory import plan_memory, what_fits
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.pictures import fits_grid, memory_stack
from llmlab.planner.weights import weight_bytes

options = {"dtype": "bfloat16", "num_blocks": 64, "background": False}
lab = open_model(**options)
shape = ModelShape.of(lab.model_path)
shape.facts()

# %% [markdown]
# A serving engine keeps two large things in memory: the **weights**, once for everybody, and the **keys and values**
# (K/V) of every token of every open request. What a step computes on the way is small beside them. Both sizes follow
# from the few numbers above, so they can be worked out before anything is bought.
#
# ## Predict

# %%
cards = predict("Llama 3 70B in 16-bit numbers: how many H100 with 80 GB do its weights alone need?", [1, 2, 4, 8])
cards

# %%
smaller = predict(
    "Linear layers in 4-bit integers instead of 16-bit floats: how many times fewer bytes, scales counted?",
    ["2.0", "3.2", "4.0", "5.0"],
)
smaller

# %% [markdown]
# ## Run
#
# ### The arithmetic, checked on this model
#
# Computed from the configuration, beside what is really allocated. The engine reorders linear weights for its matrix
# kernel, so the output head cannot share its memory with the embedding as it does in the file: it is there twice.

# %%
model = lab.loaded.model
computed, twice = weight_bytes(shape, "bf16"), shape.vocab_size * shape.hidden_size * 2
allocated = resident_bytes(model)
assert allocated == computed + twice
print(f"{computed:,} bytes computed for {shape.num_parameters:,} parameters, and {twice:,} for the head's own copy")
print(f"{allocated:,} bytes allocated")

# %%
pool = lab.engine.runner.pool
stored = sum(part.nbytes for part in (*pool.keys, *pool.values))
tokens = lab.trace.info.num_blocks * lab.trace.info.block_size
assert stored == tokens * shape.kv_bytes_per_token("bf16") == tokens * lab.trace.info.kv_bytes_per_token
f"{tokens:,} tokens of K/V: {stored:,} bytes, {stored // tokens:,} a token"

# %% [markdown]
# **[measured here]** Every byte of both is accounted for.
#
# ### Models that do not fit here
#
# The same arithmetic for the models of the articles, as article B counts (section *If the weights do not fit*): every
# parameter at its nominal width, nothing set aside for anything else.

# %%
nominal = {"reserve": 0, "step_tokens": 0, "scope": "all", "context": 8192}
plans = [
    plan_memory("Llama-3-8B", "h100", **nominal),
    plan_memory("Llama-3-70B", "h100", **nominal),
    plan_memory("Llama-3-70B", "h100", num_devices=2, **nominal),
    plan_memory("Llama-3-70B", "h100", weights="fp8", **nominal),
    plan_memory("Llama-3-70B", "h100", weights="int4", **nominal),
    plan_memory("Llama-3-70B", "h200", **nominal),
    plan_memory("Llama-3-70B", "b200", **nominal),
]
memory_stack(plans)

# %%
needed = next(n for n in (1, 2, 4, 8) if plan_memory("Llama-3-70B", "h100", num_devices=n, **nominal).weights_fit)
cards.reveal(needed, how="Computed")
pd.DataFrame(
    {
        "model": plan.shape.name,
        "weights": plan.weights.name,
        "on": f"{plan.num_devices} x {plan.device.name}",
        "weights, GB a device": round(plan.weight_bytes / 1e9, 1),
        "left, GB": round(plan.room_bytes / 1e9, 1),
        "tokens of K/V": plan.num_tokens,
    }
    for plan in plans
)

# %% [markdown]
# **[computed]** 8B takes 16.1 GB and 70B 141.1 GB, so a card of 80 GB holds the first and not the second. In 8 bits 70B
# leaves room for 28,827 tokens on one card, in 4 bits for 136,484: that is the "together with its cache" of article B.
# What those formats do to speed on such a card is **[not verifiable here: no GPU]**. The sizes of the H200 (141 GB) and
# the B200 (180 GB) are the maker's; on the first 70B in 16 bits misses by 0.1 GB, and nobody could be served anyway.
#
# In practice the head and the embedding stay in 16 bits, integers need scales, and a tenth of the memory is left free:

# %%
fits_grid(what_fits("Llama-3-70B", "h200", [2048, 8192, 32768, 131072], ["bf16", "fp8", "int4"]))

# %% [markdown]
# ## Observe
#
# ### What rounding does to a weight
#
# **int4** divides each row of a matrix into groups of 32 weights. A group gets 16 equally spaced levels between its
# smallest and its largest weight; a weight becomes the number of the nearest level. Three groups of this model:

# %%
with safe_open(lab.model_path / "model.safetensors", "pt") as file:
    matrix = file.get_tensor("model.layers.7.self_attn.o_proj.weight")


def drawn(quantization, channel=5, groups=3):
    """The first weights of one output channel, before and after rounding."""
    rounded, part = round_weight(matrix, quantization), slice(0, 32 * groups)
    scales, zeros = rounded.scales[channel, :groups].float(), rounded.zeros[channel, :groups].float()
    return views.rounding(matrix[channel, part], rounded.codes[channel, part], scales, zeros, what="layer 7, o_proj")


drawn(Quantization("int4"))

# %% [markdown]
# Every weight already lies on a level. **This model was rounded before**: the file it comes from holds 4-bit weights in
# the same groups of 32, and int4 finds its levels again. So bytes and speed below are real, and what four bits cost a
# model that was never rounded is **[not verifiable here: there are no such weights]**. What can be
# measured is what happens with a coarser grid. One scale for the whole matrix:

# %%
drawn(Quantization("int4", scales="tensor"))

# %% [markdown]
# ### Bytes, answers, perplexity
#
# **Perplexity** is how many tokens the model hesitates between, on average, over a fixed text; lower is better. The
# same model with its linear layers in int8 (a scale per row) and int4:

# %%
labs = {"bf16": lab} | {name: open_model(**options, quantize=name) for name in ("int8", "int4")}
ids = lab.tokenizer.encode(fixed_text(), add_special_tokens=False)[:480]
text = lab.tokenizer.decode(ids)
bytes_of = pd.DataFrame(
    {
        "linear layers": {name: linear_bytes(each.loaded.model) for name, each in labs.items()},
        "all weights": {name: resident_bytes(each.loaded.model) for name, each in labs.items()},
    }
)
smaller.reveal(f"{bytes_of['linear layers']['bf16'] / bytes_of['linear layers']['int4']:.1f}")
bytes_of

# %%
assert bytes_of["all weights"]["int4"] == weight_bytes(shape, "int4") + twice
print(len(quantized_layers(labs["int4"].loaded.model)), "linear layers are on integers; head and embedding are not")

# %%
hesitates = {name: perplexity(each, text) for name, each in labs.items()}
assert all(value < 1.03 * hesitates["bf16"] for value in hesitates.values())
print("int8 and int4: perplexity at most 3 percent above bf16")

# %% tags=["nbval-ignore-output"]
{name: round(value, 2) for name, value in hesitates.items()}

# %%
questions = ["Name the capital of France.", "Why is the sky blue?"]
answers = {
    name: [each.ask(question, max_tokens=16, ignore_eos=True).token_ids for question in questions]
    for name, each in labs.items()
}
{name: "Paris" in lab.tokenizer.decode(found[0]) for name, found in answers.items()}

# %% tags=["nbval-ignore-output"]
{name: f"{same_share(answers[name], answers['bf16']):.0%} of the tokens as in bf16" for name in ("int8", "int4")}

# %% [markdown]
# **[measured here]** A greedy answer that differs in one token goes on differently; equal perplexity does not promise
# equal answers.
#
# ### Where it is faster, and where it is not
#
# One pass through the linear layers with 1 to 64 rows. *kernel* multiplies integers and expands them in registers,
# anew for every few rows; *expanded* makes ordinary weights of them first, once a pass.

# %% tags=["nbval-ignore-output"]
times = passes_ms({name: each.loaded.model for name, each in labs.items()}, rows=(1, 4, 16, 64), rounds=2)
views.row_costs(times)

# %%
growth = {name: times[64][name] / times[1][name] for name in ("bf16", "int4, kernel")}
assert growth["int4, kernel"] > growth["bf16"]
print("From 1 row to 64, the time of the int4 kernel grows by a larger factor than that of bf16.")

# %% [markdown]
# **[measured here]** With one row, a pass is as long as it takes to read the weights, and fewer bytes are read sooner.
# With many rows it is arithmetic, and integers have to be expanded first. Each layer here takes the kernel for few rows
# and expands for many; `Quantization(dequantize_from=...)` moves the point. On a GPU the same flip lies
# at other numbers, **[not verifiable here: no GPU]**.

# %%
for each in labs.values():
    each.close()

# %% [markdown]
# ## Explain
#
# The level spacing of a group, and the number of the nearest level:

# %% tags=["nbval-ignore-output"]
from llmlab.models import quantized_weight

excerpt(quantized_weight._round4, containing="scales = ", lines=4)

# %% [markdown]
# The choice between the kernel and expanding, by the rows of the pass:

# %% tags=["nbval-ignore-output"]
from llmlab.models.quantized_linear import QuantizedLinear

excerpt(QuantizedLinear.forward, containing="flat", lines=3)

# %% [markdown]
# Only weights are rounded; activations and K/V keep 16 bits. When such a model is opened, its rounded weights are first
# put into the untouched modules, which say what the answer is; the integer kernels then have to give the same.
#
# ## Exercises
#
# ### 1. K/V of any model
#
# *Easy, 5 minutes.* How many bytes do the keys and values of `num_tokens` tokens take? `size` is the bytes of a number.
#
# <details><summary>Hint</summary>
#
# Each layer stores a key and a value per K/V head. One of the arguments plays no part: which heads are never stored?
#
# </details>


# %% tags=["exercise"]
def kv_bytes(num_layers, num_heads, num_kv_heads, head_dim, num_tokens, size):
    return ...


check.lab16.q1(kv_bytes)


# %% tags=["solution"]
def kv_bytes(num_layers, num_heads, num_kv_heads, head_dim, num_tokens, size):
    return 2 * num_layers * num_kv_heads * head_dim * num_tokens * size


assert kv_bytes(30, 9, 3, 64, tokens, 2) == stored
check.lab16.q1(kv_bytes)

# %% [markdown]
# ### 2. How many requests fit?
#
# *Medium, 8 minutes.* K/V is given out in blocks of `block_size` tokens. `memory` bytes hold the weights and as many
# requests of `num_tokens` tokens as possible: how many?
#
# <details><summary>Hint</summary>
#
# What is left after the weights is cut into whole blocks, and a request takes whole blocks. Round each the right way.
#
# </details>


# %% tags=["exercise"]
def requests_that_fit(memory, weights, kv_per_token, block_size, num_tokens):
    return ...


check.lab16.q2(requests_that_fit)


# %% tags=["solution"]
def requests_that_fit(memory, weights, kv_per_token, block_size, num_tokens):
    blocks = (memory - weights) // (kv_per_token * block_size)
    return blocks // -(-num_tokens // block_size)


check.lab16.q2(requests_that_fit)

# %% [markdown]
# The engine agrees, here on the model without weights, with a pool of 100 blocks of 16 tokens and requests of 120:

# %%
limits = {"num_blocks": 100, "max_num_seqs": 64, "max_num_batched_tokens": 10_000, "prefix_cache": "off"}
with llmlab.open("mock", background=False, **limits) as crowd:
    for _ in range(30):
        crowd.submit([*range(40, 160)], max_tokens=1)
    crowd.engine.step()
    together = int(crowd.trace.steps.num_rows.iloc[0])
assert together == requests_that_fit(100 * 16, 0, 1, 16, 120)
together

# %% [markdown]
# ### 3. Bytes of int4
#
# *Medium, 8 minutes.* A matrix of `rows` x `columns` weights in `bits` bits each, with a 16-bit scale and a 16-bit zero
# for every `group` weights of a row. How many bytes?
#
# <details><summary>Hint</summary>
#
# Count bits of the codes and bits of scales and zeros apart, then divide by eight. The answer to *Predict* follows.
#
# </details>


# %% tags=["exercise"]
def integer_bytes(rows, columns, bits, group):
    return ...


check.lab16.q3(integer_bytes)


# %% tags=["solution"]
def integer_bytes(rows, columns, bits, group):
    return rows * columns * bits // 8 + rows * (columns // group) * 4


assert integer_bytes(576, 576, 4, 32) == round_weight(matrix, Quantization("int4")).nbytes
check.lab16.q3(integer_bytes)

# %% [markdown]
# ## Break it
#
# One scale for each whole matrix: one far-off weight sets the distance of the levels for all of them.

# %%
coarse = open_model(**options | {"dtype": "float32"}, quantize=Quantization("int4", scales="tensor"))
broken = perplexity(coarse, text)
assert linear_bytes(coarse.loaded.model) == bytes_of["linear layers"]["int4"]
assert broken > 20 * hesitates["bf16"]
print("The same bytes, and a perplexity more than 20 times that of bf16.")

# %% tags=["nbval-ignore-output"]
print(round(broken), repr(coarse.ask("Name the capital of France.", max_tokens=8, ignore_eos=True).text))
coarse.close()

# %% [markdown]
# **[measured here]** Scales and zeros are a fifth of int4's bytes, and they make the other four fifths worth having.
#
# ## Recap
#
# - Weights are parameters times bytes; K/V is tokens times two, layers, K/V heads, width and bytes.
# - What is left after the weights decides how many requests there can be; rounding weights buys room for K/V.
# - Four-bit weights with their scales take five bits, so 3.2 times less than sixteen.
# - Fewer bytes are faster while a step is spent reading weights, and slower once it is spent on arithmetic.
# - Why can perplexity be the same and a greedy answer differ?
#
# ## Next
#
# Lab 17 divides a model over several processes, for when one device is not enough.
