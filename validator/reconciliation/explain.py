"""Explanation of a prediction's error: the parts of the step that are wrong, and what to recalibrate or change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from scaleproof.simulator.common.spans import COMMUNICATION_PHASES, Phase
from scaleproof.simulator.common.units import format_percent, format_time_s
from scaleproof.simulator.run.explanation import GROUPS, DetectedFault, Divergence, ErrorPart, Explanation
from scaleproof.simulator.run.run import Run
from scaleproof.validator.reconciliation.faults import faults
from scaleproof.validator.reconciliation.match import MatchedRuns, MatchedSpans, match
from scaleproof.validator.reconciliation.parts import split, volume_ratio

# shares of the measured step time: the runs agree below the first; a part below the second is not named
_AGREES: Final = 0.02
_NAMED: Final = 0.01
_DIVERGENCES: Final = 3
# share of a part's difference on one rank class from which on it is named as the location
_MOST: Final = 0.6
_LABELS: Final = {
    "volume": "communication volume",
    "rate": "communication rate",
    "bubble": "waiting for stages",
    "waiting_for_ranks": "waiting for ranks",
    "waiting_for_server": "waiting for server",
    "waiting_for_input": "waiting for input",
}
# with the present cluster file as the description
_PROBE: Final = "calibrate --cluster FILE --probe"
_ADVICE: Final = {
    "forward": f"{_PROBE} layer",
    "backward": f"{_PROBE} layer",
    "optimizer": f"{_PROBE} layer",
    "volume": "check the exchanged volume: strategy and training.precision",
    "overlap": f"{_PROBE} overlap",
    "bubble": f"{_PROBE} layer, or check how strategy assigns layers to stages",
    "waiting_for_ranks": "describe in unevenness which ranks are slow, or how much they vary",
    "waiting_for_server": f"{_PROBE} update",
    "waiting_for_input": f"{_PROBE} loading, or check input",
    "unmodelled": "look in both timelines for work without a counterpart",
}
_FAULTY: Final = {
    "compute": "find out what else runs there, or describe it in unevenness.stragglers",
    "messages": f"check that link, or describe it in the network's exceptions; {_PROBE} message",
    "updates": f"find out what else runs there; {_PROBE} update",
    "jitter": "find out what else runs there at times, or describe it in unevenness (noise, tail)",
    "input": "look at its storage and at the processes that prepare its samples",
}
# share of a wait's difference from which on another part counts as its cause
_CAUSES: Final = 0.25
# emulated compute lasts as long as predicted, so its error has one cause
_PACED: Final = "emulated compute ended late: measure on a quieter machine"


def explain(predicted: Run, measured: Run) -> Explanation:
    """Explains the difference by spans if both runs have them and their ranks step synchronously, otherwise by breakdowns
    alone; a log's run has neither."""
    if not measured.phase_s:
        return _of_step_times(predicted, measured)
    matched = match(predicted, measured)
    parts, detected = split(predicted, measured, matched), faults(predicted, measured)
    divergences = () if matched is None else _divergences(matched, measured.step_time_s)
    difference_s = predicted.step_time_s - measured.step_time_s
    words = _Sentences(predicted, measured, matched, parts)
    # faults come first, because parts may follow from them
    sentences = [f"{fault.words}: {words.remedy(fault)}" for fault in detected]
    # a slow network is the rate's error already
    is_said = any(fault.kind == "network" for fault in detected) and words.largest_part().name == "rate"
    sentences = [words.sum(), *sentences, *([] if words.agree or is_said else [words.largest()]), *words.warned()]
    return Explanation(difference_s, parts, detected, divergences, tuple(sentences))


def _of_step_times(predicted: Run, measured: Run) -> Explanation:
    """The explanation where only the step time was measured."""
    off_s = predicted.step_time_s - measured.step_time_s
    sentence = f"{_signed_ms(off_s)} ms; a log has no phases: a trace of a few steps shows which of them differ (--trace)"
    return Explanation(off_s, (), (), (), (sentence,))


def label(name: str) -> str:
    """Name of a part for people: 'communication rate'."""
    return _LABELS.get(name, name)


