# %% [markdown]
# # Turn tokens back into text
#
# **Goal.** For every fragment of a streamed answer you can say which tokens it came from, why it came then and not a
# step earlier, why the stream ended, and what was counted.
#
# **Time.** 20 minutes to read and run, 25 more for the exercises.
#
# **Needs.** The default model (about 2 GB of memory). No GPU, no network.

# %%
import httpx2

import llmlab
from llmlab import views
from llmlab.checks import check, predict
from llmlab.client.stream_errors import ClientError
from llmlab.labs.excerpt import excerpt
from llmlab.widgets import dashboard

lab = llmlab.open(dtype="float32", num_blocks=64)
is_real = lab.loaded is not None  # the stand-in without weights runs this too, but says and takes something else
lab.model

# %% [markdown]
# A model writes numbers. **Detokenizing** is turning them back into text. A token stands for some *bytes*; in UTF-8 a
# Latin letter is one byte, a Chinese character three, an emoji four. Nothing makes a token end where a character
# does.
#
# ## Predict
#
# The model is asked to repeat *你好，世界 🦊*. It answers with 14 tokens, the last of which ends the answer. Choose
# before you go on.

# %%
pieces_guess = predict("How many of the 14 tokens send text to the reader in the step that makes them?", [14, 13, 7, 6])
pieces_guess

# %%
bill_guess = predict(
    "The stream reports output_tokens twice, at its start and at its end. The bill says", [1, 13, 14, 15]
)
bill_guess

# %% [markdown]
# ## Run
#
# The panel below shows the tokens while they come. Run the cell, then the next one.

# %%
live = dashboard(lab, ["token_strip"])
live

# %%
QUESTION = "Repeat this text: 你好，世界 🦊"
run = lab.submit(QUESTION, max_tokens=40)
for text in run:
    print(text, end="", flush=True)

# %% [markdown]
# ## Observe
#
# ### Tokens and fragments
#
# Left, what a careless server would show: each token decoded alone. Right, what was sent.

# %%
for delta in run.deltas():
    (token,) = delta.token_ids
    alone = lab.tokenizer.decode([token], skip_special_tokens=True)
    print(f"{token:>6}  alone {alone!r:<6} sent {delta.text!r}")

# %%
alone = "".join(lab.tokenizer.decode([token], skip_special_tokens=True) for token in run.token_ids)
sent = [delta.text for delta in run.deltas() if delta.text]
assert "".join(sent) == run.text == lab.tokenizer.decode(run.token_ids, skip_special_tokens=True)
print(alone.count("\ufffd"), "replacement characters when each token is decoded alone")
print("".join(sent).count("\ufffd"), "in what was sent")
pieces_guess.reveal(len(sent))

# %% [markdown]
# `U+FFFD`, drawn as �, is what a decoder shows for bytes that are no character. Article A (section 5.9) says that a
# server has to wait for whole characters, so a stream carries pieces of text and not token ids: **[measured here]**.
# The strip shows the bytes, and which tokens were **held back**.

# %%
strip = views.token_strip(run.trace)
strip

# %%
strip.table().query("source == 'target'")[["position", "token", "shown_in_step", "held_back"]]

# %% [markdown]
# ### The same on the wire
#
# Now through the server. Each piece travels as one `content_block_delta`.

# %%
client = lab.client()
body = {
    "model": lab.model,
    "max_tokens": 40,
    "temperature": 0,
    "messages": [{"role": "user", "content": QUESTION}],
}
message = client.send(body)
assert message.text == run.text or not is_real
views.wire_view(lab.trace)

# %%
wire = lab.trace.wire
frames = wire[(wire.side == "gateway") & (wire.kind == "frame") & (wire.name == "content_block_delta")]
assert not frames.text.str.contains("\ufffd").any() or not is_real
print(len(frames), "deltas for", message.usage["output_tokens"], "output tokens; none with U+FFFD")

# %% [markdown]
# ### Held back for a stop string
#
# A **stop string** ends the answer and is not part of it. Text that may be its beginning has to wait too, since what
# was sent cannot be taken back. Here the string never comes; what it costs is a delay:

# %%
plain = lab.ask("Name the capital of France.", max_tokens=40)
waited = lab.ask("Name the capital of France.", max_tokens=40, stop="is not")
assert waited.text == plain.text
print([delta.text for delta in plain.deltas()])
print([delta.text for delta in waited.deltas()])

