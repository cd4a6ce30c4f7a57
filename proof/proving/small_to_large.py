"""Random cases of the proof of `fit`: a few runs on two to four hosts, and runs on more hosts that are predicted from them.

The lab is described as a cluster is before anything of it was measured: links of their nominal rate, an assumed device, and
hosts that cost nothing. As behind data sheets, the truth is slower, by factors that predictions and fits are not given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Final, NamedTuple

from scaleproof.proof.proving.cases import Draw, ProvingCase
from scaleproof.proof.proving.models import Compute
from scaleproof.proof.proving.small_catalogue import PLAIN
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import slowed
from scaleproof.simulator.scenario.read import load_cluster

# Numbers of hosts of the runs that are given.
GIVEN_HOSTS: Final = (2, 3, 4)
_CLUSTER: Final = "netlab-200mbit"
# Ranges of the share of its nominal rate that a link carries, and of the slowdown of emulated devices.
_RATES: Final = (0.6, 0.95)
_SLOWDOWNS: Final = (1.05, 1.6)


def nominal(rate_Bps: float, compute: Compute) -> Cluster:
    """The lab with links of a rate as its cluster file describes it. Ranks that compute share the cores of this machine."""
    cluster = load_cluster(_CLUSTER)
    assert cluster.network is not None
    cluster = cluster.model_copy(
        update={"name": "netlab", "network": cluster.network.model_copy(update={"bandwidth_Bps": rate_Bps})}
    )
    if compute == "paced":
        return cluster
    cores = float(os.cpu_count() or 1)
    return cluster.model_copy(update={"shared_cores": cores, "node": cluster.node.model_copy(update={"cores": cores})})


class Truth(NamedTuple):
    """What the description of a lab leaves out. rate: share of their nominal rate that links carry. slowdown: of emulated
    devices; ranks that compute are as fast as they are."""

    rate: float
    slowdown: float

    def applied(self, case: ProvingCase) -> ProvingCase:
        """The case that is measured."""
        cluster = slowed(case.scenario.cluster, {"device": self.slowdown})
        scenario = case.scenario.model_copy(update={"cluster": cluster})
        return replace(case, scenario=scenario, rate_Bps=case.rate_Bps * self.rate)


@dataclass(frozen=True)
class SmallToLarge:
    """Parameters of a draw. hosts: of the predicted runs. groups: number of groups of four that are predicted."""

    seed: int
    compute: Compute
    hosts: int
    groups: int
    longest_step_s: float

    @property
    def truth(self) -> Truth:
        """How far the lab is from its description."""
        random = self._random("truth")
        return Truth(random.uniform(*_RATES), random.uniform(*_SLOWDOWNS))

    def given(self) -> list[ProvingCase]:
        """One run on each of a few numbers of hosts, of different strategies. Raises InputError if none is suitable."""
        random, cases = self._random("choice"), list[ProvingCase]()
        for hosts in GIVEN_HOSTS:
            known = {case.family for case in cases}
            drawn = [case for case in self._drawn("small", hosts, 1, max(GIVEN_HOSTS)) if case.family not in known]
            cases.append(random.choice(drawn))
        return cases

    def unseen(self) -> Iterator[ProvingCase]:
        """The runs that are predicted, in groups that differ only in their strategy. Raises InputError if none is suitable."""
        return self._drawn("large", self.hosts, self.groups, self.hosts)

    def _random(self, part: str) -> Random:
        return Random(f"{self.seed} {self.compute} {part}")  # noqa: S311 - a draw that can be repeated

    def _drawn(self, size: str, hosts: int, groups: int, most_hosts: int) -> Iterator[ProvingCase]:
        """Groups of cases on a number of hosts, servers excluded."""
        compute, prefix = self.compute, f"{size}-{hosts}-"
        draw = Draw(
            f"{self.seed} {prefix}",
            {compute: groups},
            most_hosts,
            self.longest_step_s,
            nominal,
            {compute: (hosts,)},
            prefix,
            PLAIN,
        )
        return draw.cases()
