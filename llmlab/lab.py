"""A lab: one model, one engine, one trace, behind a few calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateError

from llmlab.engine.engine import Engine
from llmlab.engine.params import SamplingParams
from llmlab.engine.run import Run
from llmlab.errors import EmptyPrompt, InvalidParameter
from llmlab.trace.events import Span
from llmlab.trace.trace import Trace

if TYPE_CHECKING:
    from llmlab.client.client import Client
    from llmlab.gateway.backend import Backend
    from llmlab.gateway.server import Server
    from llmlab.probes.capture import Capture
    from llmlab.probes.intervene import Intervention

Prompt = str | Sequence[dict[str, Any]] | Sequence[int]


def check_prompt_shape(prompt: object) -> None:
    """Refuse what is neither text, messages nor token ids, saying what would work."""
    if isinstance(prompt, str):
        if not prompt:
            raise EmptyPrompt("the prompt is empty: give some text")
        return
    if isinstance(prompt, dict):
        raise InvalidParameter("the prompt is one message: put it into a list")
    if isinstance(prompt, bytes | bytearray) or not isinstance(prompt, Sequence):
        kind = type(prompt).__name__
        raise InvalidParameter(f"the prompt is of type {kind}: give text, a list of messages, or a list of token ids")
    if all(type(item) is int for item in prompt):
        return
    for message in prompt:
        if not isinstance(message, dict) or not {"role", "content"} <= message.keys():
            raise InvalidParameter(f"message {message!r} must be a dict with 'role' and 'content'")
        if not isinstance(message["content"], str):
            raise InvalidParameter(f"the content of message {message!r} must be text")


class Lab:
    """What :func:`llmlab.open` returns. Use it as a context manager, or :meth:`close` it."""

    def __init__(self, engine: Engine, tokenizer, model: str, model_path: str | None, loaded: Any = None) -> None:
        self.engine, self.tokenizer = engine, tokenizer
        self.model = model
        self.model_path = None if model_path is None else Path(model_path)
        self.loaded = loaded
        self._servers: list[Server] = []
        self._own_server: Server | None = None  # the one that client() started
        self._clients: list[Client] = []

    # -- requests -------------------------------------------------------------------------------------------

    def submit(
        self,
        prompt: Prompt,
        *,
        system: str | None = None,
        raw: bool = False,
        priority: int = 0,
        capture: Capture | None = None,
        intervene: Intervention | Iterable[Intervention] = (),
        **params: Any,
    ) -> Run:
        """Queue a prompt and return its handle at once.

        ``prompt`` is text (one user message), a list of ``{"role", "content"}`` messages, or token ids; ``system`` is
        put before the messages; ``raw=True`` sends text without the chat template. ``capture`` records inside the model
        (:class:`~llmlab.probes.capture.Capture`; see :attr:`Run.captured`) and ``intervene`` changes what it computes,
        both for this request only. ``params`` are the fields of :class:`~llmlab.engine.params.SamplingParams`.
        Raises the errors of :meth:`Engine.submit`.
        """
        sampling = SamplingParams.from_kwargs(**params)
        request_id = self.engine.new_id()
        text, ids = self._encode(prompt, system, raw, request_id)
        return self.engine.submit(
            ids,
            sampling,
            priority=priority,
            prompt=text,
            request_id=request_id,
            capture=capture,
            intervene=intervene,
        )

    def ask(self, prompt: Prompt, **params: Any) -> Run:
        """:meth:`submit`, then wait until the run has finished; raises its error if it failed."""
        return self.submit(prompt, **params).wait()

    def _encode(self, prompt: Prompt, system: str | None, raw: bool, request_id: str) -> tuple[str | None, list[int]]:
        """The rendered text (``None`` for token ids) and the ids, each stage on the clock."""
        check_prompt_shape(prompt)
        if not isinstance(prompt, str) and all(type(item) is int for item in prompt):
            if system is not None:
                raise InvalidParameter("system= needs a text prompt or messages, not token ids")
            return None, list(prompt)
        start = perf_counter_ns()
        text, templated = self._render(prompt, system, raw)
        rendered = perf_counter_ns()
        try:
            ids = self.tokenizer.encode(text, add_special_tokens=not templated)
        except (TypeError, UnicodeError) as error:
            raise InvalidParameter(f"the prompt is not Unicode text that can be encoded: {error}") from error
        self._span("render template", start, rendered, request_id)
        self._span("tokenize", rendered, perf_counter_ns(), request_id)
        return text, list(ids)

    def _render(self, prompt: Prompt, system: str | None, raw: bool) -> tuple[str, bool]:
        if isinstance(prompt, str) and (raw or not getattr(self.tokenizer, "chat_template", None)):
            if system is not None:
                raise InvalidParameter("system= needs a chat template: leave out raw=True, or use another model")
            return prompt, False
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if system is not None:
            messages = [{"role": "system", "content": system}, *messages]
        try:
            return self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True), True
        except (TemplateError, TypeError, ValueError) as error:
            raise InvalidParameter(f"the model's chat template does not take these messages: {error}") from error

    # -- serving --------------------------------------------------------------------------------------------

    def serve(self, port: int = 0, *, upstreams: Sequence[str | Backend] = (), **settings: Any) -> Server:
        """Serve this lab to clients of both wire protocols, on a thread of its own; returns once it listens.

        ``upstreams`` are further backends: base URLs of OpenAI-compatible servers, or
        :class:`~llmlab.gateway.upstream.UpstreamBackend` objects (for one that needs a key), each for one server.
        ``settings`` are the fields of :class:`~llmlab.gateway.settings.Settings`; port 0 takes a free one, ``.url``
        tells which. Everything that crosses the wire is recorded in :attr:`trace`. Close the server, or the lab.

        Where the environment variable ``LLMLAB_UPSTREAM`` holds the address of another server, that one is served in
        the place of this lab's engine (not of the stand-in without weights).

        Raises ``InvalidParameter``, and ``LabError`` when the port is in use.
        """
        from llmlab.gateway.app import Gateway
        from llmlab.gateway.engine_backend import EngineBackend
        from llmlab.gateway.server import Server
        from llmlab.gateway.settings import Settings
        from llmlab.gateway.stand_in import stand_in
        from llmlab.gateway.upstream import upstream_backends

        chosen = Settings.from_kwargs(port=port, **settings)
        recorder = self.engine.recorder
        other = None if self.loaded is None else stand_in(recorder)
        backends = [other or EngineBackend(self, chosen, recorder), *upstream_backends(upstreams, recorder)]
        server = Server(Gateway(backends, chosen, recorder)).start()
        self._servers.append(server)
        return server

    def client(self, server: Server | None = None, **options: Any) -> Client:
        """A client of ``server``, or of one that is started on a free port; both sides record into :attr:`trace`.

        ``options`` are those of :class:`~llmlab.client.client.Client`. It is closed with the lab. A second client
        without a ``server`` shares the first one's. Raises ``InvalidParameter``, and ``LabError`` as :meth:`serve`.
        """
        from llmlab.client.client import Client
        from llmlab.gateway.server import Server

        if server is not None and not isinstance(server, Server):
            raise InvalidParameter(
                f"server is of type {type(server).__name__}: give what lab.serve() returned, nothing at all, or use "
                "llmlab.connect(url) for the address of a server"
            )
        if server is None:
            server = self._own_server = self._own_server if self._own_server_runs() else self.serve()
        client = Client(server.url, **{"recorder": self.engine.recorder, **options})
        self._clients.append(client)
        return client

    def _own_server_runs(self) -> bool:
        return self._own_server is not None and self._own_server.is_running

    def _span(self, name: str, start: int, end: int, request_id: str) -> None:
        if self.engine.recorder.enabled:
            self.engine.recorder.emit(Span(start, end, name, request_id))

    # -- the rest -------------------------------------------------------------------------------------------

    @property
    def trace(self) -> Trace:
        """Everything recorded since the lab was opened."""
        return self.engine.trace

    def close(self) -> None:
        """Close the clients, stop the servers, then the engine.

        Open runs end with :class:`~llmlab.errors.EngineStopped`.
        """
        for client in self._clients:
            client.close()
        for server in self._servers:
            server.close()
        self.engine.close()

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        pool, runner = self.engine.pool, self.engine.runner
        return (
            f"<Lab {self.model} on {runner.device}, {runner.dtype}: {pool.num_blocks} blocks of "
            f"{pool.block_size} tokens, {pool.num_used} used>"
        )