def _divergences(matched: MatchedRuns, step_time_s: float) -> tuple[Divergence, ...]:
    """The kinds of span that differ the most on the main streams, each phase and stage of a rank once."""
    result: dict[tuple[int, int, int], Divergence] = {}
    off_by: Callable[[MatchedSpans], float] = lambda pair: abs(pair.predicted.all_s - pair.measured.all_s)  # noqa: E731
    for pair in sorted((pair for pair in matched.pairs if pair.is_main and pair.share > 0), key=off_by, reverse=True):
        kind = pair.kind
        if len(result) < _DIVERGENCES and off_by(pair) >= _NAMED * step_time_s:
            ranks = tuple(rank for rank, own in enumerate(matched.class_of.tolist()) if own == kind.rank)
            sides = pair.predicted.all_s, pair.measured.all_s
            divergence = Divergence(kind.rank, ranks, Phase(kind.phase).label, kind.stage, kind.microbatch, *sides)
            result.setdefault((kind.rank, kind.phase, kind.stage), divergence)
    return tuple(result.values())


class _Sentences:
    """Sentences about one comparison."""

    def __init__(self, predicted: Run, measured: Run, matched: MatchedRuns | None, parts: tuple[ErrorPart, ...]) -> None:
        self._predicted, self._measured, self._matched = predicted, measured, matched
        self._parts = {part.name: part for part in parts}
        self._off_s = predicted.step_time_s - measured.step_time_s

    @property
    def agree(self) -> bool:
        """Whether the step time and each group of parts differ by less than `_AGREES` of the step."""
        return max(abs(self._off_s), *map(abs, self._groups_s().values())) < _AGREES * self._measured.step_time_s

    def _groups_s(self) -> dict[str, float]:
        return {group: sum(self._parts[name].difference_s for name in names) for group, names in GROUPS.items()}

    def sum(self) -> str:
        """The difference and its parts: '-54.3 ms = communication rate -36.3, waiting for ranks -9.2, …, rest -1.2'."""
        ordered = sorted(self._parts.values(), key=lambda part: -abs(part.difference_s))
        largest = [part for part in ordered if abs(part.difference_s) >= _NAMED * self._measured.step_time_s]
        rest_s = self._off_s - sum(part.difference_s for part in largest)
        named = [f"{label(part.name)} {_signed_ms(part.difference_s)}" for part in largest]
        return f"{_signed_ms(self._off_s)} ms = {', '.join([*named, f'rest {_signed_ms(rest_s)}'])}"

    def largest(self) -> str:
        """The part with the largest contribution, where it is, its cause, and what to do."""
        part = self.largest_part()
        cause = self._cause(part, self._direction())
        if cause is None:
            return f"{self._finding(part)}{self._where(part)}: {self._advice(part)}"
        return f"{self._finding(part)}, since {self._finding(cause)}{self._where(cause)}: {self._advice(cause)}"

    def largest_part(self) -> ErrorPart:
        """The part with the largest contribution to the error, of the group with the largest one."""
        groups_s, sign = self._groups_s(), self._direction()
        group = max(groups_s, key=lambda name: sign * groups_s[name])
        return max((self._parts[name] for name in GROUPS[group]), key=lambda part: sign * part.difference_s)

    def _direction(self) -> float:
        """Sign of the error, or of its largest group if the groups cancel."""
        groups_s = self._groups_s()
        cancel = abs(self._off_s) < _AGREES * self._measured.step_time_s
        return _sign(max(groups_s.values(), key=abs) if cancel else self._off_s)

    def _cause(self, part: ErrorPart, sign: float) -> ErrorPart | None:
        """The cause of a wait for other ranks: the part of computing or communication with the largest error in the same
        direction."""
        if part.name not in ("bubble", "waiting_for_ranks"):
            return None
        causes = [self._parts[name] for name in ("forward", "backward", "rate")]
        cause = max(causes, key=lambda part: sign * part.difference_s)
        return cause if sign * cause.difference_s >= _CAUSES * sign * part.difference_s else None

    def _finding(self, part: ErrorPart) -> str:
        name, predicted_s, measured_s = part.name, part.predicted_s or 0.0, part.measured_s or 0.0
        sides = f"{format_time_s(measured_s)}, predicted {format_time_s(predicted_s) if predicted_s else 'none'}"
        if part.group == "compute":
            return f"{name} takes {times(predicted_s, measured_s)} ({sides})"
        if name == "rate":
            ratio = 1.0 if self._matched is None else volume_ratio(self._matched)
            rate = predicted_s * ratio / measured_s if measured_s else 0.0
            return (
                f"communication runs at {format_percent(rate, 0)} of the predicted rate"
                if rate
                else f"communication takes {sides}"
            )
        if name == "volume" and self._matched is not None:
            return f"{volume_ratio(self._matched):.2f} times the predicted bytes are moved"
        if name == "overlap":
            return f"communication hidden behind computation takes {sides}"
        return f"{'what is not modelled' if name == 'unmodelled' else label(name)} takes {sides}"

    def _where(self, part: ErrorPart) -> str:
        """', most of it on stage 0, in its first microbatch', if the part's difference is mostly on one of several rank
        classes."""
        if self._matched is None:
            return ""
        own = [pair for pair in self._matched.pairs if _is_of(pair, part.name)]
        by_rank: dict[int, float] = {}
        for pair in own:
            by_rank[pair.kind.rank] = by_rank.get(pair.kind.rank, 0.0) + _off_s(pair, part.name)
        total_s = sum(by_rank.values())
        if len(by_rank) < 2 or total_s * part.difference_s <= 0:
            return ""
        rank = max(by_rank, key=lambda rank: by_rank[rank] / total_s)
        if by_rank[rank] / total_s < max(_MOST, 1.2 / len(by_rank)):
            return ""
        own = [pair for pair in own if pair.kind.rank == rank]
        return f", most of it on {self._predicted.rank_names[rank]}{_microbatch_text(own)}"

    def remedy(self, fault: DetectedFault) -> str:
        """What to do about a fault."""
        return _FAULTY[fault.kind] if fault.kind in _FAULTY else self._advice(self._parts["rate"])

    def _advice(self, part: ErrorPart) -> str:
        if part.group == "compute" and self._measured.compute == "paced":
            return _PACED
        if part.name == "rate":
            phases = self._measured.phase_s
            messages = sum(phases.get(phase.label, 0.0) for phase in (Phase.SEND, Phase.RECEIVE))
            probe = "message" if messages > phases.get(Phase.SYNCHRONISE.label, 0.0) else "collective"
            return f"{_PROBE} {probe}"
        return _ADVICE[part.name]

    def warned(self) -> list[str]:
        """The first warning of the measured run, and the number of further ones."""
        more = len(self._measured.warnings) - 1
        further = f" (and {more} more)" if more > 0 else ""
        return [f"the measurement warns: {warning}{further}" for warning in self._measured.warnings[:1]]