# %% [markdown]
# *is* waited for one token, and so did the last two letters of *Paris*. And here it does come, over five tokens, and
# none of them is ever shown:

# %%
cut = lab.ask(QUESTION, max_tokens=40, stop="世界")
assert "世界" not in cut.text
pieces = [delta.text for delta in cut.deltas()]
assert pieces[-5:] == [""] * 5 or not is_real
print(pieces, cut.stop_reason)

# %% [markdown]
# ### Why a stream ends
#
# A reply says in `stop_reason` why it ended. Five of them, each made to happen (the fifth on the stand-in without
# weights, whose context is small here):

# %%
WEATHER = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
forced = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
ended = {
    "it said everything": message,
    "max_tokens: 5": client.send(body | {"max_tokens": 5}),
    "stop_sequences": client.send(body | {"stop_sequences": ["世界"]}),
    "a tool is wanted": client.send(body | {"tools": [WEATHER], "tool_choice": forced}),
}
with llmlab.open("mock", num_blocks=16) as small, small.serve(overflow="stop") as server:
    request = {"model": "mock", "max_tokens": 4000, "messages": [{"role": "user", "content": "Go on and on."}]}
    with small.client(server) as other:
        ended["the context is full"] = other.send(request)
for why, reply in ended.items():
    print(f"{why:<20} {reply.stop_reason}")

# %%
assert ended["max_tokens: 5"].usage["output_tokens"] == 5
try:
    client.send({name: value for name, value in body.items() if name != "max_tokens"})
except ClientError as error:
    print(error)

# %% [markdown]
# `max_tokens` is required, and reaching it ends the reply with exactly that many tokens (article A, section 2.4):
# **[on the wire]**. Article A's closing diagram (section 7) names five reasons: **[corrected: the public protocol
# also has `model_context_window_exceeded`, seen above, and `pause_turn`]**. `refusal` comes with `stop_details` and a
# category (section 5.10): **[not verifiable here: no safety system judges requests in this server; the field is
# there, and empty]**.

# %%
assert all(reply.stop_details is None for reply in ended.values())
chat = httpx2.post(f"{client.url}/v1/chat/completions", json=body | {"max_tokens": 5}, timeout=60).json()
print(
    "Chat Completions calls it", repr(chat["choices"][0]["finish_reason"]), "after", chat["usage"]["completion_tokens"]
)

# %% [markdown]
# ### What is counted
#
# `usage` comes twice. Each is the total *so far*, not what was added since:

# %%
exchange = lab.trace.exchanges[lab.trace.exchanges.path == "/v1/messages"].iloc[0]
first = wire[(wire.wire_id == exchange.wire_id) & (wire.side == "gateway") & (wire.kind == "frame")]
for name in ("message_start", "message_delta"):
    text = first[first.name == name].text.iloc[0]
    print(name, text[text.index('"output_tokens":') :].split(",")[0])
bill_guess.reveal(message.usage["output_tokens"])

# %% [markdown]
# Adding them gives too much (article A, section 3.4): **[on the wire]** by one token here, because this server sends
# two. With one after every token, a client that adds them would count 1 + 2 + … + 14:

# %%
n = message.usage["output_tokens"]
assert sum(range(1, n + 1)) == n * (n + 1) // 2 > 7 * n
print(sum(range(1, n + 1)), "instead of", n)

# %% [markdown]
# That is the "several times" of the article: **[computed]**. All counts of the request, and how each of the two
# public APIs names them:

# %%
views.usage_ledger(lab.trace, exchange.request_ids[0])

# %% [markdown]
# Last, **thinking**: text that a model writes before its answer. It is output, counted within `output_tokens` and
# shown again in `thinking_tokens` (sections 2.6 and 5.10):

# %%
thinker = lab.client(betas=["interleaved-thinking-2025-05-14"])
question = {"role": "user", "content": "Name the capital of France."}
thought = thinker.send(
    {
        "model": lab.model,
        "max_tokens": 60,
        "thinking": {"type": "enabled", "budget_tokens": 20},
        "messages": [question],
    }
)
total, part = thought.usage["output_tokens"], thought.usage["output_tokens_details"]["thinking_tokens"]
assert 0 < part <= 20
assert part < total <= 60
bills = thought.usage["iterations"]
assert sum(bill["output_tokens"] for bill in bills) == total
print([block["type"] for block in thought.content], "from", len(bills), "runs of the model in one HTTP exchange")

