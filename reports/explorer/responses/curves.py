"""Curves around a scenario: throughput over GPUs, and over the bandwidth of its links."""

from __future__ import annotations

import re
import time
from typing import Any, Final

from scaleproof.reports.explorer.responses.sentences import throughput_unit
from scaleproof.simulator.cluster.quantities import QUANTITIES
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_Bps
from scaleproof.simulator.engine import NONE, Timeline, Variation, events, replay
from scaleproof.simulator.memory import memory
from scaleproof.simulator.predict import timed
from scaleproof.simulator.program import Program
from scaleproof.simulator.scenario.gpus import with_gpus
from scaleproof.simulator.scenario.schema import Scenario

# multiples of the scenario's GPUs and bandwidths, in the order in which they are computed; the rest is left out when time is up
_ORDER: Final = (("gpus", 1.0), ("gpus", 2.0), ("gpus", 0.5), ("bandwidth", 0.5), ("bandwidth", 2.0),
                 ("bandwidth", 0.25), ("bandwidth", 4.0), ("gpus", 4.0), ("gpus", 0.25), ("gpus", 8.0), ("gpus", 0.125),
                 ("bandwidth", 0.71), ("bandwidth", 1.41), ("gpus", 16.0))  # fmt: skip
# what is said of other numbers of GPUs, which the curve shows
_NEAREST: Final = re.compile(r"; nearest possible: .*")
_LINKS: Final = {"network.bandwidth": "between nodes", "node.link.bandwidth": "inside a node"}
# seconds of this thread's own computing, so that the curve is the same on a busy machine
_LONGEST_S: Final = 1.5
# a prediction from this duration on is shown without intervals
_SLOW_S: Final = 0.2
# steps of asynchronous workers, whose steps differ
_FEW_STEPS: Final = 8


def curves(scenario: Scenario) -> dict[str, Any]:
    """Throughput on other numbers of GPUs with the same global batch, and with other bandwidths, in the unit that is given.

    scaling: `points` by GPUs, with the throughput `rate`, its interval `low` and `high` and whether memory suffices, and
    numbers of GPUs that are `refused`. links: points by multiples of a link's bandwidth.
    """
    begin_s = time.thread_time()
    now = _CurvePoint(scenario, interval=False)
    with_interval = time.thread_time() - begin_s < _SLOW_S
    points, refused = [], []
    links = {name: [{"factor": 1.0, "rate": now.rate}] for name in _LINKS if _uses(scenario, name)}
    for kind, factor in _ORDER:
        if time.thread_time() - begin_s > _LONGEST_S:
            break
        gpus = scenario.strategy.training_ranks * factor
        if kind == "bandwidth":
            for name, link in links.items():
                changed = scenario.copied(cluster=QUANTITIES[name].slowed(scenario.cluster, 1 / factor))
                link.append({"factor": factor, "rate": _CurvePoint(changed, interval=False).rate})
        elif gpus.is_integer():
            try:
                changed = with_gpus(scenario, int(gpus))
                points.append({"gpus": int(gpus), **_CurvePoint(changed, with_interval).plain(), "fits": memory(changed).fits})
            except ScaleproofError as error:
                refused.append({"gpus": int(gpus), "reason": _NEAREST.sub("", str(error))})
    return {
        "unit": throughput_unit(scenario),
        "scaling": {"now": scenario.strategy.training_ranks, "points": sorted(points, key=lambda one: one["gpus"]),
                    "refused": sorted(refused, key=lambda one: one["gpus"])},
        "links": [_link(scenario, name, found) for name, found in links.items()],
    }  # fmt: skip


def quick(program: Program, steps: int, variation: Variation = NONE) -> Timeline:
    """The timeline of a program in which only messages that start together share links; of a few steps if asynchronous."""
    if program.is_static:
        return replay.simulate_concurrent(program, steps, variation)
    return events.simulate(program, min(steps, _FEW_STEPS + 1), variation)


class _CurvePoint:
    """A predicted throughput, in tokens or samples per second, and its 90 % interval if that is wanted."""

    def __init__(self, scenario: Scenario, interval: bool) -> None:
        run = timed(scenario, interval, simulate=quick)
        size = run.samples * (scenario.tokens_per_sample or 1)
        self.rate = size / run.step_time_s
        self._edges = [size / edge_s for edge_s in reversed(run.prediction_interval_s or ())]

    def plain(self) -> dict[str, float]:
        """The throughput and the ends of its interval by name."""
        return {"rate": self.rate} | dict(zip(("low", "high"), self._edges, strict=False))


def _uses(scenario: Scenario, link: str) -> bool:
    """Whether the ranks of a scenario communicate over a link."""
    strategy, cluster = scenario.strategy, scenario.cluster
    if QUANTITIES[link].value(cluster) is None:
        return False
    if link == "network.bandwidth":
        return strategy.nodes_needed(cluster) > 1
    return strategy.training_ranks > 1 and cluster.node.devices > 1


def _link(scenario: Scenario, name: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    """The curve of a link, with the bandwidth of each point."""
    quantity = QUANTITIES[name]
    value_Bps = quantity.value(scenario.cluster) or 0.0
    form = format_Bps if name == "network.bandwidth" else _format_GBps
    shown = [one | {"bandwidth": form(value_Bps * one["factor"])} for one in sorted(points, key=lambda one: one["factor"])]
    return {"name": _LINKS[name], "field": f"cluster.{name}", "points": shown}


def _format_GBps(rate_Bps: float) -> str:
    """A bandwidth as links inside nodes are sold: '450 GB/s'."""
    return f"{rate_Bps / 1e9:.4g} GB/s"
