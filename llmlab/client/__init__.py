"""What a good client does with a streaming API, in small pieces that can be used alone.

Five ways in:

- A server and its answer: ``client = llmlab.connect(url)``, which is ``client.Client(url)``; a lab's own is
  ``lab.client()``. ``client.send({"model": m, "max_tokens": 64, "messages": [...]}).text`` waits for the answer;
  ``with client.stream(request) as exchange: for delta in exchange: ...`` shows it as it comes.
- A request and nothing else: ``assemble.assemble(m, [entry.user("Hi")], options=assemble.Options()).request``.
- A loop with tools: ``agent.Agent(client, model=m, root="folder").run("Which files are here?").table()``.
- A slow or broken way to the server: ``with proxy.Proxy(url, rtt_s=0.1, recorder=lab.engine.recorder) as way:
  Client(way.url, recorder=lab.engine.recorder)`` puts both sides and the injected delay into one trace.
- Bytes that are there already: ``llmlab.api.sse_parser.SseParser().feed(data)`` gives the events, and
  ``accumulate.Accumulator`` (Messages) or ``accumulate_chunks.OpenAIAccumulator`` (Chat Completions) the message.

Which module for what:

- making a request: ``entry``, ``transcript`` and ``visibility`` (what a session holds, and what of it is sent),
  ``context_sources``, ``tool_order``, ``breakpoints``, ``betas``, ``estimate``, ``output_limit``; ``fields`` and
  ``field_data`` say which fields decide about the content and which about how it is handled
- sending it: ``wire``, ``attempt``, ``transfer``, ``timeouts``, ``recording``, ``certificate``
- reading the answer: ``streamed``, ``lifecycle`` and ``chunk_lifecycle`` (the allowed order of events), ``arguments``,
  ``message``, ``exchange``
- what may fail: ``stream_errors`` (the names), ``retry``, ``overflow`` and ``recovery`` (what is done about it)
- the loop: ``agent``, ``agent_result``, ``compaction``, ``tool``, ``tools``, ``calculator``, ``file_tools``
- the way: ``proxy``, ``proxy_link``
"""
