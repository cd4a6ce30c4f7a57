"""How much a user's own measurements improve what they did not measure: from all_reduce on two group sizes, the other
operations on a third.

published: nodes of eight GPUs of scenarios/published/collectives.csv, with all_reduce over 2 and 4 ranks as the user's
measurements. Predictions before are by constants fitted without the system. synthetic: clusters whose true factors are drawn
from the prior, with all_reduce on 2 and 4 nodes measured, and with an error of the model and of the measurement. Errors are
absolute relative errors of the time. Needs SciPy.

Run: python benchmarks/collective_posterior.py [published] [synthetic]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.proof.collectives.fit import fit
from scaleproof.proof.collectives.observations import observations, system_of
from scaleproof.simulator.cluster import Cluster
from scaleproof.simulator.cluster.collectives.cost import modelled_costing
from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.cluster.collectives.nccl.constants import priors, replaced
from scaleproof.simulator.cluster.collectives.settings import Adjust
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.published.tables import find_table, read_table
from scaleproof.simulator.scenario.read import load_cluster
from scaleproof.validator.calibration.fit.collective_posterior import (
    CollectivePosterior,
    MeasuredTime,
    covariance_root,
    group_of,
    prior_deviations,
    updated,
)
from scaleproof.validator.collectives.rows import Row, case_of

_PARTS: Final = ("published", "synthetic")
_NODES: Final = ("aic a100_sxm node", "aic h100_sxm node", "aic b200_sxm node")
_CLUSTERS: Final = ("dgx-h100", "aws-p5", "gcp-a3-mega", "selene-a100")
_OPS: Final[tuple[Op, ...]] = ("all_reduce", "all_gather", "reduce_scatter", "alltoall")
_SIZES: Final = tuple(2.0**power for power in range(10, 31, 2))
_DRAWS: Final = 20


def main() -> None:
    """Prints the parts that are given as arguments, or all."""
    parts = sys.argv[1:] or _PARTS
    if "published" in parts:
        published()
    if "synthetic" in parts:
        synthetic()


def published() -> None:
    """Prints errors on nodes of the published table before and after all_reduce over 2 and 4 of their ranks."""
    _, rows = read_table(find_table(Path("collectives.csv")))
    known = observations(rows)
    whole = fit(known, priors())
    print(f"{'published':28}" + "".join(f"{title:>15}{'mean':>8}" for title in ("median before", "after")))
    for name in _NODES:
        mine = [row for row in rows if row["instance_or_system"] == name]
        tables = fit(known, priors(), system_of(mine[0]), "system", whole).tables
        with replaced(tables):
            cluster, times = _measured(mine)
            given = [one for one in times if one.op == "all_reduce" and one.ranks < cluster.node.devices]
            learned = updated(cluster, given)
            assert learned is not None
            for op in _OPS:
                others = [one for one in times if one.op == op and one.ranks == cluster.node.devices]
                _print(f"{name.split()[1]} {op}", _errors(cluster, others), _errors(_with(cluster, learned), others))


def _measured(rows: Sequence[Row]) -> tuple[Cluster, list[MeasuredTime]]:
    """The cluster with the most ranks of the rows, and their times."""
    cases = []
    for row in rows:
        try:
            cases.append(case_of(row))
        except ScaleproofError:
            continue
    largest = max(cases, key=lambda case: case.ranks).cluster
    times = [MeasuredTime(case.op, case.ranks, 1, float(case.size_bytes), case.measured_s) for case in cases if case.size_bytes]
    return largest, times


def synthetic() -> None:
    """Prints errors on clusters with drawn factors before and after all_reduce on 2 and 4 nodes, and how often intervals of
    the factors contain the truth."""
    print(f"\n{'synthetic':28}" + "".join(f"{title:>15}{'mean':>8}" for title in ("median before", "after", "true factors")))
    inside: list[bool] = []
    for name in _CLUSTERS:
        cluster = load_cluster(name)
        cluster = cluster.model_copy(update={"nodes": max(8, cluster.nodes)})
        found: dict[Op, list[tuple[list[float], ...]]] = {op: [] for op in _OPS}
        for truth in _truths(cluster):
            random = np.random.default_rng(len(inside))
            given = [one for nodes in (2, 4) for one in _times(truth, "all_reduce", nodes, random)]
            learned = updated(cluster, given)
            assert learned is not None
            true_factors = truth.collectives.adjust.model_dump()
            inside += [factor.low <= true_factors[factor.name] <= factor.high for factor in learned.factors]
            for op in _OPS:
                others = _times(truth, op, 8, random)
                found[op].append(tuple(_errors(one, others) for one in (cluster, _with(cluster, learned), truth)))
        for op, triples in found.items():
            _print(f"{name} {op}", *([error for errors in side for error in errors] for side in zip(*triples, strict=True)))
    print(f"intervals of factors that contain the truth: {np.mean(inside):.0%} of {len(inside)}")


def _truths(cluster: Cluster) -> Iterator[Cluster]:
    random = np.random.default_rng(3)
    deviations = prior_deviations(cluster)
    for _ in range(_DRAWS):
        yield _adjusted(cluster, Adjust(**{name: float(np.exp(sd * random.normal())) for name, sd in deviations.items()}))


def _times(cluster: Cluster, op: Op, nodes: int, random: np.random.Generator) -> list[MeasuredTime]:
    """Times of a cluster with an error of the model, which neighbouring sizes share, and of the measurement."""
    ranks = nodes * cluster.node.devices
    times = [MeasuredTime(op, ranks, nodes, size, 1.0) for size in _SIZES]
    factors = np.exp(covariance_root(times) @ random.normal(size=len(times)))
    seconds = _predicted(cluster, times) * factors
    return [one._replace(seconds=float(time_s)) for one, time_s in zip(times, seconds, strict=True)]


def _predicted(cluster: Cluster, times: Sequence[MeasuredTime]) -> np.ndarray:
    group = group_of(times[0], cluster)
    assert group is not None
    cost = modelled_costing(times[0].op, group, cluster)
    return np.array([cost(one.size_bytes).seconds for one in times])


def _errors(cluster: Cluster, times: Sequence[MeasuredTime]) -> list[float]:
    measured = np.array([one.seconds for one in times])
    return np.abs(_predicted(cluster, times) / measured - 1).tolist()  # type: ignore[no-any-return]


def _with(cluster: Cluster, learned: CollectivePosterior) -> Cluster:
    return _adjusted(cluster, learned.adjust)


def _adjusted(cluster: Cluster, adjust: Adjust) -> Cluster:
    return cluster.model_copy(update={"collectives": cluster.collectives.model_copy(update={"adjust": adjust})})


def _print(name: str, *columns: Sequence[float]) -> None:
    cells = "".join(f"{np.median(errors):15.1%}{np.mean(errors):8.1%}" for errors in columns)
    print(f"{name:28}{cells}")


if __name__ == "__main__":
    main()
