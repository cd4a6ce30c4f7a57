"""Model error of predictions: how far published runs were from what was predicted for them, by the kind of prediction.

`scenarios/uncertainty/errors.yaml` has one fit per family of predictions, written by `benchmarks/intervals.py`. A fit gives
the ends of the 90 % interval of the natural logarithm of measured over predicted time that the uncertain quantities of a
cluster do not explain. Clusters that `calibrate` measured are a family of their own: they keep the stated prior of the quantity
`model`, and so does a cluster file that states an interval for it. No described cluster is known better than those of published
runs, also if it computes on CPUs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.device.device import ELEMENT_BYTES
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES
from scaleproof.simulator.common import catalog, yaml_file
from scaleproof.simulator.model import RecordedModel
from scaleproof.simulator.scenario.framework_choice import software_ends
from scaleproof.simulator.scenario.schema import Scenario

Amounts = NDArray[np.float64]
# Kinds of predictions with errors of their own: step times from a model of the device; step times from a measured step of one
# device; collectives; steps of pipelines whose passes were measured; bytes of memory.
Family = Literal["training", "scaling", "collectives", "schedules", "memory", "vision"]

FILE: Final = catalog.ROOT / "uncertainty" / "errors.yaml"
# The group of a fit that contains all others.
ALL: Final = "all"
# The quantity that slows the step as a whole instead of tasks: the simulator's model error.
MODEL: Final = "model"
# The quantity that slows computation where software is not named: that of the frameworks that it may be like.
SOFTWARE: Final = "software"
# The quantity of a cluster whose slowdown has the effect of other software, which computes slower.
SLOWED_AS: Final[Mapping[str, str]] = {SOFTWARE: "device"}
# Messages of at least this size are large: their time is mostly bandwidth.
LARGE_BYTES: Final = 2**20
# Covariate of the share of the step time that does not depend on the speed of the device: log(1 + share / small share), so that
# errors grow by a power of shares that are not small.
EXPOSED: Final = "log_exposed"
_SMALL_SHARE: Final = 0.05
_NARROW_BYTES: Final = 2
# Covariate of the number of nodes.
NODES: Final = "log2_nodes"
# Covariates of recorded models: the number of ranks of a node, which share the host that loads and prepares samples; and
# whether products have at most 16 bits, so that they take less of the time and what is not modelled more.
NODE_RANKS: Final = "log2_node_ranks"
NARROW: Final = "narrow"
# Share of what runs teach about the size of errors that holds on twice as many nodes as they had: about the share of the
# variance of errors that runs of other sizes with the same degrees have in common (errors.yaml, `pairs`).
_KEPT_PER_DOUBLING: Final = 0.5


# Probability with which what is proposed to users fits into memory. A run that does not costs more than a slower step.
FITS: Final = 0.9


@dataclass(frozen=True)
class Slope:
    """Change of the logarithm of the deviation per unit of a covariate, which is limited to the range that was fitted."""

    slope: float
    least: float
    most: float


@dataclass(frozen=True)
class Fit:
    """The errors of one family of predictions.

    deviation: scale of the errors where all covariates are zero. ends: by group, the lower and upper end of the 90 % interval
    in multiples of the scale, both above zero.
    """

    deviation: float
    ends: Mapping[str, tuple[float, float]]
    covariates: Mapping[str, Slope] = field(default_factory=dict)

    def log_ends(self, group: str, covariates: Mapping[str, float | Amounts]) -> tuple[Amounts, Amounts]:
        """Ends of the 90 % interval of the logarithm of measured over predicted value. group: the parent's ends if it is too
        small to have its own."""
        below, above = self.ends.get(group) or self.ends[ALL]
        scale = self.scale(covariates)
        return -below * scale, above * scale

    def scale(self, covariates: Mapping[str, float | Amounts]) -> Amounts:
        """Scale of the errors at these covariates."""
        exponents = (
            one.slope * np.clip(covariates.get(name, one.least), one.least, one.most) for name, one in self.covariates.items()
        )
        return np.asarray(self.deviation * np.exp(sum(exponents, np.zeros(()))))


@dataclass(frozen=True)
class PairFit:
    """Errors of two predictions for one system.

    shared: share of the variance of their model errors that both have in common, by how similar they are (`similarity`).
    reversed_share: share of pairs whose order is reversed however large the predicted difference is.
    """

    shared: Mapping[str, float] = field(default_factory=dict)
    reversed_share: float = 0.0


@dataclass(frozen=True)
class ErrorModel:
    """Fits by family, and of pairs. without: the same fitted without each source."""

    families: Mapping[str, Fit] = field(default_factory=dict)
    pairs: PairFit = PairFit()
    without: Mapping[str, ErrorModel] = field(default_factory=dict)

    def left_out(self, source: str) -> ErrorModel:
        """The model that was fitted without a source; this one for a source that it was not fitted to."""
        return self.without.get(source, self)


# The interval from the priors of the cluster alone.
RAW: Final = ErrorModel()


@functools.cache
def shipped() -> ErrorModel:
    """The error model that was fitted to all published measurements."""
    return read(FILE)


def read(path: Path) -> ErrorModel:
    """The error model in a file that `benchmarks/intervals.py` wrote."""
    data: Mapping[str, Any] = yaml_file.shipped(path)
    return _parsed(data)


def _parsed(data: Mapping[str, Any]) -> ErrorModel:
    whole = _part(data, ErrorModel())
    return replace(whole, without={source: _part(part, whole) for source, part in data.get("without", {}).items()})


def _part(data: Mapping[str, Any], default: ErrorModel) -> ErrorModel:
    """The fits in some data, and those of `default` that it lacks."""
    fits = {name: _fit(one) for name, one in data.get("families", {}).items()}
    pairs = data.get("pairs")
    known = default.pairs if pairs is None else PairFit(pairs["shared"], pairs["reversed"])
    return ErrorModel({**default.families, **fits}, known)


def _fit(data: Mapping[str, Any]) -> Fit:
    ends = {name: (float(one["below"]), float(one["above"])) for name, one in data["groups"].items()}
    covariates = {name: Slope(**one) for name, one in data.get("covariates", {}).items()}
    return Fit(float(data["deviation"]), ends, covariates)


@dataclass(frozen=True)
class ErrorCase:
    """A prediction as the error model sees it: its family, group and covariates. family: None for calibrated clusters.

    software: logarithms of the ends of the 90 % interval of unknown software's compute time over the prediction's; None if
    the software is named.
    """

    family: Family | None
    group: str = ALL
    covariates: Mapping[str, float] = field(default_factory=dict)
    software: tuple[float, float] | None = None

    def log_ends(self, cluster: Cluster, errors: ErrorModel, exposed: float | Amounts = 1.0) -> tuple[Amounts, Amounts]:
        """Ends of the 90 % interval of the logarithm of the model error; those of the prior for families without a fit.

        exposed: share of the time that does not depend on the speed of the device.
        """
        fit = None if self.family is None else errors.families.get(self.family)
        if fit is not None:
            low, high = fit.log_ends(self.group, {EXPOSED: log_exposed(exposed), **self.covariates})
        else:
            low, high = (math.log(end) + np.zeros(()) for end in QUANTITIES[MODEL].slowdown_interval(cluster))
        factor = learned_factor(cluster, 2 ** self.covariates.get(NODES, 0.0))
        return factor * low, factor * high

    def relative_scale(self, errors: ErrorModel, exposed: float) -> float:
        """Scale of the errors over that where all covariates are zero; 1 for families without a fit."""
        fit = None if self.family is None else errors.families.get(self.family)
        return 1.0 if fit is None else float(fit.scale({EXPOSED: log_exposed(exposed), **self.covariates})) / fit.deviation


def learned_factor(cluster: Cluster, nodes: float) -> float:
    """Factor on the errors of published predictions for a job on some nodes of a cluster.

    Runs whose errors were small teach little about those of larger jobs: beyond the nodes of the runs, less and less of what
    the factor is below 1 counts. Larger errors than those of published runs are expected at any size.
    """
    factor, known = cluster.model_error, cluster.model_error_nodes
    if factor >= 1 or known is None or nodes <= known:
        return factor
    kept: float = _KEPT_PER_DOUBLING ** math.log2(nodes / known)
    return math.sqrt(1 - kept * (1 - factor**2))


def log_exposed(share: float | Amounts) -> Amounts:
    """The covariate of a share of the step time that does not depend on the speed of the device."""
    return np.log1p(np.clip(share, 0.0, 1.0) / _SMALL_SHARE)


def case_of_scenario(scenario: Scenario) -> ErrorCase:
    """The family of a step time, its group (whether the framework is named), and the number of nodes as a covariate. Recorded
    models, those of vision and sound, have a family of their own."""
    covariates = {NODES: math.log2(max(1, scenario.strategy.nodes_needed(scenario.cluster)))}
    if is_calibrated(scenario.cluster) or scenario.compute == "paced":
        return ErrorCase(None, covariates=covariates)
    if scenario.training.measured_step is not None:
        return ErrorCase("scaling", covariates=covariates)
    if isinstance(scenario.model, RecordedModel):
        narrow = ELEMENT_BYTES[scenario.training.precision] <= _NARROW_BYTES
        on_node = scenario.strategy.training_ranks / 2 ** covariates[NODES]
        covariates |= {NODE_RANKS: math.log2(max(1.0, on_node)), NARROW: float(narrow)}
        return ErrorCase("vision", covariates=covariates, software=software_ends(scenario))
    group = "default framework" if scenario.framework_is_default else "named framework"
    return ErrorCase("training", group, covariates, software_ends(scenario))


def case_of_collective(size_bytes: float, cluster: Cluster) -> ErrorCase:
    """The family of a collective: small or large messages."""
    if is_calibrated(cluster):
        return ErrorCase(None)
    is_small = size_bytes < LARGE_BYTES
    return ErrorCase("collectives", "below 1 MiB" if is_small else "from 1 MiB", {"small": float(is_small)})


def case_of_memory(scenario: Scenario) -> ErrorCase:
    """The family of the memory of a rank, with a covariate for frameworks that are not named; None on clusters without GPUs,
    whose memory was not published."""
    covariates = {"default_framework": float(scenario.framework_is_default)}
    return ErrorCase(None if scenario.cluster.computes_on_processors else "memory", covariates=covariates)


class LogNormalError(NamedTuple):
    """A log-normal factor of true over predicted value. low, high: natural logarithms of the ends of its 90 % interval."""

    low: float
    high: float

    def interval(self, predicted: float) -> tuple[float, float]:
        """The 90 % interval of a predicted value."""
        return predicted * math.exp(self.low), predicted * math.exp(self.high)

    def below(self, factor: float) -> float:
        """The probability that the true value is at most this multiple of the predicted one."""
        return 0.0 if factor <= 0 else self._distribution.cdf(math.log(factor))

    def factor_below(self, probability: float) -> float:
        """The multiple of the predicted value that the true one does not exceed with this probability, above 0 and below 1."""
        return math.exp(self._distribution.inv_cdf(probability))

    @property
    def _distribution(self) -> NormalDist:
        return NormalDist((self.low + self.high) / 2, (self.high - self.low) / (2 * DEVIATIONS))


def memory_error(scenario: Scenario, errors: ErrorModel | None = None) -> LogNormalError | None:
    """The error of the bytes of a rank; None where none is known. errors: the shipped error model if None."""
    case = case_of_memory(scenario)
    fit = None if case.family is None else (errors or shipped()).families.get(case.family)
    return None if fit is None else LogNormalError(*map(float, fit.log_ends(case.group, case.covariates)))


def most_fitting_bytes(capacity_bytes: float, error: LogNormalError | None, probability: float = FITS) -> float:
    """Predicted bytes of a rank up to which it fits a capacity with a probability, but never more than the capacity."""
    return capacity_bytes if error is None else min(capacity_bytes, capacity_bytes / error.factor_below(probability))


def is_calibrated(cluster: Cluster) -> bool:
    """Whether the cluster has its own model error: it was measured by `calibrate`, or states an interval."""
    device = cluster.device
    measured = cluster.collectives.measured or device.measured_layers or device.measured_optimizers
    return bool(measured) or MODEL in cluster.uncertainty


def similarity(a: Scenario, b: Scenario) -> str:
    """How similar two scenarios are, as the names of `PairFit.shared`."""
    if a.model != b.model:
        return "other model"
    return "other degrees" if degrees(a) != degrees(b) else "same degrees"


def degrees(scenario: Scenario) -> tuple[str | int, ...]:
    """Kind of strategy and degrees of model parallelism, by which pairs are classified."""
    plan, kind = scenario.strategy.plan, scenario.strategy.kind
    is_served = kind == "parameter_server" or plan.servers > 0
    return is_served, plan.tensor, plan.stages, plan.context, plan.expert
