# %% [markdown]
# # Split a model over processes
#
# **Goal.** You can say what each way of splitting a model sends, how often, and what keeps its parts waiting; and you
# have watched a mixture of experts learn, with and without a reason to share its tokens.
#
# **Time.** 35 minutes to read and run (two of them train a model), 25 more for the exercises.
#
# **Needs.** The default model (135 million parameters), divided over two and over three processes: about 4 GB of
# memory. No GPU, no network.

# %%
import os
import signal
import tempfile

import numpy as np
import pandas as pd
import torch
from IPython.display import DisplayHandle

import llmlab
from llmlab import Capture, opening, views
from llmlab.checks import check, predict
from llmlab.errors import RankFailed
from llmlab.labs.excerpt import excerpt
from llmlab.parallel.experts import DispatchedExperts
from llmlab.parallel.tensor import SummedLinear
from llmlab.planner.model_shape import ModelShape
from llmlab.planner.parallelism import pairs_away, tensor_parallel_bytes
from llmlab.planner.roofline import decode, prefill
from llmlab.planner.split_step import split_step
from llmlab.trace.bubble import bubble
from llmlab.training.moe import train_moe
from llmlab.training.moe_model import MoeSize
from llmlab.training.moe_view import learning
from llmlab.views.expert_load import expected_experts

OPTIONS = {"dtype": "float32", "num_blocks": 64, "background": False, "prefix_cache": "off"}
PROMPTS = ["The capital of France is", "One, two, three,", "My favourite colour is", "2 + 2 ="]


def answers(lab, prompts, max_tokens=6, **options):
    """The tokens of all prompts, served together."""
    runs = [lab.submit(p, raw=True, max_tokens=max_tokens, ignore_eos=True, **options) for p in prompts]
    for run in runs:
        run.wait()
    assert lab.trace.check() == []
    return [run.token_ids for run in runs]


# %% [markdown]
# A model that does not fit on one device is cut. **Tensor parallel** cuts every matrix: all processes work on the same
# token at once. **Pipeline parallel** gives each process (**stage**) a run of layers: a token passes through them.
# **Expert parallel** divides the experts of a **mixture of experts** (MoE): each layer has several MLPs, a **router**
# sends each token to a few. Every process is a **rank**. What is done by several together is a **collective**: in an
# **all-reduce** everybody gets the sum of everybody's numbers, in an **all-to-all** each sends something to each.
#
# Here ranks are processes of this machine and their link is a socket, so nothing gets faster. What is sent, when, and
# who waits is the same as on GPUs, and it is counted.
#
# ## Predict
#
# The model has 30 layers. Each has attention, which ends in a matrix, and an MLP, which ends in a matrix.

# %%
sums = predict("Tensor parallel over 3 ranks: how many all-reduces in one step?", [1, 30, 60, 90])
sums

# %%
idle = predict("Pipeline of 2 stages, one token in flight: how many percent of the slots are empty?", [0, 25, 50, 75])
idle

# %% [markdown]
# An MoE with 8 experts, of which each token uses 2. A decode step has 8 tokens, of 8 requests.

# %%
read = predict("About how many of a layer's experts does the step read?", [2, 5, 7, 16])
read

# %% [markdown]
# ## Run
#
# First the whole model, in one process: the tokens that every split has to repeat.

# %%
whole = llmlab.open(**OPTIONS)
is_real = whole.loaded is not None  # the stand-in without weights runs this too, and cannot be split
how = "Measured" if is_real else "Computed"
expected = answers(whole, PROMPTS)
kv_bytes = whole.engine.runner.capacity.kv_bytes_per_token
whole.close()
expected

# %% [markdown]
# ### A pipeline
#
# Two stages of 15 layers. A step's tokens are cut into at most four **micro-batches** that follow each other.

# %%
pipeline = llmlab.open(**OPTIONS, **({"pipeline_parallel": 2, "micro_batches": 4} if is_real else {}))
assert answers(pipeline, PROMPTS) == expected
assert answers(pipeline, PROMPTS[1:2]) == expected[1:2]
last = pipeline.trace.steps.step.max()
views.rank_lanes(pipeline.trace, first_step=int(last) - 6, last_step=int(last) - 5) if is_real else None

