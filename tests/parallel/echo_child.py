"""A child process for tests: answers messages, or does something from which only its parent's end frees it."""

from __future__ import annotations

import sys
import time

from llmlab.parallel.channel import Channel


def main() -> None:
    channel = Channel()
    print("printed text is no message")
    while True:
        message = channel.receive()
        if message.get("do") == "raise":
            channel.send({"error": "ValueError: not here"})
        elif message.get("do") == "exit":
            print("last words", file=sys.stderr)
            sys.exit(3)
        elif message.get("do") == "hang":
            channel.send({"hangs": True})
            while True:
                time.sleep(0.01)
        else:
            channel.send({"echo": message})


if __name__ == "__main__":
    main()
