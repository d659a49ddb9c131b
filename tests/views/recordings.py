"""Small traces that views are tested on, of the model without weights. Each function is a seeded run: calling
it again repeats every id, count, order and reason, and none of the times."""

from __future__ import annotations

import httpx2

import llmlab
from llmlab.engine.engine import Engine
from llmlab.engine.mock_runner import MockModel, mock_next_token
from llmlab.engine.params import SamplingParams
from llmlab.engine.plan import ScheduledRow
from llmlab.engine.run import Run
from llmlab.engine.scheduler import SchedulerConfig
from llmlab.engine.speculative.build import with_proposer
from llmlab.engine.speculative.config import Speculation
from llmlab.lab import Lab
from llmlab.models.byte_tokenizer import ByteTokenizer
from llmlab.probes.capture import Capture
from llmlab.trace import Trace
from llmlab.trace.events import EngineInfo, Stage, TextEmitted, WireEvent, WireLink
from llmlab.trace.recorder import Recorder
from llmlab.trace.split_events import Collective, RankWork

MS = 1_000_000
SHARED = "You answer questions about the block tables of a server, shortly and exactly. "
QUESTIONS = (
    "What is a block?",
    "Who frees it?",
    "When is it hit?",
    "Why is it evicted, and by whom, and in which order?",
)
MARKUP = '<script>alert("x")</script><b onclick=\'y\'>&amp;</b> {"text":"</script>"}'
INVISIBLE = "a\u202eb\u200fc\u2066d\x00e\x1bf\x7fg\u2028h"
LINE = "0123456789" * 1_200  # longer than the context: only on the wire


def submit_all(lab: Lab, shared: str = SHARED) -> list[Run]:
    """Eight requests: one that fills the cache with a prefix, four that share it, three of very different length."""
    first = lab.ask(shared, max_tokens=4, ignore_eos=True)
    rest = [lab.submit(shared + q, max_tokens=16 + 8 * i, ignore_eos=True) for i, q in enumerate(QUESTIONS)]
    rest += [lab.submit("count " * n, max_tokens=40, ignore_eos=True) for n in (2, 20, 30)]
    for run in rest:
        run.wait()
    return [first, *rest]


def record_lab() -> Trace:
    """Requests that share a prefix, wait for budget, slots and blocks, and are preempted."""
    with llmlab.open("mock", num_blocks=21, max_num_batched_tokens=64, max_num_seqs=4, background=False) as lab:
        submit_all(lab)
        return lab.trace


class Refrain(MockModel):
    """Repeats one line and now and then slips, so that what an n-gram proposes is sometimes right."""

    line = b"round and round the ring it went, "

    def _answers(self, row: ScheduledRow) -> list[int]:
        context = self.slots[row.request.block_table].reshape(-1)[: row.end].tolist()
        return [self._after(context[:end]) for end in range(row.end - row.num_logits + 1, row.end + 1)]

    def _after(self, context: list[int]) -> int:
        slip = mock_next_token(context)
        return slip if slip % 9 == 0 else self.line[len(context) % len(self.line)]


def record_drafts(shared: str = SHARED) -> Trace:
    """The same requests on :class:`Refrain` with n-gram speculation: drafts that are kept, cut short and refused."""
    runner, tokenizer, recorder = Refrain(48, 16), ByteTokenizer(), Recorder()
    speculation = with_proposer(Speculation("ngram"), runner, None)
    config = SchedulerConfig(96, 4, "continuous")
    eos = (tokenizer.eos_token_id,)
    engine = Engine(
        runner,
        tokenizer,
        eos_token_ids=eos,
        config=config,
        recorder=recorder,
        speculation=speculation,
        prefix_cache=True,
    )
    with Lab(engine, tokenizer, runner.model, None) as lab:
        submit_all(lab, shared)
        return lab.trace


def record_other() -> Trace:
    """Other prompts, sizes and settings than those of :func:`record_lab`."""
    with llmlab.open("mock", num_blocks=64, max_num_batched_tokens=128, max_num_seqs=8, background=False) as lab:
        runs = [lab.submit(f"{n} is another number" * n, max_tokens=6 + n, ignore_eos=True) for n in (1, 3, 5, 9)]
        for run in runs:
            run.wait()
        return lab.trace


def message(content: str, **fields: object) -> dict:
    """The body of a request that both protocols take."""
    return {"model": "mock", "max_tokens": 8, "messages": [{"role": "user", "content": content}], **fields}


def record_wire(shared: str = SHARED) -> Trace:
    """Both protocols, streamed and in one piece: two over the client, which share a cached beginning, the others
    without a record of the client's."""
    with llmlab.open("mock", num_blocks=64) as lab:
        client = lab.client()
        system = [{"type": "text", "text": shared * 2, "cache_control": {"type": "ephemeral"}}]
        client.send(message("first question " * 6, system=system))
        with client.stream(message("second question " * 4, system=system)) as exchange:
            for _ in exchange:
                pass
        chat = f"{client.url}/v1/chat/completions"
        httpx2.post(chat, json=message(shared)).raise_for_status()
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        httpx2.post(chat, json=message(shared * 3, **usage)).raise_for_status()
    return lab.trace