# %% [markdown]
# The model we serve was not trained to think; the server makes it write inside the marks, up to the budget: the
# *counting* is **[measured here]**, the thoughts are not worth reading. `iterations` (section 5.10) is an array with
# a bill for each run behind one request, sent to clients that send a beta header. Article A saw arrays of 0 and 1; a
# thinking request is two runs here: **[on the wire]**.
#
# ## Explain
#
# A character has at most four bytes. So when the text so far ends in U+FFFD, at most three tokens may have to wait:

# %% tags=["nbval-ignore-output"]
from llmlab.engine.detokenizer import Detokenizer, partial_stop_length

excerpt(Detokenizer._stable_length, "whole =", 6)

# %% tags=["nbval-ignore-output"]
excerpt(partial_stop_length, "longest =", 6)

# %% [markdown]
# Both rules are one promise: what was sent stays true whatever comes next. A stop string is looked for in the *text*,
# so how it is cut into tokens does not matter. Decoding starts a few tokens back, not at the beginning, so that a
# step costs the same however long the answer is.
#
# ## Exercises
#
# Replace each `...`, run the cell, and read what the check says. Solutions are in the collapsed cells.
#
# ### 1. Count the silent steps
#
# *Easy, 5 minutes.* From `run.deltas()`: in how many steps was a token made that belongs to the text, but nothing
# sent?
#
# <details><summary>Hint</summary>
#
# Look at `text` and `finished` of each delta. The token of the last one ends the answer and does not belong to the
# text.
#
# </details>

# %% tags=["exercise"]
silent_answer = ...
check.lab13.q1(silent_answer, run)

# %% tags=["solution"]
silent_answer = sum(not delta.text and not delta.finished for delta in run.deltas())
check.lab13.q1(silent_answer, run)

# %% [markdown]
# ### 2. Where to cut
#
# *Medium, 10 minutes.* Given the bytes so far, how many of them, from the beginning, may be decoded now? The bytes
# are the start of valid UTF-8. A first byte from `0xC2` begins a character of 2 bytes, from `0xE0` of 3, from `0xF0`
# of 4; bytes `0x80` to `0xBF` continue one.
#
# <details><summary>Hint</summary>
#
# At most three bytes may have to wait. Go back from the end to the byte that begins the last character, and compare
# how many bytes it announces with how many are there.
#
# </details>


# %% tags=["exercise"]
def safe_length(data):
    return ...


check.lab13.q2(safe_length)


# %% tags=["solution"]
def safe_length(data):
    for back in range(1, min(3, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            size = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if back < size else len(data)
        if byte < 0x80:
            break
    return len(data)


check.lab13.q2(safe_length)

# %% [markdown]
# ### 3. How much to hold
#
# *Medium, 10 minutes.* Given text in which the stop string does not occur: how many characters at its end must wait?
#
# <details><summary>Hint</summary>
#
# Compare the end of `text` with the beginnings of `stop` that are shorter than the whole. Several may match, or none.
#
# </details>


# %% tags=["exercise"]
def held(text, stop):
    return ...


check.lab13.q3(held)


# %% tags=["solution"]
def held(text, stop):
    return max(n for n in range(len(stop)) if n == 0 or text.endswith(stop[:n]))


check.lab13.q3(held)

# %% [markdown]
# ## Break it
#
# Cut the answer in the middle of a character. What was held back can wait no longer:

# %%
broken = client.send(body | {"max_tokens": 9})
assert broken.stop_reason == "max_tokens"
assert broken.text.startswith("你好，世") or not is_real
print(ascii(broken.text))

# %% [markdown]
# The first two of three bytes of *界* were there, and now never become a character: this time U+FFFD is the truth. A
# client that sends the reply back as history sends the replacement, not the bytes, so the model then reads other
# tokens than it wrote. The same reply with one token more is whole:

# %%
whole = client.send(body | {"max_tokens": 10})
assert "\ufffd" not in whole.text or not is_real
print(whole.text, whole.usage["output_tokens"], whole.stop_reason)

# %%
lab.close()

# %% [markdown]
# ## Recap
#
# - Tokens are bytes; text is sent when whole characters are there. Fewer pieces than tokens is normal.
# - Text that may be the beginning of a stop string waits as well. Choose stop strings that seldom begin.
# - `stop_reason` decides what a client does next: show, continue, run a tool, or ask for more room.
# - `usage` in a stream is a total so far: overwrite it, never add. Thinking is part of the output.
#
# ## Next
#
# `tool_use` hands control back to the client. Lab 14 closes that loop.
