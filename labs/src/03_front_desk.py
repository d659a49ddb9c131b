# %% [markdown]
# # Stand at the front desk
#
# **Goal.** You can say for any refused request which check refused it, with which status, and that the model never saw
# it; and for an accepted one, what decided its place in the queue.
#
# **Time.** 20 minutes to read and run, 25 more for the exercises.
#
# **Needs.** Nothing but this package: the model here is the stand-in without weights, because no answer matters. About
# 1 GB of memory, no GPU, no network.

# %%
import logging
import threading
import time
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2
import pandas as pd

import llmlab
from llmlab import views
from llmlab.api.errors import STATUS, ApiError
from llmlab.checks import check, predict
from llmlab.client.retry import RetryPolicy
from llmlab.client.stream_errors import ClientError
from llmlab.gateway.rate_limit import RateLimiter
from llmlab.gateway.settings import Settings
from llmlab.labs.excerpt import excerpt

pd.set_option("display.max_colwidth", 120)
logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns for each frame written to a client that has left
lab = llmlab.open("mock", num_blocks=512)
folder = TemporaryDirectory()
keys = Path(folder.name) / "keys"
keys.write_text("key-of-alice alice priority\nkey-of-bob bob\nkey-of-carol carol\nkey-of-night night batch\n")
keys.chmod(0o600)
server = lab.serve(
    keys_file=keys, requests_per_minute=3, fallback_model=False, max_body_bytes=20_000, max_depth=8, drain_s=0
)
lab.model

# %% [markdown]
# A **gateway** is the program that answers HTTP in front of the engine. Before a model computes anything, it decides
# whether, how soon and where a request is served. Article A tells this in section 5.1, article B where the POST leaves
# the laptop (lab 00 names both). Badges say how each statement was checked: **[measured here]**, **[computed]**, **[on
# the wire]**, **[simulated]**, **[corrected: …]**, **[not verifiable here: why]**.
#
# The keys file gives four keys, a name and a **service tier** each; every key may ask three times a minute.
#
# ## Predict

# %%
stages_guess = predict("How many of the gateway's checks does a request with a wrong key meet?", [1, 3, 6])
stages_guess

# %%
order_guess = predict(
    "Three requests wait: batch came first, then standard, then priority. Who runs first?",
    ["batch", "standard", "priority"],
)
order_guess

# %% [markdown]
# ## Run
#
# One request with a key, and the stages it passed:

# %%
BODY = {"model": "mock", "max_tokens": 4, "temperature": 0, "messages": [{"role": "user", "content": "Hello."}]}


def post(key=None, body=BODY, at=None, **headers):
    """One request on the wire, not streamed."""
    headers |= {} if key is None else {"x-api-key": key}
    return httpx2.post(f"{(at or server).url}/v1/messages", json=body, headers=headers, timeout=60)


def stages_of_last():
    """The gateway's stages of the exchange that began last."""
    stages = lab.trace.stages
    return stages[stages.wire_id == lab.trace.exchanges.wire_id.iloc[-1]]


first = post("key-of-alice")
assert first.status_code == 200
passed = stages_of_last()
passed[["name", "outcome", "reason"]].reset_index(drop=True)

# %% [markdown]
# ## Observe
#
# ### Each stage on the clock

# %%
views.waterfall(lab.trace)

# %% [markdown]
# Everything before `queue` is front desk: who asks, is the body readable, is it a request, may this key ask now, which
# backend, is there room. The order that article A names (key, quota, rate limit, then where to run) is the one here
# **[measured here]**. This gateway has no prepaid quota; the limits per minute take its place.
#
# ### Who is turned away, and by whom
#
# Each line is one wrong request.

# %%
nested = {"role": "user", "content": [[[[[[[["deep"]]]]]]]]}
wrong = {
    "no key": lambda: post(),
    "a wrong key": lambda: post("key-of-mallory"),
    "a wrong key and a body too large": lambda: post("key-of-mallory", BODY | {"system": "x" * 30_000}),
    "a body too large": lambda: post("key-of-carol", BODY | {"system": "x" * 30_000}),
    "nested too deep": lambda: post("key-of-carol", BODY | {"messages": [nested]}),
    "a field missing": lambda: post("key-of-carol", {"model": "mock"}),
    "an unknown model": lambda: post("key-of-carol", BODY | {"model": "gpt-9"}),
}
engine_before = len(lab.trace.requests)
rows = []
for name, send in wrong.items():
    answer = send()
    error, stages = answer.json()["error"], stages_of_last()
    assert STATUS[error["type"]] == answer.status_code
    rows.append((name, answer.status_code, error["type"], stages.name.iloc[-1], len(stages)))
    if name == "a wrong key":
        count = len(stages)
