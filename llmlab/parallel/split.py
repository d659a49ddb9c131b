"""What a user says about dividing a model over processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmlab.errors import InvalidParameter

if TYPE_CHECKING:
    from llmlab.engine.speculative.config import Speculation


@dataclass(frozen=True, slots=True)
class Split:
    """How a model is divided: ``role`` ``tensor``, ``pipeline`` or ``expert`` over ``size`` processes.

    ``micro_batches`` is for pipelines: how many parts of a batch follow each other (default: one per stage).
    """

    role: str
    size: int
    micro_batches: int | None = None

    def __str__(self) -> str:
        parts = f", {self.num_micro_batches} micro-batches" if self.role == "pipeline" else ""
        return f"{self.role} {self.size}{parts}"

    @property
    def num_micro_batches(self) -> int:
        """Parts of a batch."""
        return self.micro_batches or self.size

    @classmethod
    def of(cls, micro_batches: int | None = None, **sizes: int) -> Split | None:
        """From what :func:`llmlab.open` takes: ``tensor=``, ``pipeline=``, ``expert=`` numbers of processes.

        ``None`` when all are 1. Raises ``InvalidParameter``.
        """
        for role, size in sizes.items():
            if type(size) is not int or size < 1:
                raise InvalidParameter(f"{role}_parallel={size!r} must be an integer of at least 1")
        asked = {role: size for role, size in sizes.items() if size > 1}
        if len(asked) > 1:
            both = " and ".join(f"{role}_parallel={size}" for role, size in asked.items())
            raise InvalidParameter(f"{both} cannot be combined here: divide a model in one way")
        if micro_batches is not None and (type(micro_batches) is not int or micro_batches < 1):
            raise InvalidParameter(f"micro_batches={micro_batches!r} must be an integer of at least 1")
        if micro_batches is not None and "pipeline" not in asked:
            raise InvalidParameter("micro_batches= is for pipelines: give pipeline_parallel=2 or more with it")
        return next((cls(role, size, micro_batches) for role, size in asked.items()), None)

    def check_speculation(self, speculation: Speculation | None) -> None:
        """Raise ``InvalidParameter`` for a proposer that reads what only some of the processes have."""
        if speculation is None:
            return
        proposer = speculation.proposer
        if proposer not in (None, "ngram") and (isinstance(proposer, str) or proposer.needs_features):
            name = proposer if isinstance(proposer, str) else proposer.name
            raise InvalidParameter(
                f"speculative={name!r} reads the model's insides, and of a divided model ({self}) every process has a "
                "share only: use speculative='ngram'"
            )

    def check_others(self, is_mock: bool, **settings: Any) -> None:
        """Raise ``InvalidParameter`` for the mock model, and for settings that are on (by name) beside a division."""
        others = [f"{name}={value!r}" for name, value in settings.items() if value]
        if is_mock or others:
            other = "the mock model, which has no weights," if is_mock else " and ".join(others)
            raise InvalidParameter(f"{self.role}_parallel={self.size} and {other} do not go together: leave out one")
