"""Console text of claims: verdicts, and the values behind them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.proof.claims.evaluate import ExperimentResult
from scaleproof.proof.claims.quantities import KINDS
from scaleproof.proof.claims.result import Result, bound, day, verdict

# below the first line of a paragraph
_MARGIN: Final = " " * 13


def describe(results: Sequence[Result], at_length: bool) -> str:
    """The verdicts of claims. at_length: with the values of each."""
    parts = [_one(result, at_length) for result in results]
    return "\n".join([*parts, _count(results)] if len(results) > 1 else parts)


def _one(result: Result, at_length: bool) -> str:
    claim = result.claim
    lines = [f"{claim.name}: {claim.claim}", f"  predicted  {verdict(result.predicted)}"]
    if at_length:
        lines += [*_scenario(result.predicted), *_indented(_frameworks(result.predicted)), *_numbers(result.predicted)]
    if result.measured and result.record:
        warned = ", with warnings" if result.record.warnings else ""
        lines.append(f"  measured   {verdict(result.measured)} (netlab, {day(result.record.date)}{warned})")
        if at_length and result.foretold:
            lines += [*_scenario(result.measured), *_numbers(result.measured, result.foretold)]
            lines += [line for warning in result.record.warnings for line in _indented(f"warning: {warning}")]
    lines += wrapped(" ".join(claim.because.split()), "  because    ", _MARGIN)
    lines += wrapped(claim.source, "  source     ", _MARGIN) if claim.source else []
    return "\n".join(lines)


def _scenario(found: ExperimentResult) -> list[str]:
    """'scenario: resnet50-ring-p100 with strategy.workers=4'."""
    given = found.experiment.scenario
    text = f"scenario: {given}" if isinstance(given, str) else "scenario: in the claim's file"
    changes = ", ".join(found.experiment.common_overrides)
    return _indented(f"{text} with {changes}" if changes else text)


def _frameworks(found: ExperimentResult) -> str:
    """'framework: pytorch-ddp, by default', with its lines if they differ."""
    lines: dict[str, list[str]] = {}
    for line, words in found.frameworks.items():
        lines.setdefault(words, []).append(line)
    if len(lines) == 1:
        return f"framework: {next(iter(lines))}"
    return "framework: " + "; ".join(f"{words} ({', '.join(names)})" for words, names in lines.items())


def _numbers(found: ExperimentResult, foretold: ExperimentResult | None = None) -> list[str]:
    """Table of the values of each line along the axis, with predicted values below measured ones."""
    experiment = found.experiment
    quantity = KINDS[experiment.quantity]
    rows = [[experiment.axis.name, *(experiment.axis.text(point.x) for point in found.points)]]
    for name in experiment.lines:
        text = KINDS[experiment.quantity_of(name)].text
        rows.append([name, *(text(point.values[name]) for point in found.points)])
        if foretold:
            rows.append(["  predicted", *(text(point.values[name]) for point in foretold.points)])
    rows.append(["so it holds", *("–" if not one.says else "yes" if one.holds else "no" for one in found.points)])
    test = experiment.test
    criterion = f"{quantity.words}; holds if {bound(test, experiment)}"
    if test.where:
        criterion += f", of those where {bound(test.where, experiment)}"
    return [*_indented(criterion), *table(rows, indent="    ")]


def _indented(text: str) -> list[str]:
    return wrapped(text, "    ", "    ")


def _count(results: Sequence[Result]) -> str:
    verdicts: list[str] = [result.predicted.verdict for result in results]
    parts = [
        f"{verdicts.count(one)} {words}"
        for one, words in (("holds", "true"), ("holds when", "depend"), ("does not hold", "false"))
    ]
    agree = [result.measured.verdict == result.foretold.verdict for result in results if result.measured and result.foretold]
    return f"{len(results)} claims: {', '.join(parts)}; {len(agree)} measured, {sum(agree)} of these as predicted"