assert len(lab.trace.requests) == engine_before
assert post(authorization="Bearer key-of-night").status_code == 200
stages_guess.reveal(count)

# %%
pd.DataFrame(rows, columns=["request", "status", "error type", "refused by", "stages"])

# %% [markdown]
# Cheap checks come first: nobody reads the body of a stranger. A key may come as `x-api-key` or as `Authorization:
# Bearer`; both are accepted. No refused request left a trace in the engine, which the cell asserts **[measured here]**.
# The client names a model; whether that name exists, and what serves it, is decided here (section 2.1) **[on the
# wire]**. The alternative, `fallback_model=True`, serves unknown names:

# %%
with lab.serve(drain_s=0) as lenient:
    alias = post(None, BODY | {"model": "claude-opus-5"}, at=lenient).json()["model"]
    page = post(None, at=lenient, origin="https://elsewhere.example").json()["error"]
    rebound = post(None, at=lenient, host="evil.example").json()["error"]
route = lab.trace.stages.query("name == 'route'").reason.iloc[-1]
print(route)
alias, page["type"], rebound["type"]

# %% [markdown]
# The two `permission_error` are a front desk's less known duty: a server on your own machine that asks for no key must
# not serve web pages that you happen to visit.
#
# ### Limits per minute
#
# Bob asks four times at once. The headers tell what is left, the refusal when to come back.

# %%
answers = [post("key-of-bob") for _ in range(4)]
family = "anthropic-ratelimit-requests"
rows = [(each.status_code, each.headers[f"{family}-limit"], each.headers[f"{family}-remaining"]) for each in answers]
last = answers[-1]
print(last.json()["error"]["message"])
assert 1 <= int(last.headers["retry-after"]) <= 20
assert post("key-of-carol").status_code == 200
assert "anthropic-ratelimit-requests-reset" in last.headers
pd.DataFrame(rows, columns=["status", "limit", "remaining"])

# %% [markdown]
# The limit is the key's: Carol is served while Bob waits. `retry-after` is at most 20 s, since three a minute are one
# in 20 s **[on the wire]**. The limiter is a **token bucket**: it holds up to the limit, gains the limit every minute,
# evenly, and each request takes one. On a fake clock, one request every 5 s **[simulated]**:

# %%
now = 0.0
limiter = RateLimiter(Settings(requests_per_minute=3), clock=lambda: now)
said = []
for now in range(0, 65, 5):
    try:
        limiter.admit("bob")
        said.append((now, "let in", ""))
    except ApiError as error:
        said.append((now, "refused", f"retry after {error.retry_after} s"))
let_in = [at for at, outcome, _ in said if outcome == "let in"]
assert let_in[:3] == [0, 5, 10]
pd.DataFrame(said, columns=["second", "outcome", "told"]).set_index("second").T

# %% [markdown]
# Three at once, then one every 20 s: a burst is allowed and the average is kept. How long a prompt is, is known only
# after it was rendered, so limits of tokens let a request in while anything is left and may go into **debt**:

# %%
limiter = RateLimiter(Settings(output_tokens_per_minute=600), clock=lambda: now)
charge = limiter.admit("bob")
charge.buckets["output-tokens"].level -= 700  # a long answer
try:
    limiter.admit("bob")
except ApiError as error:
    print(error, "| retry after", error.retry_after, "s")

# %% [markdown]
# ### Tiers
#
# `usage.service_tier` says which tier a request was given (section 5.1). At most the key's own:

# %%
quiet = lab.serve(keys_file=keys, drain_s=0)
asked = [("alice", "auto"), ("bob", "auto"), ("night", "auto"), ("alice", "standard_only")]
given = {
    (who, tier): post(f"key-of-{who}", BODY | {"service_tier": tier}, at=quiet).json()["usage"]["service_tier"]
    for who, tier in asked
}
assert list(given.values()) == ["priority", "standard", "batch", "standard"]
pd.Series(given, name="service_tier").rename_axis(["key of", "asked"]).to_frame()

# %% [markdown]
# What does it change? An engine with room for one request at a time, busy with a long one. Three more arrive, the least
# important first. When all three wait, the long one leaves.

# %%
narrow = llmlab.open("mock", num_blocks=512, max_num_seqs=1)
desk = narrow.serve(keys_file=keys, drain_s=0)
busy = narrow.client(desk, api_key="key-of-bob")


def until(condition):
    """Wait until it holds."""
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


