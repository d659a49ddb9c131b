"""The named errors of llmlab: each message says what was wrong and what would work."""

from __future__ import annotations


class LabError(Exception):
    """Base of every error a user of llmlab can cause or meet."""


class InvalidParameter(LabError, ValueError):
    """A sampling or engine parameter is out of range, of the wrong type, or contradicts another one."""


class EmptyPrompt(LabError, ValueError):
    """The prompt holds no token, so there is no position to predict from."""


class ContextOverflow(LabError, ValueError):
    """Prompt plus ``max_tokens`` is longer than the model's context."""


class PoolTooSmall(LabError, ValueError):
    """The request could never fit in the K/V pool, even with the pool to itself."""


class CaptureTooLarge(LabError, ValueError):
    """What a capture asks for would take more bytes than its ``max_bytes``."""


class UnknownModel(LabError, LookupError):
    """The model name is not in the catalogue, not a local folder, and not fetched from the hub."""


class UnsupportedModel(LabError):
    """The model's architecture cannot be served from paged blocks (recurrent state, or a failed self-check)."""


class FetchError(LabError, OSError):
    """Weights could not be fetched: offline, no space left, or a hash that does not match."""


class InvalidLogits(LabError, ArithmeticError):
    """The model produced NaN or infinite logits for a request; other requests go on."""


class ConstraintError(LabError, RuntimeError):
    """A request's constraint failed or left no token to choose; other requests go on."""


class EngineStopped(LabError, RuntimeError):
    """The engine's thread ended, so requests that were still open cannot finish."""


class TraceFormatError(LabError, ValueError):
    """A file is not a trace, is damaged, is too large, or was written by a newer version."""


class UnknownRequest(LabError, LookupError):
    """The trace holds no request of this id."""


class BenchError(LabError, RuntimeError):
    """A contender of the benchmark could not start, failed a job, or died."""


class TranscriptError(LabError, OSError):
    """A session file is too large, not a plain file, or could not be written."""


class CompactionFailed(LabError, RuntimeError):
    """The model gave no summary, so the conversation stays as long as it is."""


class MissingExtra(LabError, ImportError):
    """An optional package is not installed; the message names it."""


class ProxyFailed(LabError, OSError):
    """The teaching proxy could not open a port on this machine."""


class ClaimsError(LabError, ValueError):
    """The table of claims is missing or is not one."""


class VocabularyMismatch(LabError, ValueError):
    """A draft model's token ids do not mean what the target's mean."""


class HeadMismatch(LabError, LookupError):
    """There is no trained head for these weights, or it was trained for others."""


class UnknownShape(LabError, ValueError):
    """A config lacks a field that sizes are computed from, or its architecture keeps more than keys and values."""


class RankFailed(LabError, RuntimeError):
    """A process that computes a share of the model ended or failed, so the model cannot be computed any more."""


class PrefillLost(LabError, RuntimeError):
    """The process that computes prompts ended or failed; the next request starts another."""


class QuantizationUnavailable(LabError, RuntimeError):
    """Weights cannot be computed with as integers here: another device, or a torch without the kernel."""


class ReplicaFailed(LabError, RuntimeError):
    """A server of a fleet did not come up."""
