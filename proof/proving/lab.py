"""The lab of the proof: calibrated from probes alone at one link rate, and described at any other."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scaleproof.proof.proving.models import Compute
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.quantities import QUANTITIES, Interval
from scaleproof.simulator.scenario.read import load_cluster, load_model
from scaleproof.validator.calibration.calibrate import calibrate
from scaleproof.validator.calibration.cluster_file.files import description, write
from scaleproof.validator.calibration.plan import ProbePlan

# Cluster that describes the lab, and the number of its hosts that are probed; cases have up to four times as many. On slower
# links a short calibration times too few large messages.
_DESCRIPTION: Final = "netlab-200mbit"
_PROBED_HOSTS: Final = 4
# Models whose layers are timed. Cases train models of other sizes.
_MODELS: Final = ("gpt-mini", "mlp-mini")
_FILE: Final = "calibrated.yaml"
# Ranks with emulated compute take the given time, and wake up a little late.
_PACED: Final = Interval(low="99 %", high="103 %")
_BANDWIDTH: Final = "network.bandwidth"


@dataclass(frozen=True)
class CalibratedLab:
    """The described cluster and the one fitted to probes."""

    nominal: Cluster
    measured: Cluster

    def at(self, rate_Bps: float, compute: Compute) -> Cluster:
        """The cluster with links of another nominal rate: the ratio of payload to nominal rate stays the same, as do latencies,
        which are those of the software.

        Ranks with emulated compute take the time of the nominal device, so their clusters have that device.
        """
        assert self.nominal.network is not None
        assert self.measured.network is not None
        faster = rate_Bps / self.nominal.network.bandwidth_Bps
        network = self.measured.network
        # cases have labs of their own, whose links are all equal
        own = {"duplex": self.nominal.network.duplex, "exceptions": self.nominal.network.exceptions}
        network = network.model_copy(update={"bandwidth_Bps": network.bandwidth_Bps * faster, **own})
        measured = tuple(
            collective.model_copy(update={"bandwidth_Bps": collective.bandwidth_Bps * faster} if collective.nodes > 1 else {})
            for collective in self.measured.collectives.measured
        )
        collectives = self.measured.collectives.model_copy(update={"measured": measured, "library": "gloo"})
        changes: dict[str, Any] = {"network": network, "collectives": collectives, "nodes": self.nominal.nodes}
        uncertainty = self._uncertainty(faster)
        if compute == "real":
            return self.measured.model_copy(update=changes | {"uncertainty": uncertainty})
        uncertainty.pop("optimizer", None)
        return self.nominal.model_copy(update=changes | {"uncertainty": uncertainty | {"device": _PACED}})

    def _uncertainty(self, faster: float) -> dict[str, Interval]:
        """Intervals with the bandwidth's scaled: its relative uncertainty is the same at any rate."""
        intervals = dict(self.measured.uncertainty)
        if (given := intervals.get(_BANDWIDTH)) is not None:
            quantity = QUANTITIES[_BANDWIDTH]
            low, high = (quantity.format(quantity.parse(edge) * faster) for edge in (given.low, given.high))
            intervals[_BANDWIDTH] = given.model_copy(update={"low": low, "high": high})
        return intervals


def calibrated(folder: Path | None, known: bool, budget_s: float, report: Callable[[str], None]) -> CalibratedLab:
    """Probes a lab for `budget_s` seconds. folder: for its cluster file. known: whether to use a file that is already there.

    Raises RunError if this machine cannot build a lab.
    """
    nominal = load_cluster(_DESCRIPTION)
    path = folder / _FILE if folder else None
    if path is not None and known and path.exists():
        return CalibratedLab(nominal, load_cluster(path))
    plan = ProbePlan([load_model(name) for name in _MODELS], budget_s=budget_s)
    result = calibrate(plan, "netlab", description(_DESCRIPTION), _PROBED_HOSTS, progress=nullcontext(report))
    assert result is not None, "a lab's ranks are started here"
    if path is not None:
        write(result.cluster, path, result.points)
    return CalibratedLab(nominal, Cluster.model_validate(result.cluster))
