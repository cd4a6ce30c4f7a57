"""The lab that is proved: calibrated from probes alone at one rate of its links, described at any other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval
from scaleproof.simulator.common import catalog
from scaleproof.simulator.model import Gpt, Mlp
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.validator.calibration.calibrate import calibrate
from scaleproof.validator.calibration.cluster_file.describing import description
from scaleproof.validator.calibration.cluster_file.writing import write
from scaleproof.validator.calibration.plan import ProbePlan
from scaleproof.validator.experiments.proving.cases import Compute

# What is described, and how many of its hosts are probed; cases have up to twice as many.
_DESCRIPTION: Final = "netlab-200mbit"
_PROBED_HOSTS: Final = 4
# Whose layers are timed. Cases train models of other sizes.
_MODELS: Final = ("gpt-mini", "mlp-mini")
_FILE: Final = "calibrated.yaml"
# Paced ranks take the time that they are told to, and wake up a little late.
_PACED: Final = Interval(low="99 %", high="103 %")
_BANDWIDTH: Final = "network.bandwidth"


@dataclass(frozen=True)
class CalibratedLab:
    """nominal: as it is described. measured: as probes found it."""

    nominal: Cluster
    measured: Cluster

    def at(self, rate_Bps: float, compute: Compute) -> Cluster:
        """With links of a nominal rate: what carries payload at a share of it does so at any; latencies are the software's.

        Paced ranks take the time that the nominal device takes, so that their clusters have that one.
        """
        assert self.nominal.network is not None
        assert self.measured.network is not None
        faster = rate_Bps / self.nominal.network.bandwidth_Bps
        network = self.measured.network
        # cases have labs of their own, with links that are all alike
        own = {"duplex": self.nominal.network.duplex, "unlike": self.nominal.network.unlike}
        network = network.model_copy(update={"bandwidth_Bps": network.bandwidth_Bps * faster, **own})
        measured = tuple(
            one.model_copy(update={"bandwidth_Bps": one.bandwidth_Bps * faster} if one.nodes > 1 else {})
            for one in self.measured.collectives.measured
        )
        collectives = self.measured.collectives.model_copy(update={"measured": measured, "library": "gloo"})
        changes: dict[str, Any] = {"network": network, "collectives": collectives, "nodes": self.nominal.nodes}
        found = self._uncertainty(faster)
        if compute == "real":
            return self.measured.model_copy(update=changes | {"uncertainty": found})
        found.pop("optimizer", None)
        return self.nominal.model_copy(update=changes | {"uncertainty": found | {"device": _PACED}})

    def _uncertainty(self, faster: float) -> dict[str, Interval]:
        """What is measured in bytes per second is as uncertain at any rate."""
        found = dict(self.measured.uncertainty)
        if (given := found.get(_BANDWIDTH)) is not None:
            quantity = QUANTITIES[_BANDWIDTH]
            low, high = (quantity.format(quantity.parse(edge) * faster) for edge in (given.low, given.high))
            found[_BANDWIDTH] = given.model_copy(update={"low": low, "high": high})
        return found


def calibrated(folder: Path | None, known: bool, budget_s: float, tell: Callable[[str], None]) -> CalibratedLab:
    """Probes a lab for `budget_s` seconds. folder: where its cluster file is kept. known: whether to take that which is there.

    Raises RunError where this machine cannot build a lab.
    """
    nominal = load_cluster(catalog.find_part("cluster", _DESCRIPTION, Path()))
    path = folder / _FILE if folder else None
    if path is not None and known and path.exists():
        return CalibratedLab(nominal, load_cluster(path))
    models = [load_model(catalog.find_part("model", name, Path())) for name in _MODELS]
    plan = ProbePlan([model for model in models if isinstance(model, Gpt | Mlp)], budget_s=budget_s)
    found = calibrate(plan, "netlab", description(_DESCRIPTION), _PROBED_HOSTS, progress=nullcontext(tell))
    assert found is not None, "a lab's ranks are started here"
    if path is not None:
        write(found.cluster, path, found.points)
    return CalibratedLab(nominal, Cluster.model_validate(found.cluster))