# %%
many, single = (bubble(pipeline.trace, step) for step in (1, int(last))) if is_real else (None, None)
if is_real:
    print("4 requests:", many.idle, "of", many.stages * many.slots, "slots empty")
    print("1 request: ", single.idle, "of", single.stages * single.slots, "slots empty")
    assert (many.idle_share, single.idle_share) == (1 / 5, 1 / 2)
idle.reveal(round(100 * single.idle_share) if is_real else 50, how)

# %% [markdown]
# **[measured here]** With one token in flight one of two stages always stands idle, as article B says; slots are
# counted, because times on one machine say little. **[computed]** With m micro-batches on p stages
# (p - 1) / (m + p - 1) of the slots are empty: for two stages

# %%
pd.Series({m: f"{1 / (m + 1):.0%}" for m in (1, 2, 4, 16)}, name="empty").rename_axis("micro-batches").to_frame()

# %% [markdown]
# What a pipeline sends is little: one vector per token between neighbours, once, and nothing inside a layer.

# %%
sent = pipeline.trace.collectives.query("step == 1 and kind == 'send' and place == 'stage'")
assert sent.nbytes.sum() == 4 * 576 * 4 or not is_real
print(f"4 tokens: {sent.nbytes.sum():,} bytes to the next stage")
pipeline.close()

# %% [markdown]
# ### Every matrix cut
#
# Three ranks. Of each layer's matrices, those that make queries, keys, values and the inside of the MLP are cut by
# output, the two that end attention and MLP by input.

# %%
tensor = llmlab.open(**OPTIONS, **({"tensor_parallel": 3} if is_real else {}))
assert answers(tensor, PROMPTS) == expected
assert not is_real or 3 * tensor.engine.runner.rank.pool.nbytes == kv_bytes * 64 * 16  # a third of the K/V
calls = tensor.trace.collectives.query("step == 1")
counted = calls.groupby(["rank", "kind", "place"]).nbytes.agg(["count", "sum"])
sums.reveal(int(counted["count"].filter(like="all_reduce").groupby("rank").sum().max()) if is_real else 60, how)
counted

# %% [markdown]
# **[measured here]** The same tokens, from three processes that each have one of three K/V heads with its three query
# heads, and a third of each MLP. No rank could say anything alone: after attention and after the MLP each has a part of
# the sum, and the next layer needs the whole. **[corrected: twice a layer]** Article B counts one synchronisation a
# layer; this usual way to cut takes two. The bytes are exactly those of the arithmetic:

# %%
shape = ModelShape.of("SmolLM2-135M")
per_step = tensor.trace.collectives.query("kind == 'all_reduce' and rank == 0").groupby("step").nbytes.sum()
tokens = tensor.trace.steps.set_index("step").num_tokens
computed = [tensor_parallel_bytes(shape, int(tokens[step]), 3, "fp32") for step in per_step.index]
assert per_step.tolist() == computed
print(f"4 tokens: {per_step.get(1, 0):,} bytes from each rank = 4 x 2 x 30 layers x 576 x 4")

# %%
views.rank_lanes(tensor.trace, first_step=1, last_step=1, width=560)

# %% [markdown]
# Each mark below a lane is a sum. All ranks must have called it before any may go on; hatched is waiting. The last mark
# gathers the logits, of which each rank has computed a third.
#
# **[computed]** Llama 3 70B in 16 bits over 8 H100, at their data sheets' rates; the links' delay per message is a
# usual order of magnitude (3, 5 and 50 microseconds), and nothing overlaps:

