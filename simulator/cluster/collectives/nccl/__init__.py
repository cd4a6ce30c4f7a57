"""NCCL and RCCL: the choice of algorithm and protocol (tuner), and how long it takes (timing)."""

from scaleproof.simulator.cluster.collectives.nccl.constants import Adjust, TimingConstants, constants_of, default_transport
from scaleproof.simulator.cluster.collectives.nccl.facts import (
    Generation,
    GroupLinks,
    Nccl,
    Protocol,
    channels,
    facts_of,
    rccl_facts_of,
)
from scaleproof.simulator.cluster.collectives.nccl.timing import (
    Choice,
    PointToPoint,
    Timing,
    choices,
    nccl_choice,
    point_to_point,
)
from scaleproof.simulator.cluster.collectives.nccl.tuner import candidates

__all__ = [
    "Adjust",
    "Choice",
    "Generation",
    "GroupLinks",
    "Nccl",
    "PointToPoint",
    "Protocol",
    "Timing",
    "TimingConstants",
    "candidates",
    "channels",
    "choices",
    "constants_of",
    "default_transport",
    "facts_of",
    "nccl_choice",
    "point_to_point",
    "rccl_facts_of",
]