with busy.stream(BODY | {"max_tokens": 4000}) as exchange:
    next(delta for delta in exchange if delta.kind == "text")
    threads = []
    for number, key in enumerate(("key-of-night", "key-of-bob", "key-of-alice"), 2):
        threads.append(threading.Thread(target=post, args=(key, BODY, desk)))
        threads[-1].start()
        until(lambda: len(narrow.trace.index.submitted) == number)  # noqa: B023
for thread in threads:
    thread.join()
assert narrow.trace.check() == []

# %%
ran = narrow.trace.schedule.query("action == 'ran'").drop_duplicates("request_id")
tier_of = dict(zip(list(narrow.trace.index.submitted)[1:], ("batch", "standard", "priority"), strict=True))
order = [tier_of[request] for request in ran.request_id if request in tier_of]
assert order == ["priority", "standard", "batch"]
print("arrived:", ", ".join(tier_of.values()), "| ran:", ", ".join(order))
order_guess.reveal(order[0])

# %% tags=["nbval-ignore-output"]
last_steps = int(narrow.trace.steps.step.iloc[-1])
views.batch_lanes(narrow.trace, first_step=last_steps - 14, last_step=last_steps)

# %% [markdown]
# The tier is the place in the queue **[measured here]**; the field's three values are public, what a closed scheduler
# does with them is not. `speed` and `metadata.user_id` are two more fields for the front desk:

# %%
plain = post("key-of-bob", at=quiet)
marked = post("key-of-bob", BODY | {"speed": "fast", "metadata": {"user_id": "somebody"}}, at=quiet)
assert marked.json()["content"] == plain.json()["content"]
marked.json()["usage"]["speed"], marked.headers["llmlab-ignored"]

# %% [markdown]
# `speed: fast` asks, `usage.speed` says what was given: standard, and the field is named as ignored, since there is no
# fast tier here **[on the wire]** (2.13). A user id changes nothing in the answer **[measured here]** (2.9); this
# gateway limits by key, not by user id.
#
# ### No room
#
# A full server refuses at once: a queue would only make everybody time out. The status is 529, *overloaded*.

# %%
tight = lab.serve(max_open=1, drain_s=0)
holder = lab.client(tight)
with holder.stream(BODY | {"max_tokens": 4000}) as exchange:
    next(delta for delta in exchange if delta.kind == "text")
    full = post(at=tight)
print(full.status_code, full.json()["error"]["message"])
full.headers["retry-after"], full.headers["x-should-retry"]

# %%
until(lambda: tight.gateway.admission.open == 0)
post(at=tight).status_code

# %% [markdown]
# `retry-after` and `x-should-retry` tell the client of lab 02 when to come back.
#
# ### Where it runs
#
# With several engines behind it, the gateway picks one. Two engines here, five conversations of two turns each:


# %%
def routed(routing):
    """Backend of each request, by conversation."""
    places = {}
    with lab.serve(upstreams=[desk_two.url], routing=routing, drain_s=0) as fleet:
        for turn in range(2):
            for number in range(5):
                talk = {"role": "user", "content": f"Conversation {number} " * 20}
                body = BODY | {"messages": [talk, *[{"role": "assistant", "content": "Yes."}, talk][: 2 * turn]]}
                post(body=body, at=fleet)
                backend = lab.trace.stages.query("name == 'route'").details.iloc[-1]["backend"]
                places.setdefault(number, []).append("own" if backend == "mock" else "other")
    return places


narrow.close()
two = llmlab.open("mock", num_blocks=512)
desk_two = two.serve(drain_s=0)
rows = []
for routing in ("round_robin", "prefix_affine"):
    places = routed(routing)
    if routing == "round_robin":
        assert Counter(place for pair in places.values() for place in pair) == {"own": 5, "other": 5}
    rows.append((routing, sum(before == after for before, after in places.values())))
assert [stayed for _, stayed in rows] == [0, 5]
pd.DataFrame(rows, columns=["routing", "conversations that stayed on one engine"])

# %% [markdown]
# Round robin gives each engine half of the requests, and every conversation meets the other engine in its second turn.
# `prefix_affine` sends equal beginnings to the same engine, where their keys and values are cached **[measured here]**.
# Which data centre served a request of a public service is in `usage.inference_geo`; here it says `not_available`.
#
# ## Explain
#
# A request is served by one function that reads like the list of checks:

# %% tags=["nbval-ignore-output"]
from llmlab.gateway.generate import Generate

excerpt(Generate.__call__, containing="identity = ", lines=4)

# %% tags=["nbval-ignore-output"]
from llmlab.gateway.rate_limit import TokenBucket