# %%
big, links = ModelShape.of("Llama-3-70B"), ("nvlink4", "pcie5", "10gbps")
steps = {"1 token": decode(1, 2_000), "64 requests": decode(64, 2_000), "a prompt of 8,192": prefill(8_192)}
rows = {
    name: {"work_ms": split_step(big, rows, "tensor", 8, "h100", "nvlink4").compute_s}
    | {link: split_step(big, rows, "tensor", 8, "h100", link).communication_s for link in links}
    for name, rows in steps.items()
}
pd.DataFrame(rows).T.mul(1_000).round(1).rename(columns=lambda name: name if "_" in name else f"{name}_ms")

# %% [markdown]
# So article B is right that this needs NVLink, for two reasons: a long prompt sends gigabytes, and a single token
# sends little, 160 times, each time waiting for a message to cross.

# %% [markdown]
# ### A mixture learns
#
# There is no small mixture to download, so we train one: a Mixtral over bytes of Python's built-in documentation. First
# two small ones for 80 updates, alike but for one term of what they minimise. The **balancing loss** is lowest when
# each expert gets an even share of the tokens.

# %%
torch.set_num_threads(1)
small = {"steps": 80, "rate": 1e-2, "size": MoeSize(layers=2, width=64, heads=2, kv_heads=1, expert_width=64)}
even = train_moe(None, balance=0.02, every=4, **small)
uneven = train_moe(None, balance=0, every=4, **small)
learning(even.records, title="With the balancing loss")

# %%
learning(uneven.records, title="Without the balancing loss")

# %%
ends = [trained.records[-1] for trained in (even, uneven)]
assert ends[0].idle() < ends[1].idle()
assert ends[0].balance < 2.5 < 3 < ends[1].balance
assert abs(ends[0].held_out - ends[1].held_out) < 0.3
print("Without it more experts get less than a quarter of their share.")
print("What it measures is 2 at best and 8 at worst: below 2.5 with it, above 3 without.")

# %% [markdown]
# **[measured here]** Whoever is chosen learns, and who has learnt is chosen: without a counterweight the router ends
# with a few favourites. On text that neither has seen both are about equally good so far. What the collapse costs here
# is weights that nobody uses and, when experts sit on different devices, devices that wait for a favourite's.
#
# Now a larger one, for two minutes; the picture grows while it learns.

# %% tags=["nbval-ignore-output"]
seconds = float(os.environ.get("LLMLAB_TRAIN_SECONDS", 120))
records, picture = [], DisplayHandle()


def draw(record):
    """Show what was recorded so far, in the same place."""
    records.append(record)
    show = picture.update if len(records) > 1 else picture.display
    show(learning(records, title=f"{seconds:.0f} seconds of training"))


trained = train_moe(seconds, on_record=draw)
trained

# %%
first, last = trained.records[0], trained.records[-1]
assert last.held_out < first.held_out
config = ModelShape.of(trained.model.config)
assert config.num_parameters == sum(p.numel() for p in trained.model.parameters())
print("On text that it has not seen its loss fell, too.")
print(f"{config.num_parameters:,} parameters, of which {config.active_parameters:,} work on a token")

# %% [markdown]
# ## Observe
#
# ### The router
#
# Saved as safetensors it is a model like any other; our engine serves it.

# %%
kept = tempfile.TemporaryDirectory()  # gone when this notebook ends
folder = trained.save(kept.name)
mixture = opening.open(folder, **OPTIONS)

# %% tags=["nbval-ignore-output"]
run = mixture.ask("The assert statement ", raw=True, max_tokens=60, ignore_eos=True, capture=Capture(router=True))
print(run.text)
views.expert_load(mixture.trace)

# %%
chosen, weights = run.captured.router_experts, run.captured.router_weights
layers, positions, per_token = chosen.values.shape
assert all(len(set(pair)) == 2 for pair in chosen.values.reshape(-1, 2).tolist())
np.testing.assert_allclose(weights.values.sum(-1), 1, atol=1e-5)
print(f"{layers} layers x {positions} tokens: always {per_token} different experts, with weights that sum to 1")

# %% [markdown]
# **[measured here]** That is the mechanism of article B: in a dense model all of an MLP works on every token, here 2 of
# 8 do. The layer's output is the weighted sum of the chosen experts' outputs, and of nothing else:

