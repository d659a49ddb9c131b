"""The server in front of the engine: two public APIs, each stage of a request visible in the trace."""
