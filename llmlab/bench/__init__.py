"""llmlab beside transformers: the same work, on the same machine, taking turns.

:mod:`~llmlab.bench.workloads` says what is measured, :mod:`~llmlab.bench.contenders` and
:mod:`~llmlab.bench.peers` do it inside worker processes, :mod:`~llmlab.bench.measure` lets the workers take turns,
:mod:`~llmlab.bench.report` turns the measurements into medians, ratios and verdicts.
"""
