"""Pictures of what a trace recorded: functions that take a :class:`~llmlab.trace.trace.Trace` and return a
:class:`~llmlab.views.view.View`. Each is imported when it is first asked for.

``ALL`` holds those that take one trace; ``compare`` takes two, ``online_softmax`` a walk, ``server_metrics`` readings,
``rounding`` weights, ``row_costs`` measured times.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llmlab.views.anatomy import anatomy
    from llmlab.views.attention import attention
    from llmlab.views.attention_heads import attention_heads
    from llmlab.views.batch_lanes import batch_lanes
    from llmlab.views.block_map import block_map
    from llmlab.views.compare import compare
    from llmlab.views.distribution import distribution
    from llmlab.views.draft_rounds import draft_rounds
    from llmlab.views.exchanges import exchanges
    from llmlab.views.expert_load import expert_load
    from llmlab.views.handoff import handoff
    from llmlab.views.hidden import hidden
    from llmlab.views.kv_growth import kv_growth
    from llmlab.views.lens import lens
    from llmlab.views.online_softmax import online_softmax
    from llmlab.views.rank_lanes import rank_lanes
    from llmlab.views.rounding import rounding
    from llmlab.views.row_costs import row_costs
    from llmlab.views.server_metrics import server_metrics
    from llmlab.views.step_timeline import step_timeline
    from llmlab.views.token_strip import token_strip
    from llmlab.views.usage_ledger import usage_ledger
    from llmlab.views.view import View
    from llmlab.views.waterfall import waterfall
    from llmlab.views.wire_view import wire_view

__all__ = [
    "ALL",
    "View",
    "anatomy",
    "attention",
    "attention_heads",
    "batch_lanes",
    "block_map",
    "compare",
    "distribution",
    "draft_rounds",
    "exchanges",
    "expert_load",
    "handoff",
    "hidden",
    "kv_growth",
    "lens",
    "online_softmax",
    "rank_lanes",
    "rounding",
    "row_costs",
    "server_metrics",
    "step_timeline",
    "token_strip",
    "usage_ledger",
    "waterfall",
    "wire_view",
]

# in the order in which a request meets them; each is a function in the module of its name
OF_A_TRACE = (
    "waterfall",
    "step_timeline",
    "exchanges",
    "wire_view",
    "anatomy",
    "token_strip",
    "batch_lanes",
    "block_map",
    "kv_growth",
    "attention",
    "attention_heads",
    "hidden",
    "lens",
    "expert_load",
    "distribution",
    "draft_rounds",
    "rank_lanes",
    "handoff",
    "usage_ledger",
)
_VIEWS = frozenset((*OF_A_TRACE, "online_softmax", "compare", "server_metrics", "rounding", "row_costs"))


def __getattr__(name: str) -> Any:
    if name == "ALL":
        return tuple(__getattr__(view) for view in OF_A_TRACE)
    if name in _VIEWS:
        return getattr(importlib.import_module(f"{__name__}.{name}"), name)
    if name == "View":
        return importlib.import_module(f"{__name__}.view").View
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)


class _Package(ModuleType):
    """Importing a view's module binds the module in the package under the view's name: here the view stays.

    It is also the one place that every view passes, so here each learns to say when a trace is simulated.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _VIEWS and isinstance(value, ModuleType):
            from llmlab.views.simulated import marked

            view = marked(getattr(value, name))
            setattr(value, name, view)
            value = view
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