# %%
block = trained.model.model.layers[0].mlp
token = torch.linspace(-1, 1, 128)[None]
_, shares, numbers = block.gate(token)
each = [block.experts(token, number.view(1, 1), torch.ones(1, 1)) for number in numbers[0]]
by_hand = sum(share * output for share, output in zip(shares[0], each, strict=True))
assert torch.allclose(block(token[None])[0], by_hand, atol=1e-5)
print(len(each), "experts, weighted and added, are the layer's output")

# %% [markdown]
# ### What a batch reads
#
# Article A (section 1) says decode moves only the activated experts. For one token that is so. **[corrected: in a
# batch it is their union]** For B tokens it is on average E (1 - (1 - k/E)^B) of E experts if they choose k evenly and
# by themselves. Tokens drawn at random from what the router was seen to choose:


# %%
def read_by(router, size, draws=300):
    """Experts of a layer that ``size`` random tokens choose, mean over draws and layers."""
    rng = np.random.default_rng(0)
    picks = (rng.integers(router.shape[1], size=size) for _ in range(draws))
    return np.mean([len(np.unique(layer[pick])) for pick in picks for layer in router])


measured = {size: read_by(chosen.values, size) for size in (1, 2, 4, 8, 16)}
formula = {size: expected_experts(8, 2, size) for size in measured}
assert measured[1] == 2
assert list(measured.values()) == sorted(measured.values())
assert all(measured[size] < 1.05 * formula[size] for size in measured)
read.reveal(round(formula[8]), "Computed")
pd.Series(formula).round(1).rename("experts of 8, if even").rename_axis("tokens").to_frame()

# %% tags=["nbval-ignore-output"]
pd.DataFrame({"measured": measured, "if even": formula}).round(2).rename_axis("tokens")

# %% [markdown]
# **[measured here]** What the trained router chose is two for one token, more for more, and never above the formula by
# more than 5 %; the more uneven the load, the fewer. So a mixture saves memory traffic for few requests, and
# arithmetic for any number.
#
# ### Shapes of models that do not fit here
#
# **[computed]** from their configs: parameters, those that work on one token, and 16-bit K/V.

# %%
names = ("Llama-3-70B", "Mixtral-8x7B", "DeepSeek-V3")
facts = {
    name: {
        "billions": f"{shape.num_parameters / 1e9:.1f}",
        "active": f"{shape.active_parameters / 1e9:.1f}",
        "share": f"{shape.active_parameters / shape.num_parameters:.1%}",
        "kv_bytes_per_token": f"{shape.kv_bytes_per_token('bf16', 'latent'):,}",
    }
    for name in names
    for shape in [ModelShape.of(name)]
}
pd.DataFrame(facts).T

# %% [markdown]
# DeepSeek-V3's config gives article B's 671 and about 37 billion. That its answers are worth it is
# **[not verifiable here: such weights do not fit]**. It also caches a **latent**: one small vector per token and layer,
# from which all heads' keys and values are computed again (MLA). A **random** model of that architecture shows what is
# stored:

# %%
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8}
ranks = {"kv_lora_rank": 32, "q_lora_rank": 48, "v_head_dim": 16, "n_group": 1, "topk_group": 1}
mlps = {"n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
sizes = {"vocab_size": 258, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3}
latent = AutoConfig.for_model("deepseek_v3", **heads, **ranks, **mlps, **sizes)
random_model, cache = AutoModelForCausalLM.from_config(latent).float().eval(), DynamicCache(config=latent)
with torch.no_grad():
    random_model(torch.arange(10)[None], cache=cache)
stored = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers) // 10
mla = ModelShape.of(latent)
assert stored == mla.kv_bytes_per_token("fp32", "latent")
assert mla.num_parameters == sum(p.numel() for p in random_model.parameters())
print(f"stored per token: {stored} bytes; keys and values of all heads: {mla.kv_bytes_per_token('fp32', 'expanded')}")

