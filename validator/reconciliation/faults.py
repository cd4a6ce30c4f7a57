"""Faults: which rank, link or server of a measured run is slower than others that are alike, told by the run's own spans.

What is compared is measured over predicted, so that ranks that are not alike can be as well; without a prediction what was
measured alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.run.run import COMPUTE_PHASES, Phase, Run
from scaleproof.validator.reconciliation.links import slow_links
from scaleproof.validator.reconciliation.members import class_of_ranks
from scaleproof.validator.reconciliation.tally import Seconds, Tally, tally

# so many times as long as of others is odd: what shares a machine varies by less
_ODD: Final = 1.3
# updates are short, and vary more
_ODD_UPDATE: Final = 1.5
# a server with none to compare with is odd against what is predicted
_ODD_ALONE: Final = 2.0
# of the step time, what a fault has to take
_NOTICED: Final = 0.02
_NOTICED_ALONE: Final = 0.05


class DetectedFault(NamedTuple):
    """kind: compute, messages or updates. who: the ranks. ratio: how many times as long as of others it takes. words: the same
    as a sentence, without its stop."""

    kind: str
    who: tuple[str, ...]
    ratio: float
    words: str


def faults(predicted: Run, measured: Run) -> tuple[DetectedFault, ...]:
    """The faults that the measured run shows, the worst of each kind first; none where it has no spans."""
    told, expected = tally(measured), tally(predicted)
    if told is None:
        return ()
    class_of = None if expected is None else class_of_ranks(predicted, measured)
    sides = _Sides(measured, told, expected, class_of)
    return (*_slow_compute(sides), *_slow_messages(sides), *_slow_updates(sides))


class _Sides(NamedTuple):
    """A measured run, and what was predicted of its ranks."""

    run: Run
    told: Tally
    expected: Tally | None
    class_of: NDArray[np.int64] | None

    def name(self, rank: int) -> str:
        return self.run.rank_names[rank]

    def each_s(self, side: Tally, ranks: NDArray[np.bool_], phases: tuple[Phase, ...]) -> Seconds:
        """Seconds of a span of these phases on main streams, for each rank; not a number where it has none."""
        own = side.main & np.isin(side.phase, phases) & ranks[side.rank]
        spans = side.by_rank(side.spans, own)
        each_s: Seconds = np.divide(side.by_rank(side.doing_s, own), spans, out=np.full(len(spans), np.nan), where=spans > 0)
        return each_s

    def over_predicted(self, training: bool, phases: tuple[Phase, ...]) -> Seconds:
        """`each_s` of the measured run over that of the predicted one, as far as that tells it."""
        measured_s = self.each_s(self.told, (self.told.share > 0) == training, phases)
        if self.expected is None or self.class_of is None:
            return measured_s
        predicted_s = self.each_s(self.expected, (self.expected.share > 0) == training, phases)
        of_class_s = np.where(self.class_of < 0, np.nan, predicted_s[self.class_of])
        usable = np.isfinite(of_class_s) & (of_class_s > 0)
        return measured_s / of_class_s if (usable | np.isnan(measured_s)).all() else measured_s


def _over_others(values: Seconds) -> Seconds:
    """Each over the median of the others; 1 for what has none to compare with."""
    result = np.ones(len(values))
    known = np.flatnonzero(np.isfinite(values))
    for rank in known if len(known) > 1 else ():
        result[rank] = values[rank] / np.median(values[known[known != rank]])
    return result


def _slow_compute(sides: _Sides) -> Iterator[DetectedFault]:
    ratios = _over_others(sides.over_predicted(True, COMPUTE_PHASES))
    own = sides.told.main & np.isin(sides.told.phase, COMPUTE_PHASES)
    compute_s = sides.told.by_rank(sides.told.doing_s, own)
    odd = (ratios > _ODD) & (compute_s * (1 - 1 / ratios) > _NOTICED * sides.run.step_time_s)
    yield from _told("compute", "compute of {who} takes {ratio:.1f} times as long as of its peers", odd, ratios, sides)


def _slow_messages(sides: _Sides) -> Iterator[DetectedFault]:
    for link in slow_links(sides.run, sides.told.share > 0):
        names = tuple(map(sides.name, link.ranks))
        between = f"from and to {names[0]}" if len(names) == 1 else f"between {' and '.join(names)}"
        yield DetectedFault(
            "messages", names, link.ratio, f"messages {between} run at {1 / link.ratio:.0%} of the rate of the others"
        )


def _slow_updates(sides: _Sides) -> Iterator[DetectedFault]:
    servers = sides.told.share == 0
    if not servers.any():
        return
    own = sides.told.main & (sides.told.phase == Phase.OPTIMIZER) & servers[sides.told.rank]
    update_s = np.where(servers, sides.told.by_rank(sides.told.doing_s, own), np.nan)
    noticed = np.nan_to_num(update_s) > _NOTICED * sides.run.step_time_s
    ratios = _over_others(update_s)
    odd = noticed & (ratios > _ODD_UPDATE)
    yield from _told("updates", "updates on {who} take {ratio:.1f} times as long as on other servers", odd, ratios, sides)
    if odd.any() or sides.expected is None or sides.class_of is None:
        return
    own = sides.expected.main & (sides.expected.phase == Phase.OPTIMIZER) & (sides.expected.share == 0)[sides.expected.rank]
    expected_s = sides.expected.by_rank(sides.expected.doing_s, own)[sides.class_of]
    ratios = np.divide(update_s, expected_s, out=np.ones(len(update_s)), where=servers & (expected_s > 0))
    odd = (ratios > _ODD_ALONE) & (np.nan_to_num(update_s) * (1 - 1 / ratios) > _NOTICED_ALONE * sides.run.step_time_s)
    yield from _told("updates", "updates on {who} take {ratio:.1f} times as long as predicted", odd, ratios, sides)


def _told(kind: str, words: str, odd: NDArray[np.bool_], ratios: Seconds, sides: _Sides) -> Iterator[DetectedFault]:
    """One fault for all that are odd in the same way, told by the median of them."""
    ranks = np.flatnonzero(odd)
    if not len(ranks):
        return
    names = tuple(sides.name(rank) for rank in ranks[np.argsort(-ratios[ranks], kind="stable")].tolist())
    ratio = float(np.median(ratios[ranks]))
    yield DetectedFault(kind, names, ratio, words.format(who=listed(names), ratio=ratio))


def listed(names: tuple[str, ...]) -> str:
    """'a', 'a and b', 'a, b and 3 more'."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
