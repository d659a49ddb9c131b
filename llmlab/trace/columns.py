"""What every column of every trace table means, with its unit."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pandas as pd

CLOCK = "seconds since the trace's first event"

COLUMNS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "requests": {
            "request_id": "id of the request",
            "parent_id": "first sample of its n > 1 group, None for that sample and for ordinary requests",
            "prompt": "rendered prompt text, None when it was submitted as tokens",
            "num_prompt_tokens": "tokens of the prompt",
            "num_cached_tokens": "prompt tokens the prefix cache held at first admission, so not computed",
            "num_output_tokens": "tokens generated, an ending EOS included",
            "num_preemptions": "times its blocks were taken away",
            "num_preempted_tokens": "tokens computed again after a preemption",
            "stop_reason": "why it ended, None while it has not",
            "stop_sequence": "the stop string or stop token id that ended it",
            "submitted_s": f"{CLOCK}: it entered the engine's inbox",
            "first_scheduled_s": f"{CLOCK}: start of the first step it took part in",
            "first_token_s": f"{CLOCK}: its first token was chosen",
            "finished_s": f"{CLOCK}: it ended",
            "queue_ms": "milliseconds from submission to its first step",
            "ttft_ms": "milliseconds from submission to the first token",
            "e2e_ms": "milliseconds from submission to the end",
            "itl_ms": "mean milliseconds between two output tokens",
            "tokens_per_s": "output tokens per second after the first token",
            "status": "waiting, running, preempted, finished, aborted or error, at the end of the trace",
            "params": "sampling parameters as a dict",
        },
        "steps": {
            "step": "number of the step",
            "start_s": f"{CLOCK}: the step began",
            "schedule_ms": "milliseconds of choosing the batch",
            "build_ms": "milliseconds of building the batch's tensors",
            "forward_ms": "milliseconds of the model's forward pass",
            "sample_ms": "milliseconds of choosing tokens",
            "detokenize_ms": "milliseconds of turning tokens into text",
            "emit_ms": "milliseconds of handing results to the requests' handles",
            "total_ms": "milliseconds of the whole step: the six phases' sum",
            "num_rows": "requests in the batch",
            "num_prefill_tokens": "prompt or recomputed tokens in the batch",
            "num_decode_tokens": "generated tokens in the batch, draft tokens included",
            "num_tokens": "tokens in the batch",
            "waiting": "requests waiting after scheduling",
            "running": "requests running after scheduling",
            "free": "blocks without content",
            "cached": "unused blocks whose content can still be hit",
            "used": "blocks in at least one block table",
            "kv_bytes_used": "bytes of the used blocks over all layers",
        },
        "schedule": {
            "step": "number of the step",
            "request_id": "id of the request",
            "action": "ran, admitted (it joins without computing), waited, preempted, finished or aborted",
            "reason": "why; a decision to wait holds, and is repeated here, until the next one",
            "admission": "why it was let into the batch in this step, None when it was not",
            "num_tokens": "tokens it computed in this step",
            "start": "first position it computed, <NA> when none",
            "num_cached": "leading positions served from the prefix cache at its admission in this step",
            "is_prefill": "whether the tokens were prompt or recomputed ones",
            "by": "the request that preempted it",
        },
        "blocks": {
            "time_s": f"{CLOCK}: the block changed",
            "step": "number of the step",
            "block_id": "id of the block",
            "action": "allocate, hit, share, copy, cache, evict or free",
            "request_id": "request whose block table changed, None when none did",
            "index": "place in that block table, -1 when none",
            "ref_count": "block tables that hold the block, after the change",
            "hash": "beginning of its hash (hexadecimal), empty when it has none",
            "source_id": "block it was copied from, <NA> unless action is copy",
        },
        "tokens": {
            "request_id": "id of the request",
            "position": "position in the sequence, 0 is the first prompt token",
            "index": "position in the output, <NA> for prompt tokens",
            "token_id": "id in the vocabulary",
            "logprob": "natural log of its probability under the model, NaN when not known",
            "source": "cached, shared (with its group's first sample) or prompt; target, accepted, recovered or bonus",
            "step": "step that first computed a prompt token (<NA>: none did) or chose an output token",
            "time_s": f"{CLOCK}: a prompt token was submitted, an output token was chosen",
            "top": "(token id, logprob) alternatives, empty when not asked for",
        },
        "drafts": {
            "time_s": f"{CLOCK}: the tokens were judged",
            "step": "step that computed and judged them",
            "request_id": "id of the request",
            "number": "number of the draft within its request",
            "proposer": "who proposed it",
            "rule": "exact, or the name of a rule that changes the distribution",
            "num_drafted": "tokens of the whole draft",
            "start": "position of the first token judged in this step",
            "tokens": "draft tokens judged in this step",
            "p": "their probabilities under the target",
            "q": "their probabilities under the proposer, 1 for a token that was named and not drawn",
            "u": "uniform numbers they were judged by, NaN where none was needed",
            "num_accepted": "how many of them are part of the output",
            "outcome": "recovered, bonus, held (all kept, it goes on in a later step), stopped, error",
            "token_id": "the recovered or bonus token, <NA> when there is none",
            "num_tokens": "output tokens of the round: accepted ones and the recovered or bonus one",
            "draft_ms": "milliseconds of proposing, an equal share of what it took for all requests of the step",
            "verify_ms": "milliseconds of judging this draft after the forward pass",
        },
        "draft_policies": {
            "time_s": f"{CLOCK}: it was decided",
            "step": "number of the step",
            "request_id": "id of the request, None for all",
            "k": "most tokens of a draft from now on, 0: no drafts",
            "reason": "why",
            "acceptance": "measured share of accepted draft tokens, NaN while nothing is measured",
            "batch_size": "running requests",
        },
        "ranks": {
            "start_s": f"{CLOCK}: it began",
            "duration_ms": "milliseconds it took",
            "step": "number of the step",
            "rank": "process of the group, from 0",
            "role": "what the group is for: tensor, pipeline or expert",
            "name": "forward, or wait (for another process)",
            "micro_batch": "part of the step's batch it worked on, -1 when the batch was not divided",
            "first_layer": "first layer it computed, -1 when none",
            "last_layer": "last layer it computed, -1 when none",
            "num_tokens": "packed tokens it computed",
        },
        "collectives": {
            "start_s": f"{CLOCK}: the process called it",
            "duration_ms": "milliseconds until it returned, waiting for others included",
            "step": "number of the step",
            "rank": "process that took part, from 0",
            "role": "what the group is for: tensor, pipeline or expert",
            "kind": "all_reduce, all_gather, all_to_all, broadcast, send or receive",
            "layer": "layer it belongs to, -1 when none",
            "place": "where in the model: attention, mlp, embedding, head, stage, dispatch or combine",
            "nbytes": "bytes of this process's message",
            "group_size": "processes of the group",
        },
        "transfers": {
            "start_s": f"{CLOCK}: the copy began",
            "duration_ms": "milliseconds it took",
            "step": "number of the step",
            "request_id": "id of the request",
            "action": "swap_out, swap_in, send or receive",
            "source": "where the K/V was",
            "target": "where it went",
            "medium": "what carried it: memory, shared memory or socket",
            "blocks": "ids of the blocks in this process's pool",
            "num_tokens": "positions they hold",
            "nbytes": "bytes copied",
            "reason": "why it was copied and not computed again",
        },
        "spans": {
            "span_id": "number of the span",
            "parent_id": "span that contains it, <NA> for a root",
            "request_id": "request it belongs to, None for the engine's own and the wire's",
            "wire_id": "exchange whose tree it is in (the gateway's id, or the client's when there is no other)",
            "step": "number of the step, <NA> outside steps",
            "name": "exchange, request, queue, prefill, decode, wait, between steps, a phase or a stage",
            "start_s": f"{CLOCK}: it began",
            "end_s": f"{CLOCK}: it ended",
            "duration_ms": "milliseconds from start to end",
            "depth": "0 for a root",
        },
        "wire": {
            "time_s": f"{CLOCK}: it happened",
            "wire_id": "the gateway's id of the exchange, None when no gateway recorded it",
            "client_id": "the client's id of the exchange, None when it gave none",
            "request_ids": "tuple of the engine requests that serve the exchange",
            "side": "client, proxy or gateway: who recorded it",
            "kind": "request, response, bytes, frame, delta, retry, warning, fault, disconnect, error or end",
            "direction": "sent or received, empty where neither applies",
            "size": "bytes",
            "name": "method and path, status, event name or reason",
            "text": "untrusted text: a body, a frame's data, a fragment; None when there is none",
        },
        "stages": {
            "wire_id": "the gateway's id of the exchange, None when no gateway recorded it",
            "client_id": "the client's id of the exchange, None when it gave none",
            "request_ids": "tuple of the engine requests that serve the exchange",
            "side": "client or gateway: who decided",
            "name": "what was decided or done",
            "outcome": "one word: ok, refused, retried, ...",
            "reason": "why",
            "start_s": f"{CLOCK}: it began",
            "end_s": f"{CLOCK}: it ended",
            "duration_ms": "milliseconds from start to end",
            "details": "numbers and names as a dict",
        },
        "exchanges": {
            "wire_id": "the gateway's id of the exchange, None when no gateway recorded it",
            "client_id": "the client's id of the exchange, None when it gave none",
            "request_ids": "tuple of the engine requests that serve the exchange",
            "path": "path of the request",
            "status": "HTTP status, <NA> when there was no response",
            "stream": "whether the response came as server-sent events",
            "bytes_sent": "bytes of the request's body",
            "bytes_received": "bytes of the response's body",
            "frames": "server-sent events of the response",
            "sent_s": f"{CLOCK}: the client sent the request (no client recorded: the gateway received it)",
            "head_s": f"{CLOCK}: the client received the response's head (no client: the gateway sent it)",
            "first_frame_s": f"{CLOCK}: the first server-sent event, on the same side",
            "first_delta_s": f"{CLOCK}: the client had the first piece of the answer, NaN without a client's record",
            "end_s": f"{CLOCK}: the exchange ended, on the same side as sent_s",
            "ttft_ms": "milliseconds from sent_s to first_delta_s: the time to first token as the client saw it",
            "outcome": "complete, disconnected or error (also a status of 400 or more), None: no end was recorded",
        },
        "captures": {
            "array_id": "name of the array in Trace.arrays",
            "request_id": "id of the request",
            "step": "step that computed it",
            "time_s": f"{CLOCK}: it was recorded",
            "kind": "what it holds: attention, hidden, lens_entropy, ...",
            "layer": "layer it was recorded in, <NA> where there is none",
            "dims": "names of its dimensions",
            "shape": "lengths of its dimensions",
            "nbytes": "bytes",
            "positions": "positions of the sequence it is about",
            "held": "whether its numbers are beside the trace",
        },
        "block_map": {
            "block_id": "id of the block",
            "state": "free, cached, in use, shared, or unknown (its events are not in the trace)",
            "ref_count": "block tables that hold it, <NA> when unknown",
            "owners": "ids of the requests that hold it",
            "hash": "beginning of its hash (hexadecimal), empty when it has none",
        },
    }
)


def table(name: str, data: Mapping[str, object]) -> pd.DataFrame:
    """A DataFrame of the documented columns, in their order, with the docs in ``attrs["columns"]``."""
    docs = COLUMNS[name]
    assert data.keys() == docs.keys(), f"{name}: columns and documentation differ"
    frame = pd.DataFrame({column: data[column] for column in docs})
    frame.attrs["columns"] = dict(docs)
    return frame


def objects(values) -> pd.Series:
    """Python objects as they are: no conversion of text, ``None`` stays ``None``."""
    return pd.Series(values, dtype=object)


def integers(values) -> pd.Series:
    """Integers that may be missing (``None`` or ``pd.NA``)."""
    return pd.Series(values, dtype="Int64")
