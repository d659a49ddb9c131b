"""What a good client does with a streaming API, in small pieces: assemble, send, read, retry, recover, loop."""
