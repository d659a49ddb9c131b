"""A fleet of replicas in simulated time: the engine's own scheduler and block pool, with modelled step times."""

from llmlab.planner.fleet.arrivals import Arrival, Prefixes, Workload, agents, at_once, bursty, poisson, replay
from llmlab.planner.fleet.drafts import Speculating
from llmlab.planner.fleet.lengths import Lengths, fixed, lognormal, observed, uniform
from llmlab.planner.fleet.result import FleetResult, FleetSummary
from llmlab.planner.fleet.settings import Fleet
from llmlab.planner.fleet.simulate import simulate

__all__ = [
    "Arrival",
    "Fleet",
    "FleetResult",
    "FleetSummary",
    "Lengths",
    "Prefixes",
    "Speculating",
    "Workload",
    "agents",
    "at_once",
    "bursty",
    "fixed",
    "lognormal",
    "observed",
    "poisson",
    "replay",
    "simulate",
    "uniform",
]