def _is_of(pair: MatchedSpans, name: str) -> bool:
    """Whether spans of this kind belong to a part."""
    phase = Phase(pair.kind.phase)
    if name == "rate":
        return phase in COMMUNICATION_PHASES and not pair.is_main
    if not pair.is_main or pair.share == 0:
        return False
    own: Mapping[str, Iterable[Phase]] = {
        "bubble": (Phase.SEND, Phase.RECEIVE),
        "waiting_for_ranks": (Phase.SYNCHRONISE,),
        "waiting_for_server": (Phase.WAIT,),
    }
    return phase in own.get(name, ()) or phase.label == name


def _off_s(pair: MatchedSpans, name: str) -> float:
    if name in ("bubble", "waiting_for_ranks", "waiting_for_server"):
        return pair.predicted.waiting_s - pair.measured.waiting_s
    return pair.predicted.doing_s - pair.measured.doing_s


def _microbatch_text(pairs: Iterable[MatchedSpans]) -> str:
    """', in its first microbatch' or the like, if one of several microbatches has most of the difference."""
    off_s: dict[int, float] = {}
    for pair in pairs:
        off_s[pair.kind.microbatch] = off_s.get(pair.kind.microbatch, 0.0) + pair.difference_s
    total_s, numbered = sum(off_s.values()), [number for number in off_s if number >= 0]
    if len(numbered) < 3 or total_s == 0:
        return ""
    ends = {min(numbered): "first", max(numbered): "last"}
    most = max(numbered, key=lambda number: off_s[number] / total_s)
    if off_s[most] / total_s < _MOST:
        return ""
    return f", in its {ends[most]} microbatch" if most in ends else f", in microbatch {most}"


def times(predicted_s: float, measured_s: float) -> str:
    """Measured relative to predicted time: '1.8 times as long as predicted', '57 % of the predicted time'."""
    if predicted_s <= 0:
        return "time, though none is predicted"
    ratio = measured_s / predicted_s
    if ratio < 1:
        return f"{format_percent(ratio, 0)} of the predicted time"
    return f"{ratio:.{1 if ratio >= 1.5 else 2}f} times as long as predicted"


def _signed_ms(seconds: float) -> str:
    size = abs(seconds) * 1e3
    return f"{'-' if seconds < 0 else '+'}{size:.{0 if size >= 100 else 1 if size >= 1 else 2}f}"


def _sign(value: float) -> float:
    return -1.0 if value < 0 else 1.0