excerpt(TokenBucket.refill, lines=4)

# %% [markdown]
# Each check is a stage in the trace, with its outcome, reason and time; a check that fails raises one error, which
# becomes status, body and headers. They are ordered by what they cost: a key is compared before the body is read, the
# body is read before it is understood, and only a valid request takes from the key's bucket, picks a backend and takes
# one of the places. What passed them all goes to the engine's queue with a number, its priority; lower goes first. None
# of this needs a GPU, and none of it reaches one.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Count who gets in
#
# *Easy, 5 minutes.* A key may ask 6 times a minute and has not asked for an hour. It now asks once a second, 60 times
# (seconds 0 to 59). How many requests are let in?
#
# <details><summary>Hint</summary>
#
# Under *Limits per minute* a `RateLimiter` runs on a fake clock: do the same with this limit and these seconds. By
# hand: what does the full bucket hold, and at which seconds up to 59 has it gained one more?
#
# </details>

# %% tags=["exercise"]
served = ...
check.lab03.q1(served)

# %% tags=["solution"]
now = 0.0
limiter = RateLimiter(Settings(requests_per_minute=6), clock=lambda: now)
let_in = []
for now in range(60):
    try:
        limiter.admit("a key")
        let_in.append(now)
    except ApiError:
        continue
served = len(let_in)
check.lab03.q1(served)

# %% [markdown]
# ### 2. Say when to come back
#
# *Medium, 10 minutes.* A bucket of `limit` units a minute stands at `level`, which may be negative. What goes into
# `retry-after`, in whole seconds, so that one unit will be there?
#
# <details><summary>Hint</summary>
#
# How much is missing until the level is 1 (not 0), and how much does the bucket gain in a second? Nothing may be
# missing, and a client that comes back too early is refused again, so mind the rounding.
#
# </details>


# %% tags=["exercise"]
def retry_after(limit, level):
    return ...


check.lab03.q2(retry_after)


# %% tags=["solution"]
def retry_after(limit, level):
    seconds = max(0, (1 - level) * 60 / limit)
    return -int(-seconds // 1)


check.lab03.q2(retry_after)

# %% [markdown]
# ### 3. Grant a tier
#
# *Medium, 10 minutes.* The tier a request is given: `key_tier` is `priority`, `standard` or `batch`; `asked` is `auto`
# or `standard_only`.
#
# <details><summary>Hint</summary>
#
# Write down all six pairs. A request may lower the tier of its key and never raise it: what does that mean for a
# `batch` key that asks for `standard_only`?
#
# </details>


# %% tags=["exercise"]
def granted(key_tier, asked):
    return ...


check.lab03.q3(granted)


# %% tags=["solution"]
def granted(key_tier, asked):
    return "standard" if asked == "standard_only" and key_tier == "priority" else key_tier


check.lab03.q3(granted)

# %% [markdown]
# ## Break it
#
# A client that does not listen: it asks again at once, twenty times. And one that does.

# %%
before = len(lab.trace.requests)
hammered = [post("key-of-bob").status_code for _ in range(20)]
computed = len(lab.trace.requests) - before
assert hammered.count(429) >= 17
assert computed <= 3
assert computed == hammered.count(200)
print("at least 17 of the 20 were refused with 429; the engine computed the others only")

# %%
waits = []
listener = lab.client(server, api_key="key-of-bob", retries=RetryPolicy(max_retries=1), sleep=waits.append)
try:
    listener.send(BODY)
except ClientError as error:
    print(type(error).__name__, "after", error.attempts, "attempts")
assert len(waits) == 1
assert 1 <= waits[0] <= 20
retried = lab.trace.stages.query("name == 'retry' and outcome == 'retried'").details.iloc[-1]
print("it would have waited as long as it was told:", waits[0] == retried["asked_s"])

# %%
pool = lab.engine.pool
until(lambda: pool.num_used == 0)
assert lab.trace.check() == []
pool.num_used

# %% [markdown]
# Hammering costs the gateway a little and the engine nothing, and it gains the client nothing: the bucket fills at its
# own pace. (The wait of the second client was recorded, not slept.)
#
# ## Recap
#
# - The checks in order: key, body, validity, rate limit, route, room. Which one said no is in the status and the trace.
# - 401, 413, 400, 429, 404, 529: which of them should a client try again, and when?
# - A token bucket allows a burst and keeps an average.
# - A tier is a place in the queue and nothing else.
# - A refused request costs no step of the model.
#
# ## Next
#
# Lab 04 follows an admitted request into the tokenizer.
