"""Options that are passed on by name, and what to say about one that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable

from llmlab.errors import InvalidParameter


def check_option_names(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Raise ``InvalidParameter`` for the first of ``given`` that is not ``known``, naming the closest ones.

    ``what`` says whose options they are, as in "unknown option 'prot' of a server".
    """
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, cutoff=0.6)
            hint = f"did you mean {' or '.join(close)}?" if close else f"known are {', '.join(known)}"
            raise InvalidParameter(f"unknown option {name!r} of {what}; {hint}")