def record_hostile() -> Trace:
    """Prompts, answers and bodies with markup, controls, marks of direction and very long lines.

    A prompt of lone surrogates is refused, so those are in the wire's and the texts' events.
    """
    with llmlab.open("mock", num_blocks=1_024, max_num_batched_tokens=2_048, background=False) as lab:
        for prompt in (MARKUP, INVISIBLE, LINE[:3_500]):
            lab.ask(prompt, max_tokens=6, ignore_eos=True)
        last = lab.ask(MARKUP + INVISIBLE, max_tokens=6, ignore_eos=True)
        trace = lab.trace
    return Trace([*trace.events, *hostile_wire(trace, last.id)], pieces=trace.pieces)


def hostile_wire(trace: Trace, request_id: str) -> list:
    """An exchange of a request whose every text, name and number of bytes came from someone unkind."""
    start, end = trace.index.submitted[request_id].t_ns, trace.index.finished[request_id].t_ns
    evil, wire_id = MARKUP + INVISIBLE + "\ud800\udfff\udc00", "req_" + MARKUP
    frame = '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"' + evil + '"}}'
    return [
        WireEvent(start - MS, wire_id, "gateway", "request", "received", len(LINE), f"POST /{evil}", LINE + evil),
        WireLink(start - MS, wire_id, "engine", request_id),
        Stage(start - MS, start, wire_id, "gateway", evil, "<i>ok</i>", evil * 20, {evil: evil, "n": float("nan")}),
        TextEmitted(end - 1, 0, request_id, evil, 6),
        WireEvent(end, wire_id, "gateway", "response", "sent", 0, evil, evil),
        WireEvent(end + MS, wire_id, "gateway", "frame", "sent", 10**12, evil, frame),
        WireEvent(
            end + MS, wire_id, "gateway", "frame", "sent", 9, "message_delta", '{"usage":{"output_tokens":"<b>"}}'
        ),
        WireEvent(end + MS, wire_id, "gateway", "warning", "", 0, evil, LINE),
        WireEvent(end + 2 * MS, wire_id, "gateway", "end", "", 0, evil),
    ]


def record_captures(start: int = 0) -> Trace:
    """A tiny random model, looked into: attention, hidden states and lens of all layers, and how tokens were chosen."""
    from tiny_models import COMMON, VOCABULARY, paged_engine, random_model

    prompt = [(start + 7 * i) % (VOCABULARY - 1) + 1 for i in range(23)]
    params = SamplingParams(max_tokens=8, temperature=0.9, top_k=24, top_p=0.9, seed=start, ignore_eos=True)
    capture = Capture(attention=True, hidden=True, lens=True, distribution=12)
    engine = paged_engine(random_model("llama", **COMMON), budget=12)
    engine.submit(prompt[:14], params).wait()
    engine.submit(prompt, params, capture=capture).wait()
    return engine.trace


def record_experts(start: int = 0) -> Trace:
    """A tiny random mixture of experts, with what its routers chose."""
    from tiny_models import FAMILIES, VOCABULARY, paged_engine, random_model

    kind, config = FAMILIES["mixtral"]
    prompt = [(start + 7 * i) % (VOCABULARY - 1) + 1 for i in range(23)]
    engine = paged_engine(random_model(kind, **config), budget=12)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    engine.submit(prompt[:14], params).wait()
    engine.submit(prompt, params, capture=Capture(router=True)).wait()
    return engine.trace


def record_ranks(extra: int = 0) -> Trace:
    """A stage of a pipeline and the next one, over four steps, as such processes record them; ``extra`` tokens more."""
    work, messages = [], []
    for step in range(4):
        for part in range(3):
            tokens, begin = 1 + part + extra, (40 * step + 8 * part) * MS
            for rank in range(2):
                start = begin + 9 * rank * MS
                layers = (15 * rank, 15 * rank + 14)
                work.append(RankWork(start, start + 7 * MS, step, rank, "pipeline", "forward", part, *layers, tokens))
            sent = (step, 0, "pipeline", "send", 14, "stage", tokens * 2304, 2)
            messages.append(Collective(begin + 7 * MS, begin + 8 * MS, *sent))
            received = (step, 1, "pipeline", "receive", 14, "stage", tokens * 2304, 2)
            messages.append(Collective(begin + 7 * MS, begin + 9 * MS, *received))
            work.append(RankWork(begin + 7 * MS, begin + 9 * MS, step, 1, "pipeline", "wait", part, 15, 29, tokens))
    return Trace([*info_only().events, *work, *messages])


def record_long() -> Trace:
    """20,000 prompt tokens in 4,096 blocks and 512 steps beside small requests, with ten million characters of text."""
    tokenizer, recorder = ByteTokenizer(), Recorder(1_000_000)
    config = SchedulerConfig(512, 8, "continuous")
    engine = Engine(
        MockModel(4_096, 16, max_model_len=32_768), tokenizer, config=config, recorder=recorder, prefix_cache=True
    )
    with Lab(engine, tokenizer, "mock", None) as lab:
        runs = [lab.submit("word " * 4_000, max_tokens=512, ignore_eos=True)]
        runs += [lab.submit(f"{n} and so on", max_tokens=100, ignore_eos=True) for n in range(12)]
        for run in runs:
            run.wait()
        trace = lab.trace
    endless = TextEmitted(trace.events[-1].t_ns, 0, runs[0].id, "endless " * 1_250_000, 512)
    return Trace([*trace.events, endless, *hostile_wire(trace, runs[0].id)], pieces=trace.pieces)


def info_only() -> Trace:
    """A trace that says what it was recorded on, and nothing else."""
    with llmlab.open("mock", background=False) as lab:
        return Trace([event for event in lab.trace.events if isinstance(event, EngineInfo)])
