"""What can happen, as frozen records on one monotonic clock.

Every event carries ``t_ns`` (``time.perf_counter_ns()`` of the recording process, the moment it happened or
began). Records are made on the engine's hot path, so they hold ids, counts and tuples, never text that had to be
formatted. Field names are the column names of the DataFrames in :mod:`llmlab.trace.frames`.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmlab.trace.split_events import BlockTransfer, Collective, RankWork


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the trace was recorded on; the first event of every trace.

    ``kv_bytes_per_token`` is what one token occupies in the pool over all layers (bytes).
    ``wall_time`` is seconds since the epoch at ``t_ns``, so that two traces can be put on one calendar clock.
    ``num_heads`` is the number of query heads of a layer, 0 when it is not known. ``quantized`` names the format of the
    weights (``int8``, ``int4``), ``off`` when they are not. ``split`` says how the model is divided over processes
    (``tensor 3``), ``off`` when it is not. ``simulated``: nothing was computed, and this is where step times come from;
    empty for a real engine. ``num_host_blocks`` is the size of the host pool, 0 without one; ``swap`` says how it is
    chosen between copying to it and computing again.
    """

    t_ns: int
    wall_time: float
    model: str
    device: str
    dtype: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    block_size: int
    num_blocks: int
    kv_bytes_per_token: int
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    policy: str
    prefix_cache: str
    versions: dict[str, str]
    speculative: str = "off"
    num_heads: int = 0
    quantized: str = "off"
    split: str = "off"
    simulated: str = ""
    num_host_blocks: int = 0
    swap: str = "off"


@dataclass(frozen=True, slots=True)
class RequestSubmitted:
    """A request entered the engine's inbox. ``prompt`` is the rendered text when it is known, else ``None``.

    ``params`` is ``SamplingParams.to_dict()``; ``parent_id`` is the first sample of an ``n > 1`` group.
    """

    t_ns: int
    request_id: str
    parent_id: str | None
    priority: int
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    params: dict


@dataclass(frozen=True, slots=True)
class Span:
    """A timed stage outside the step loop: ``render template``, ``tokenize``, later the client's and gateway's."""

    t_ns: int
    end_ns: int
    name: str
    request_id: str | None


