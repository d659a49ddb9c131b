"""One replica: ``llmlab serve`` with the arguments given, which ends when its standard input does.

So a replica cannot outlive the process that started it, however that ends.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_input, name="llmlab-replica-leash", daemon=True).start()
    from llmlab.cli import app

    app(["serve", *sys.argv[1:]], prog_name="llmlab")


def _end_with_input() -> None:
    # the descriptor itself: a buffered read would hold its lock while the interpreter ends
    while os.read(0, 65536):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