# %% [markdown]
# ### Experts in two processes
#
# Each rank has four of the eight experts of every layer; attention and router are in both. A rank takes half of a
# step's tokens, **dispatches** each to the ranks of its experts, and **combines** what comes back.

# %%
question, questions = "Each of them has ", ["A function ", "The names in a class ", "If the value ", "An error "]
alone = answers(mixture, questions, 12)
asked = mixture.ask(question, raw=True, max_tokens=1, capture=Capture(router=True))
mixture.close()

halves = opening.open(folder, **OPTIONS, expert_parallel=2)
assert halves.ask(question, raw=True, max_tokens=1).token_ids == asked.token_ids
assert answers(halves, questions, 12) == alone
print("the tokens of one process, for", len(questions) + 1, "requests")

# %%
calls = halves.trace.collectives
per_layer = calls.query("step == 1 and layer == 0").groupby(["rank", "kind", "place"], sort=False).size()
per_layer.rename("calls in a layer").to_frame()

# %% [markdown]
# First the ranks tell each other how many rows will come, then the rows go there and back; the last gathers the halves,
# because attention is not divided here. A row is a token's vector, once for each of its experts. How many must cross
# follows from what the router of one process chose, and each byte is accounted for:

# %%
prompt = asked.captured.router_experts.values[:, : len(question)]
crossing = [pairs_away(layer.tolist(), 8, 2) for layer in prompt]
first_step = calls.query("step == 0").groupby(["place", "layer"]).nbytes.sum()
assert first_step["dispatch"].tolist() == [pairs * 128 * 4 for pairs in crossing] == first_step["combine"].tolist()
assert 0 < sum(crossing) < 2 * 4 * len(question)
print("dispatched bytes = pairs of a token and an expert of the other rank x 128 x 4, in each layer")

# %% tags=["nbval-ignore-output"]
done = halves.trace.ranks.query("name == 'experts'").groupby("rank").num_tokens.sum()
print("rows computed by the experts of each rank:", done.to_dict())
views.rank_lanes(halves.trace, first_step=2, last_step=2)

# %%
assert done.sum() == halves.trace.steps.num_tokens.sum() * 2 * 4
assert set(done.index) == {0, 1}
print("together: every token, twice in each of 4 layers")

# %% [markdown]
# **[measured here]** Each token went only where its experts are, as article B says. Who has the favourites has more to
# do, and the others wait. **[computed]** from the last load of the two small mixtures, over four ranks of two experts:


# %%
def busiest_rank(record, ranks):
    """Rows of the rank that has most to do, as a multiple of an even share, mean over the layers."""
    loads = np.array(record.load).reshape(len(record.load), ranks, -1).sum(-1)
    return (loads.max(1) / loads.mean(1)).mean()


factors = [busiest_rank(record, 4) for record in ends]
assert factors[0] < 1.45 < factors[1]
print("The busiest rank's load is below 1.45 times an even share with the balancing loss, and above without.")

# %% [markdown]
# ## Explain
#
# The sum of tensor parallel is one line; the layer around it does not know that it is divided:

# %% tags=["nbval-ignore-output"]
excerpt(SummedLinear.forward, lines=4)

# %% [markdown]
# Dispatch, the rank's own experts, and combine:

# %% tags=["nbval-ignore-output"]
excerpt(DispatchedExperts._elsewhere, containing="received = ", lines=5)

# %% [markdown]
# The first rank is the ordinary engine in this process. It sends each step's plan as integers, every rank builds its
# batch from it, and block ids mean the same everywhere; of K/V each has its heads (tensor), its layers (pipeline) or
# all (expert). Two processes of a GPU server do the same with other links. `llmlab.parallel.launch.launch(2)` runs
# tensor parallel under `accelerate`, as training frameworks start processes.
#
# ## Exercises
#
# ### 1. Bytes of the sums
#
# *Easy, 5 minutes.* How many bytes does one rank put into all sums of a step of tensor parallel? `width` is the
# model's, `size` is bytes per number.
#
# <details><summary>Hint</summary>
#
# Two sums a layer. What each of them adds up is a whole vector for each token, also on a rank that has a third of the
# matrix.
#
# </details>


