"""Detection of ranks, links and servers of a measured run that are slower than equivalent ones, from the run's own spans.

Ratios of measured to predicted times are compared, so that different ranks are comparable; without a prediction, measured
times.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scaleproof.simulator.common.spans import COMPUTE_PHASES, Phase
from scaleproof.simulator.common.units import format_percent, format_time_s
from scaleproof.simulator.run.explanation import DetectedFault
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.compute_steps import undisturbed_share, varying_rank
from scaleproof.validator.reconciliation.links import slow_links
from scaleproof.validator.reconciliation.match import match
from scaleproof.validator.reconciliation.members import class_of_ranks
from scaleproof.validator.reconciliation.parts import moving_s, volume_ratio
from scaleproof.validator.reconciliation.tally import Seconds, Tally, tally

# ratios to others above which something counts as slow: equivalent ranks that share a machine vary by less
_SLOW: Final = 1.3
# of many equivalent ranks, one also counts as slow whose ratio exceeds this and deviates from theirs by far
_SLOW_OF_MANY: Final = 1.05
_MANY: Final = 8
_FAR_DEVIATIONS: Final = 6.0
# standard deviation of a normal variable over its median absolute deviation
_PER_MEDIAN_DEVIATION: Final = 1.4826
# updates are short, and vary more
_SLOW_UPDATE: Final = 1.5
# a server without others to compare with counts as slow relative to the prediction
_SLOW_ALONE: Final = 2.0
# smallest share of the step time that a fault costs
_NOTICED: Final = 0.02
_NOTICED_ALONE: Final = 0.05
# all communication relative to the prediction: predictions of a described, not calibrated, network are less wrong than that
_SLOW_NETWORK: Final = 1.45


def faults(predicted: Run, measured: Run) -> tuple[DetectedFault, ...]:
    """Faults that the measured run shows, the worst of each kind first; none if it has no spans."""
    measured_tally, expected = tally(measured), tally(predicted)
    if measured_tally is None:
        return ()
    class_of = None if expected is None else class_of_ranks(predicted, measured)
    sides = _Sides(measured, measured_tally, expected, class_of)
    found = (*_slow_compute(sides), *_slow_messages(sides), *_slow_updates(sides), *_slow_input(sides))
    # what is slow in one place delays messages elsewhere, too
    return found or tuple(_slow_network(predicted, measured))


class _Sides(NamedTuple):
    """Tallies of a measured run and of its prediction."""

    run: Run
    measured: Tally
    expected: Tally | None
    class_of: NDArray[np.int64] | None

    def name(self, rank: int) -> str:
        return self.run.rank_names[rank]

    def span_s(self, side: Tally, ranks: NDArray[np.bool_], phases: tuple[Phase, ...]) -> Seconds:
        """Mean seconds of a span of these phases on the main stream, shape (ranks,); NaN for ranks without one."""
        own = side.main & np.isin(side.phase, phases) & ranks[side.rank]
        spans = side.by_rank(side.spans, own)
        result: Seconds = np.divide(side.by_rank(side.doing_s, own), spans, out=np.full(len(spans), np.nan), where=spans > 0)
        return result

    def over_predicted(self, training: bool, phases: tuple[Phase, ...]) -> Seconds:
        """`span_s` of the measured over the predicted run; of the measured run alone if the prediction lacks any of it."""
        measured_s = self.span_s(self.measured, (self.measured.share > 0) == training, phases)
        if self.expected is None or self.class_of is None:
            return measured_s
        predicted_s = self.span_s(self.expected, (self.expected.share > 0) == training, phases)
        of_class_s = np.where(self.class_of < 0, np.nan, predicted_s[self.class_of])
        usable = np.isfinite(of_class_s) & (of_class_s > 0)
        return measured_s / of_class_s if (usable | np.isnan(measured_s)).all() else measured_s


def _over_others(values: Seconds) -> Seconds:
    """Each value over the median of the others; 1 without others."""
    result = np.ones(len(values))
    known = np.flatnonzero(np.isfinite(values))
    for rank in known if len(known) > 1 else ():
        result[rank] = values[rank] / np.median(values[known[known != rank]])
    return result


def _is_far_from_many(ratios: Seconds) -> NDArray[np.bool_]:
    """Whether each of many ranks deviates from the others by far more than they do from one another, shape (ranks,)."""
    if len(ratios) <= _MANY:
        return np.zeros(len(ratios), dtype=bool)
    deviation = _PER_MEDIAN_DEVIATION * float(np.median(np.abs(ratios - np.median(ratios))))
    return np.asarray(ratios > max(_SLOW_OF_MANY, 1 + _FAR_DEVIATIONS * deviation))


def _slow_compute(sides: _Sides) -> Iterator[DetectedFault]:
    training = sides.measured.share > 0
    if (varying := varying_rank(sides.run, training)) is not None:
        name, share = sides.name(varying.rank), format_percent(varying.variation, 0)
        words = f"compute of {name} varies from step to step by {share}, of its peers by {format_percent(varying.of_peers, 0)}"
        yield DetectedFault("jitter", (name,), varying.ratio, words)
        return
    undisturbed = undisturbed_share(sides.run, training, COMPUTE_PHASES)
    ratios = _over_others(undisturbed * sides.over_predicted(True, COMPUTE_PHASES))
    own = sides.measured.main & np.isin(sides.measured.phase, COMPUTE_PHASES)
    compute_s = undisturbed * sides.measured.by_rank(sides.measured.doing_s, own)
    slow = ((ratios > _SLOW) | _is_far_from_many(ratios)) & (compute_s * (1 - 1 / ratios) > _NOTICED * sides.run.step_time_s)
    yield from _faults("compute", "compute of {who} takes {ratio:.3g} times as long as of its peers", slow, ratios, sides)


def _slow_messages(sides: _Sides) -> Iterator[DetectedFault]:
    for link in slow_links(sides.run, sides.measured.share > 0):
        names = tuple(map(sides.name, link.ranks))
        between = f"{link.way or 'from and to'} {names[0]}" if len(names) == 1 else f"between {' and '.join(names)}"
        yield DetectedFault(
            "messages",
            names,
            link.ratio,
            f"messages {between} run at {format_percent(1 / link.ratio, 0)} of the rate of the others",
        )


def _slow_updates(sides: _Sides) -> Iterator[DetectedFault]:
    servers = sides.measured.share == 0
    if not servers.any():
        return
    own = sides.measured.main & (sides.measured.phase == Phase.OPTIMIZER) & servers[sides.measured.rank]
    undisturbed = undisturbed_share(sides.run, servers, (Phase.OPTIMIZER,))
    update_s = np.where(servers, undisturbed * sides.measured.by_rank(sides.measured.doing_s, own), np.nan)
    noticed = np.nan_to_num(update_s) > _NOTICED * sides.run.step_time_s
    ratios = _over_others(update_s)
    slow = noticed & (ratios > _SLOW_UPDATE)
    yield from _faults("updates", "updates on {who} take {ratio:.1f} times as long as on other servers", slow, ratios, sides)
    if slow.any() or sides.expected is None or sides.class_of is None:
        return
    own = sides.expected.main & (sides.expected.phase == Phase.OPTIMIZER) & (sides.expected.share == 0)[sides.expected.rank]
    expected_s = sides.expected.by_rank(sides.expected.doing_s, own)[sides.class_of]
    ratios = np.divide(update_s, expected_s, out=np.ones(len(update_s)), where=servers & (expected_s > 0))
    slow = (ratios > _SLOW_ALONE) & (np.nan_to_num(update_s) * (1 - 1 / ratios) > _NOTICED_ALONE * sides.run.step_time_s)
    yield from _faults("updates", "updates on {who} take {ratio:.1f} times as long as predicted", slow, ratios, sides)


def _slow_input(sides: _Sides) -> Iterator[DetectedFault]:
    """Ranks that wait for samples longer than others do, not counting waits that are predicted."""
    own = sides.measured.main & (sides.measured.phase == Phase.INPUT)
    input_s, ranks = sides.measured.by_rank(sides.measured.waiting_s, own), np.flatnonzero(sides.measured.share > 0)
    if sides.expected is not None and sides.class_of is not None:
        known = sides.expected.main & (sides.expected.phase == Phase.INPUT)
        expected_s = sides.expected.by_rank(sides.expected.waiting_s, known)
        input_s = np.maximum(0.0, input_s - np.where(sides.class_of < 0, 0.0, expected_s[sides.class_of]))
    for rank in ranks.tolist() if len(ranks) > 1 else ():
        others_s = float(np.median(input_s[ranks[ranks != rank]]))
        lost_s, step_s = float(input_s[rank]) - others_s, sides.run.step_time_s
        if lost_s > _NOTICED_ALONE * step_s and input_s[rank] > _SLOW_ALONE * others_s:
            peers = format_time_s(others_s) if others_s else "do not"
            words = (
                f"{sides.name(rank)} waits for its samples for {format_time_s(input_s[rank])} of each step, its peers {peers}"
            )
            yield DetectedFault("input", (sides.name(rank),), step_s / (step_s - lost_s), words)


def _slow_network(predicted: Run, measured: Run) -> Iterator[DetectedFault]:
    """All of communication is slower than predicted."""
    matched = match(predicted, measured)
    if matched is None:
        return
    expected_s, took_s = (moving_s(run) for run in (predicted, measured))
    expected_s *= volume_ratio(matched)
    noticed = took_s - expected_s > _NOTICED_ALONE * measured.step_time_s
    if noticed and expected_s > 0 and took_s > _SLOW_NETWORK * expected_s:
        words = f"communication on all links runs at {format_percent(expected_s / took_s, 0)} of the predicted rate"
        yield DetectedFault("network", (), took_s / expected_s, words)


def _faults(kind: str, words: str, slow: NDArray[np.bool_], ratios: Seconds, sides: _Sides) -> Iterator[DetectedFault]:
    """One fault for all slow ranks, with the median of their ratios; none if no rank is slow."""
    ranks = np.flatnonzero(slow)
    if not len(ranks):
        return
    names = tuple(sides.name(rank) for rank in ranks[np.argsort(-ratios[ranks], kind="stable")].tolist())
    ratio = float(np.median(ratios[ranks]))
    yield DetectedFault(kind, names, ratio, words.format(who=listed(names), ratio=ratio))


def listed(names: tuple[str, ...]) -> str:
    """Names as text: 'a', 'a and b', 'a, b and 3 more'."""
    if len(names) > 3:
        return f"{names[0]}, {names[1]} and {len(names) - 2} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
