"""Findings from logs of nccl-tests on several sets of hosts: the host that all slow ones have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from scaleproof.simulator.analysis.diagnosis import Finding, HostRate
from scaleproof.simulator.cluster.collectives.groups import bus_factor
from scaleproof.simulator.common.units import counted, format_percent
from scaleproof.validator.calibration.imports.nccl_tests import TestedGroup
from scaleproof.validator.diagnosis.places import confidence, implicated, listed
from scaleproof.validator.estimation.robust import deviation, low_median

_SLOW: Final = 1.15
_FAR: Final = 5.0
# Deviation of the times of equal tests.
_LEAST_DEVIATION: Final = 0.02
_BYTES: Final = 1e9


class _Judged(NamedTuple):
    """A table, its time relative to that of equal tables on other hosts, and its bus bandwidth at the largest size."""

    group: TestedGroup
    ratio: float
    GBps: float

    @property
    def hosts(self) -> frozenset[str]:
        return frozenset(self.group.hosts)


def diagnose_tests(groups: Sequence[TestedGroup]) -> tuple[list[Finding], list[HostRate]]:
    """Slow hosts and links, and the rates of each host, from tables of the same test on different hosts."""
    kinds: dict[tuple[object, ...], list[TestedGroup]] = {}
    for group in groups:
        kinds.setdefault((group.op, group.ranks, len(group.hosts)), []).append(group)
    found: list[Finding] = []
    judged: list[tuple[_Judged, bool]] = []
    for same in kinds.values():
        own = _judged(same)
        noise = max(deviation(np.array([one.ratio for one in own])), _LEAST_DEVIATION) if own else 0.0
        sides = [(one, one.ratio > max(_SLOW, 1 + _FAR * noise)) for one in own]
        judged += sides
        found += _findings([one for one, slow in sides if slow], [one for one, slow in sides if not slow], noise)
    return found, _rates(judged)


def _judged(groups: Sequence[TestedGroup]) -> list[_Judged]:
    """Tables of sizes that all have, by the larger half of these, at which bandwidth counts."""
    times_s = [{one.point.size: one.point.median_s for one in group.points} for group in groups]
    sizes = sorted(set(times_s[0]).intersection(*times_s[1:]))
    if not sizes:
        return []
    large = sizes[len(sizes) // 2 :]
    matrix = np.array([[own[size] for size in large] for own in times_s])
    ratios = np.median(matrix / [low_median(column) for column in matrix.T], axis=1)
    factor = bus_factor(groups[0].op, groups[0].ranks)
    return [
        _Judged(group, float(ratio), large[-1] * factor / own[large[-1]] / _BYTES)
        for group, ratio, own in zip(groups, ratios, times_s, strict=True)
    ]


def _findings(slow: Sequence[_Judged], fast: Sequence[_Judged], noise: float) -> Iterator[Finding]:
    # the same hosts at another time are no reason to accuse one of them
    slow = [one for one in slow if all(one.hosts != other.hosts for other in fast)]
    if not slow:
        return
    usual_GBps = float(np.median([one.GBps for one in fast]))
    pairs = "pairs" if all(len(one.hosts) == 2 for one in slow) else "groups"
    for hosts, numbers in implicated([one.hosts for one in slow], [one.hosts for one in fast]):
        own = [slow[number] for number in numbers]
        GBps = float(np.median([one.GBps for one in own]))
        share = 1 - GBps / usual_GBps
        names = sorted(hosts)
        explained = f"all {len(slow)}" if len(own) == len(slow) > 1 else str(len(own))
        counts = f"{explained} slow {pairs if len(own) > 1 else pairs[:-1]} of {counted(len(slow) + len(fast), 'log')}"
        op = own[0].group.op.replace("_", "-")
        rates = f"{op} reaches {GBps:.3g} GB/s there, {usual_GBps:.3g} GB/s elsewhere ({format_percent(-share)})"
        is_path = len(own) == 1 and hosts == own[0].hosts and all(any(host in one.hosts for one in fast) for host in hosts)
        if len(names) == 1:
            who = f"{names[0]} is in {counts}"
        elif is_path:
            who = f"the path between {listed(names)} is slow, and both are fast with others"
        else:
            who = f"{' or '.join(names)} is in {counts}, and no log separates them"
        yield Finding(
            cause="slow link", words=f"{who}: {rates}", share=share, where=" or ".join(names) if not is_path else listed(names),
            hosts=tuple(names), confidence=confidence((own[0].ratio - 1) / noise) if len(names) == 1 else "medium",
            source=own[0].group.points[0].source,
        )  # fmt: skip


def _rates(judged: Sequence[tuple[_Judged, bool]]) -> list[HostRate]:
    hosts = sorted({host for one, _ in judged for host in one.hosts})
    result = []
    for host in hosts:
        own = [(one, slow) for one, slow in judged if host in one.hosts]
        GBps = float(np.median([one.GBps for one, _ in own]))
        result.append(HostRate(host=host, logs=len(own), slow=sum(slow for _, slow in own), GBps=GBps))
    return sorted(result, key=lambda one: (-one.slow / one.logs, one.host))