# %% tags=["exercise"]
def sum_bytes(layers, width, size, tokens, ranks):
    return ...


check.lab17.q1(sum_bytes)


# %% tags=["solution"]
def sum_bytes(layers, width, size, tokens, ranks):
    return 2 * layers * width * size * tokens


assert sum_bytes(30, 576, 4, 4, 3) == per_step.get(1, 4 * 60 * 576 * 4)
check.lab17.q1(sum_bytes)

# %% [markdown]
# ### 2. Empty slots of a pipeline
#
# *Medium, 8 minutes.* A step is cut into `parts` micro-batches for `stages` stages. What share of all slots is empty?
#
# <details><summary>Hint</summary>
#
# In which slot does the last stage end with the last part? Of so many slots, each stage works in `parts`.
#
# </details>


# %% tags=["exercise"]
def empty_share(stages, parts):
    return ...


check.lab17.q2(empty_share)


# %% tags=["solution"]
def empty_share(stages, parts):
    return (stages - 1) / (parts + stages - 1)


assert not is_real or empty_share(2, 4) == many.idle_share
check.lab17.q2(empty_share)

# %% [markdown]
# ### 3. Experts that a batch reads
#
# *Medium, 12 minutes.* Each of `tokens` tokens chooses `chosen` different ones of `experts` experts, all equally
# likely. How many experts are read on average?
#
# <details><summary>Hint</summary>
#
# Take one expert: how likely is it that one token misses it? That all miss it?
#
# </details>


# %% tags=["exercise"]
def touched(experts, chosen, tokens):
    return ...


check.lab17.q3(touched)


# %% tags=["solution"]
def touched(experts, chosen, tokens):
    return experts * (1 - (1 - chosen / experts) ** tokens)


assert touched(8, 2, 8) == formula[8]
check.lab17.q3(touched)

# %% [markdown]
# ## Break it
#
# Rank 0 of the tensor-parallel model takes part in every sum, so that nobody waits for ever, but in one layer it
# forgets to use the result and goes on with its own part.

# %%
halves.close()
forgotten = []
if is_real:
    comm = tensor.engine.runner.rank.comm
    in_full = comm.all_reduce

    def forgetful(own, layer, place):
        """The sum is made, and in the first layer's MLP dropped."""
        before = own.clone()
        total = in_full(own, layer, place)
        return before if (layer, place) == (0, "mlp") else total

    comm.all_reduce = forgetful
    forgotten = answers(tensor, PROMPTS)
    comm.all_reduce = in_full
    assert answers(tensor, PROMPTS) == expected
assert forgotten != expected
print("prompts with other tokens:", sum(one != other for one, other in zip(forgotten, expected, strict=False)))

# %% [markdown]
# **[measured here]** One sum of sixty, dropped on one rank: no error, a plausible log, wrong answers. A rank that dies
# is the kinder fault, because the others notice:

# %%
if is_real:
    os.kill(tensor.engine.runner.group.pids[1], signal.SIGKILL)
    try:
        tensor.ask(PROMPTS[0], raw=True, max_tokens=4)
    except RankFailed as error:
        print(type(error).__name__, "names rank 2:", "rank 2 of 3" in str(error))
tensor.close()

# %% [markdown]
# All requests that were under way end with that error, and the other processes end too: nobody can know what they were
# in the middle of. A service starts the group again, or has another replica.
#
# ## Recap
#
# - Tensor parallel: two sums a layer, for every token; fast links or nothing. It shortens a single request.
# - Pipeline parallel: one vector per boundary; needs several micro-batches, because else all stages but one wait.
# - Expert parallel: each token goes to its experts and back; the most popular rank sets the pace.
# - A mixture reads k of E experts for one token, and soon all of them for a batch.
# - Which of the three would you use over two machines that are joined by an ordinary network?
#
# ## Next
#
# Lab 18 splits not the model but the work: prompts in one process, answers in another.
