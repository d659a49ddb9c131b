"""Pictures of what was computed: views with COMPUTED in their titles and their inputs in their notes."""

from llmlab.planner.picture_memory import fits_grid, memory_stack
from llmlab.planner.picture_speed import parallel_chart, roofline_chart

__all__ = ["fits_grid", "memory_stack", "parallel_chart", "roofline_chart"]
