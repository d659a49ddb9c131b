"""How long each view takes on a long trace: what the kernel does before a page can draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.views.view import View

REPEATS = 3
INDEX = "(index of the trace)"


@dataclass(frozen=True, slots=True)
class Size:
    """Of a long trace: tokens of its longest prompt, decode steps after it, and blocks of the pool."""

    prompt_tokens: int = 20_000
    steps: int = 512
    blocks: int = 4_096


USUAL, SMALL = Size(), Size(1_000, 64, 128)


@dataclass(frozen=True, slots=True)
class Built:
    """One view: milliseconds to build it from an indexed trace and to encode it for the page, median of several;
    ``marks`` drawn and ``nbytes`` to send. ``is_empty``: the trace has nothing for it."""

    name: str
    build_ms: float
    encode_ms: float = 0.0
    marks: int = 0
    nbytes: int = 0
    is_empty: bool = False

    @property
    def total_ms(self) -> float:
        """Until its message could leave."""
        return self.build_ms + self.encode_ms


def large_trace(size: Size = USUAL) -> Trace:
    """A long prompt beside small requests on the model without weights, and one exchange over the wire."""
    from llmlab.engine.engine import Engine
    from llmlab.engine.mock_runner import MockModel
    from llmlab.engine.scheduler import SchedulerConfig
    from llmlab.lab import Lab
    from llmlab.models.byte_tokenizer import ByteTokenizer
    from llmlab.trace.recorder import Recorder

    length = size.prompt_tokens + size.steps + 64
    config, tokenizer = SchedulerConfig(512, 8, "continuous"), ByteTokenizer()
    model = MockModel(size.blocks, 16, max_model_len=length)
    recorder = Recorder(1_000_000)
    with Lab(Engine(model, tokenizer, config=config, recorder=recorder), tokenizer, "mock", None) as lab:
        # a token for each byte, and one for the beginning
        prompts = [("word " * size.prompt_tokens)[: size.prompt_tokens - 1], *(f"{n} and so on" for n in range(12))]
        runs = [lab.submit(prompt, max_tokens=size.steps, ignore_eos=True) for prompt in prompts[:1]]
        runs += [lab.submit(prompt, max_tokens=min(100, size.steps), ignore_eos=True) for prompt in prompts[1:]]
        for run in runs:
            run.wait()
        lab.engine.start()
        messages = [{"role": "user", "content": "One over the wire."}]
        lab.client().send({"model": "mock", "max_tokens": 32, "messages": messages})
        return lab.trace


def measure_views(trace: Trace, repeats: int = REPEATS) -> list[Built]:
    """Every view of :data:`llmlab.views.ALL`, the trace's index before them."""
    import llmlab.views

    return [_index(trace, repeats), *(_view(view, trace, repeats) for view in llmlab.views.ALL)]


def _fresh(trace: Trace) -> Trace:
    """The same events without anything computed from them; a live panel gets such a trace each time."""
    return Trace(trace.events, trace.only, trace.arrays, trace.pieces)


def _index(trace: Trace, repeats: int) -> Built:
    fresh = [_fresh(trace) for _ in range(repeats)]
    return Built(INDEX, 1e3 * median(_seconds(lambda each=each: each.index)[0] for each in fresh))


def _view(function: Callable[..., View], trace: Trace, repeats: int) -> Built:
    from llmlab.widgets.scene_json import encode

    function(trace)  # what it imports is not part of it
    building, encoding = [], []
    for _ in range(repeats):
        fresh = _fresh(trace)
        assert fresh.index is not None
        seconds, view = _seconds(lambda fresh=fresh: function(fresh))
        building.append(1e3 * seconds)
        seconds, scene = _seconds(lambda view=view: encode(view))
        encoding.append(1e3 * seconds)
    is_empty = not len(view.frame)
    return Built(function.__name__, median(building), median(encoding), len(view.scene.marks), len(scene), is_empty)


def _seconds(work: Callable[[], object]) -> tuple[float, object]:
    start = perf_counter()
    result = work()
    return perf_counter() - start, result


def slowest(built: Sequence[Built]) -> Built:
    """The view that takes longest."""
    return max((each for each in built if each.name != INDEX), key=lambda each: each.total_ms)
