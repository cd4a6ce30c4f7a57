"""Predictions of how much step times vary within published MLPerf runs: the ratio of their 95th percentile and their median.

A row's values are not single steps. MLPerf's logs have one throughput per evaluation, so that each value is a mean over the
steps between two evaluations; their number follows from the benchmark's rules and the global batch. In such a mean, what is
drawn anew in each step averages out, and drift remains. The table's percentiles are order statistics of a few values (the 95th
percentile of 5 values is the fourth); their expected difference is compared.

Rows name a benchmark and no layout, so that the shares of communication are round assumptions, the same for all rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Final, NamedTuple

from scaleproof.proof.published.prediction import Options, Prediction
from scaleproof.simulator.cluster.network.variability import of_fabric, slowest_path_quantiles
from scaleproof.simulator.uncertainty.step_distribution import (
    DRIFT,
    JITTER,
    NETWORK,
    NODE_LINKS,
    PROBABILITIES,
    Source,
    compute_quantiles,
)

Row = Mapping[str, str]

# Samples between two evaluations in MLPerf's training rules (mlcommons/training_policies, training_rules.adoc, and the
# reference implementations' READMEs; recalled).
_EVALUATED_EVERY: Final = {
    "llama2_70b_lora": 384, "stable_diffusion": 512_000, "flux1": 262_144, "llama31_405b": 46_080, "llama31_8b": 12_288,
    "gpt3": 24_576, "retinanet": 1_170_301, "dlrm_dcnv2": 209_759_884,
}  # fmt: skip
# Steps between evaluations of other benchmarks: assumed.
_STEPS: Final = 100.0
# GPUs of one NVLink domain, by a word of the accelerator's name; others have one per node.
_NVLINK_DOMAIN: Final = {"GB200": 72, "GB300": 72}
# Shares of a step that are exposed communication: assumed.
SHARES: Final = {NETWORK: 0.2, NODE_LINKS: 0.1}
# Rows that the constants were fitted on: NVIDIA's runs of the first round.
FITTED: Final = tuple(
    f"mlperf_v5-0{number}"
    for number in (177, 178, 179, 180, 185, 186, 191, 192, 195, 196, 207, 208, 209, 210, 217, 218, 219, 220)
)  # fmt: skip
CALIBRATION: Final = (f"drift of GPUs and variability of InfiniBand: {', '.join(FITTED)}",)


class Variation(NamedTuple):
    """Standard deviations of the logarithm of step times by source, for a step. drift: the part that lasts for many steps."""

    drift: float
    in_each_step: Mapping[str, float]

    def of_means(self, steps: float) -> float:
        """Standard deviation of the mean over a number of steps."""
        return math.sqrt(self.drift**2 + sum(one**2 for one in self.in_each_step.values()) / steps)


def predict(row: Row, options: Options = Options()) -> Prediction:  # noqa: B008 (it never changes)
    """The predicted ratio of the 95th percentile and the median, whose error is a difference in points."""
    benchmark = row["benchmark"]
    name = f"mlperf {benchmark}"
    if row["id"] in FITTED:
        return Prediction(name, skipped="constants were fitted on it", of="spread")
    try:
        measured, predicted, nodes = float(row["p95"]) / float(row["p50"]), 1 + spread(row), int(row["nodes"])
    except (ValueError, ZeroDivisionError):
        return Prediction(name, skipped="no number of steps, ranks or samples, or no times", of="spread")
    inputs = tuple(row[column] for column in ("benchmark", "accelerators", "accelerator", "network", "global_batch"))
    assumed = ("communication", *(() if benchmark in _EVALUATED_EVERY else ("evaluation interval",)))
    return Prediction(name, predicted, measured, inputs=inputs, of="spread", nodes=nodes, assumed=assumed)


def spread(row: Row, changed: Mapping[str, float] | None = None) -> float:
    """The predicted relative difference of the 95th percentile and the median of a row.

    changed: factors on the standard deviations of sources, such as 0 for one that is left out.
    Raises ValueError for a row without numbers.
    """
    values, samples = int(row["steps"]), _EVALUATED_EVERY.get(row["benchmark"])
    steps = _STEPS if samples is None else max(1.0, samples / float(row["global_batch"]))
    drift, in_each_step = variation(int(row["accelerators"]), _domains(row), fabric(row))
    factors = changed or {}
    scaled = Variation(
        drift * factors.get(DRIFT, 1.0), {name: one * factors.get(name, 1.0) for name, one in in_each_step.items()}
    )
    return _expected(values) * scaled.of_means(steps)


@functools.cache
def variation(ranks: int, domains: int, of: str) -> Variation:
    """The variation of a step of GPUs in a number of NVLink domains. of: the fabric between them."""
    compute = compute_quantiles(False, ranks)
    per_domain = math.ceil(ranks / domains)
    links = {NODE_LINKS: slowest_path_quantiles(of_fabric("nvlink"), per_domain, PROBABILITIES)}
    links |= {NETWORK: slowest_path_quantiles(of_fabric(of), domains, PROBABILITIES)} if domains > 1 else {}
    communicated = sum(SHARES[name] for name in links)
    found = [Source(JITTER, compute[JITTER], 1 - communicated)]
    found += [Source(name, quantiles, SHARES[name]) for name, quantiles in links.items()]
    return Variation(float(compute[DRIFT].std()), {source.name: float(source.added.std()) for source in found})


def fabric(row: Row) -> str:
    """Kind of fabric between the nodes of a row: RoCE where the row says so, else InfiniBand."""
    return "roce" if "roce" in row["network"].lower() else "infiniband"


def _domains(row: Row) -> int:
    """Number of NVLink domains that the row's GPUs are in."""
    size = next((size for word, size in _NVLINK_DOMAIN.items() if f"({word})" in row["accelerator"]), None)
    return int(row["nodes"]) if size is None else math.ceil(int(row["accelerators"]) / size)


@functools.cache
def _expected(values: int) -> float:
    """Expected difference of the 95th percentile and the median of some values, in standard deviations.

    Percentiles are order statistics, those at or below the share p of the way from the smallest to the largest; their means are
    Blom's approximation.
    """

    def mean_of(share: float) -> float:
        place = 1 + math.floor(share * (values - 1))
        return NormalDist().inv_cdf((place - 0.375) / (values + 0.25))

    return mean_of(0.95) - mean_of(0.5)