@dataclass(frozen=True, slots=True)
class StepRow:
    """One request's part in one step: it computed positions ``start .. start + num_tokens - 1``.

    ``num_cached`` is the number of leading positions that were *not* computed because the prefix cache held them, or
    because they were swapped in from the host pool (set on the first step after admission, else 0). ``is_prefill`` is
    true while prompt tokens, or tokens lost to a preemption, are being computed; ``sampled`` says whether this row's
    last position gave a token. The last ``num_draft`` positions held draft tokens; the last ``num_rejected`` of those
    are computed again, with others.
    """

    request_id: str
    start: int
    num_tokens: int
    num_cached: int
    is_prefill: bool
    sampled: bool
    num_draft: int = 0
    num_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One engine step. The phases follow each other without gaps from ``t_ns`` to ``end_ns``.

    ``t_ns`` schedule -> ``build_ns`` build batch -> ``forward_ns`` forward -> ``sample_ns`` sample ->
    ``detokenize_ns`` detokenize -> ``emit_ns`` emit -> ``end_ns``: each name is the moment that phase began.
    ``free``, ``cached`` and ``used`` blocks are counted when the step's blocks are all allocated and sum to
    ``num_blocks``; ``waiting`` and ``running`` are queue lengths at that moment.
    """

    t_ns: int
    build_ns: int
    forward_ns: int
    sample_ns: int
    detokenize_ns: int
    emit_ns: int
    end_ns: int
    step: int
    rows: tuple[StepRow, ...]
    waiting: int
    running: int
    free: int
    cached: int
    used: int


@dataclass(frozen=True, slots=True)
class Decision:
    """Why the scheduler treated a request as it did in one step.

    ``action`` is one of ``admitted``, ``ran``, ``waited``, ``preempted``, ``finished``, ``aborted``; ``reason`` is
    a constant of :class:`llmlab.engine.plan.Reason`, for ``preempted`` with a host pool two of them, joined by ``; ``.
    ``by`` is the request that caused a preemption.
    A ``waited`` decision is recorded when it is first taken and again only when its reason changes: it holds until
    the next decision about the same request.
    """

    t_ns: int
    step: int
    request_id: str
    action: str
    reason: str
    num_tokens: int
    by: str | None


@dataclass(frozen=True, slots=True)
class BlockEvent:
    """A change of one K/V block.

    ``action``: ``allocate`` (from the free list), ``hit`` (shared through the prefix cache), ``share`` (forked for
    ``n > 1``), ``copy`` (copy-on-write, or the part of a cached block that a radix tree found; ``block_id`` is the new
    block, ``source_id`` the old one), ``cache`` (full and findable), ``evict`` (forgotten so that it can be reused),
    ``free`` (one reference dropped).
    ``index`` is the block's place in the request's block table (-1 when it has none), ``ref_count`` the count after.
    ``hash`` is a short hexadecimal prefix (with a radix tree: a number), empty while the block cannot be found.
    """

    t_ns: int
    step: int
    block_id: int
    action: str
    request_id: str | None
    index: int
    ref_count: int
    hash: str
    source_id: int | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A token was chosen for position ``position`` (0 = first prompt token) of a request.

    ``source``: ``target`` (sampled from the model), or with speculation ``accepted`` (a draft token), ``recovered`` (in
    place of a rejected one) or ``bonus`` (after a wholly accepted draft). ``logprob`` is the natural log of its
    probability under the model's own distribution, before temperature and filters.
    ``top`` holds ``(token_id, logprob)`` pairs when they were asked for.
    """

    t_ns: int
    step: int
    request_id: str
    position: int
    token_id: int
    logprob: float
    source: str
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens ``start ..``, asked for with ``prompt_logprobs``."""

    t_ns: int
    step: int
    request_id: str
    start: int
    logprobs: tuple[float, ...]
    top: tuple[tuple[tuple[int, float], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class DraftRound:
    """Draft tokens of a request were verified in one step.

    Draft ``number`` of the request had ``num_drafted`` tokens. Those for positions ``start ..`` were judged in this
    step: ``tokens``, with their probabilities under target (``p``) and ``proposer`` (``q``) and the uniform number they
    were judged by (``u``, NaN where none was needed). The first ``num_accepted`` were kept. ``outcome``: ``recovered``
    (``token_id`` stands in place of the first rejected one), ``bonus`` (``token_id`` follows the draft), ``held`` (all
    were kept; the rest of the draft, or the token after it, comes in a later step), ``stopped`` (the output ended
    within the draft) or ``error``; ``token_id`` is -1 for the last three. ``draft_ns`` is what proposing took for all
    requests of that step, of which there were ``num_proposed_for``; 0 where the draft was held over. ``verify_ns``:
    judging this draft, after the forward pass.
    """

    t_ns: int
    step: int
    request_id: str
    proposer: str
    rule: str
    number: int
    num_drafted: int
    start: int
    tokens: tuple[int, ...]
    p: tuple[float, ...]
    q: tuple[float, ...]
    u: tuple[float, ...]
    num_accepted: int
    outcome: str
    token_id: int
    draft_ns: int
    num_proposed_for: int
    verify_ns: int


@dataclass(frozen=True, slots=True)
class DraftPolicy:
    """From now on a request is drafted for with ``k`` tokens (0: not at all), and why.

    ``request_id`` is ``None`` for all requests; ``acceptance`` is the measured share of accepted tokens, NaN while
    nothing was measured; ``batch_size`` is the number of running requests.
    """

    t_ns: int
    step: int
    request_id: str | None
    k: int
    reason: str
    acceptance: float
    batch_size: int


@dataclass(frozen=True, slots=True)
class TextEmitted:
    """Text became safe to show after ``num_tokens`` output tokens: never half a character, never taken back."""

    t_ns: int
    step: int
    request_id: str
    text: str
    num_tokens: int


@dataclass(frozen=True, slots=True)
class RequestFinished:
    """The last event of a request. ``usage`` is ``Request.usage()``: token counts by kind."""

    t_ns: int
    step: int
    request_id: str
    stop_reason: str
    stop_sequence: str | int | None
    usage: dict[str, int]


@dataclass(frozen=True, slots=True)
class WireEvent:
    """Something crossed, or happened on, a connection that carries one HTTP request.

    ``wire_id`` is the id of the exchange as ``side`` knows it: the client's own request id on side ``client``, the
    ``request-id`` of the response on side ``gateway``; a :class:`WireLink` joins the two. ``side`` is ``client``,
    ``proxy`` or ``gateway``. ``kind``: ``request`` and ``response`` (head, and body when it is in one piece), ``bytes``
    (a piece of a stream as it passed the socket), ``frame`` (one server-sent event), ``delta`` (text or arguments a
    frame added), ``retry``, ``warning``, ``fault`` (injected on purpose), ``disconnect``, ``error``, ``end``.
    ``direction`` is ``sent`` or ``received``, empty where neither applies. ``size`` is in bytes. ``name`` is the
    method and path, the status, the event name or the reason. ``text`` is untrusted: a body, a frame's data, a
    fragment; long ones are cut and credentials never included.
    """

    t_ns: int
    wire_id: str
    side: str
    kind: str
    direction: str
    size: int
    name: str
    text: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """One decision about an exchange, from ``t_ns`` to ``end_ns``.

    On side ``gateway``: ``authenticate``, ``read body``, ``decode``, ``rate limit``, ``route``, ``admit``, ``render``
    and so on; on side ``client``: ``assemble``, ``estimate``, ``send``, ``wait``. ``outcome`` is one word (``ok``,
    ``refused``, ``retried``), ``reason`` says why in a sentence or constant, ``details`` holds numbers and names.
    """

    t_ns: int
    end_ns: int
    wire_id: str
    side: str
    name: str
    outcome: str
    reason: str
    details: dict


@dataclass(frozen=True, slots=True)
class WireLink:
    """Joins ids: ``relation`` is ``client`` (``other_id`` is the client's id of the exchange) or ``engine``
    (``other_id`` is the engine request that serves it; one exchange may have several).
    """

    t_ns: int
    wire_id: str
    relation: str
    other_id: str


@dataclass(frozen=True, slots=True)
class Captured:
    """One array was recorded inside the model for a request; the numbers lie beside the trace, under ``array_id``.

    ``kind`` is one of ``attention``, ``scores``, ``query``, ``key``, ``value``, ``hidden``, ``embed``, ``router_*``,
    ``lens_*``, ``distribution_*`` and so on (:mod:`llmlab.trace.captures` has the list); ``layer`` is -1 where there is
    none, or where ``layer`` is a dimension: then ``layers`` are those along it. ``dims`` name the dimensions of
    ``shape``; ``positions`` are those along ``query`` or ``position``, and ``labels`` what the dimension of heads
    (their numbers), targets (token ids) or stages (of the sampler) stands for.
    """

    t_ns: int
    step: int
    request_id: str
    array_id: str
    kind: str
    layer: int
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    positions: tuple[int, ...]
    labels: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ProbeNote:
    """Something about a request's probes that is no array.

    ``action``: ``started`` (``positions`` are those asked for; the first ``num_cached`` of the sequence were served
    from the prefix cache, so nothing was computed there), ``stopped`` (``reason`` says why nothing more is kept),
    ``ablate`` or ``patch`` (the model's answer was changed on purpose; ``reason`` says where).
    """

    t_ns: int
    step: int
    request_id: str
    action: str
    reason: str
    positions: tuple[int, ...] = ()
    num_cached: int = 0


@dataclass(frozen=True, slots=True)
class Gap:
    """``dropped`` events before this one were lost because the ring was full.

    0 means that recording was paused, so their number is not known.
    """

    t_ns: int
    dropped: int


Event = (
    EngineInfo
    | RequestSubmitted
    | Span
    | Step
    | Decision
    | BlockEvent
    | Token
    | PromptLogprobs
    | DraftRound
    | DraftPolicy
    | TextEmitted
    | RequestFinished
    | WireEvent
    | Stage
    | WireLink
    | Captured
    | ProbeNote
    | RankWork
    | Collective
    | BlockTransfer
    | Gap
)

EVENT_TYPES: tuple[type, ...] = Event.__args__
