"""Console text of claims: verdicts, and the values behind them."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from scaleproof.reports.claims.claim import Bound, Experiment
from scaleproof.reports.claims.evaluate import ExperimentResult, listed
from scaleproof.reports.claims.quantities import KINDS, ratio
from scaleproof.reports.claims.result import Result

_WIDTH: Final = 110


def describe(results: Sequence[Result], at_length: bool) -> str:
    """The verdicts of claims. at_length: with the values of each."""
    parts = [_one(result, at_length) for result in results]
    return "\n".join([*parts, _count(results)] if len(results) > 1 else parts)


def verdict(found: ExperimentResult) -> str:
    """'holds when workers ≥ 8'."""
    condition = found.condition
    if len(found.telling) < len(found.points):
        scope = listed([found.experiment.axis.text(point.x) for point in found.telling])
        return f"{found.verdict} {condition}".strip() + f", tested at {found.experiment.axis.name} {scope}"
    return f"{found.verdict} {condition}".strip()


def day(date: str) -> str:
    """'22 November 2026'."""
    return f"{datetime.fromisoformat(date):%-d %B %Y}"


def bound(test: Bound, experiment: Experiment) -> str:
    """Text of a bound: 'ring at least 90 %'."""
    text = KINDS[experiment.quantity_of(test.of)].text if test.against is None else ratio
    limits = [f"at least {text(test.at_least)}" if test.at_least is not None else ""]
    limits.append(f"at most {text(test.at_most)}" if test.at_most is not None else "")
    return f"{test.of} {' and '.join(filter(None, limits))}" + (f" that of {test.against}" if test.against else "")


def _one(result: Result, at_length: bool) -> str:
    claim = result.claim
    lines = [f"{claim.name}: {claim.claim}", f"  predicted  {verdict(result.predicted)}"]
    if at_length:
        lines += [*_wrapped(_frameworks(result.predicted), "    "), *_numbers(result.predicted)]
    if result.measured and result.record:
        warned = ", with warnings" if result.record.warnings else ""
        lines.append(f"  measured   {verdict(result.measured)} (netlab, {day(result.record.date)}{warned})")
        if at_length and result.foretold:
            lines += _numbers(result.measured, result.foretold)
            lines += [line for warning in result.record.warnings for line in _wrapped(f"warning: {warning}", "    ")]
    return "\n".join([*lines, *_wrapped(" ".join(claim.because.split()), "  because    ")])


def _frameworks(found: ExperimentResult) -> str:
    """'framework: pytorch-ddp, by default', with its lines if they differ."""
    lines: dict[str, list[str]] = {}
    for line, words in found.frameworks.items():
        lines.setdefault(words, []).append(line)
    if len(lines) == 1:
        return f"framework: {next(iter(lines))}"
    return "framework: " + "; ".join(f"{words} ({', '.join(names)})" for words, names in lines.items())


def _wrapped(text: str, begin: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=begin, subsequent_indent=" " * len(begin))


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
    first, widths = (
        max(len(row[0]) for row in rows),
        [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)],
    )
    table = [
        f"{row[0]:<{first}}" + "".join(f"  {cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True))
        for row in rows
    ]
    test = experiment.test
    criterion = f"{quantity.words}; holds if {bound(test, experiment)}"
    if test.where:
        criterion += f", of those where {bound(test.where, experiment)}"
    return [f"    {line}" for line in (*textwrap.wrap(criterion, _WIDTH), *table)]


def _count(results: Sequence[Result]) -> str:
    verdicts: list[str] = [result.predicted.verdict for result in results]
    parts = [
        f"{verdicts.count(one)} {words}"
        for one, words in (("holds", "hold"), ("holds when", "hold when"), ("does not hold", "do not"))
    ]
    agree = [result.measured.verdict == result.foretold.verdict for result in results if result.measured and result.foretold]
    return f"{len(results)} claims: {', '.join(parts)}; {len(agree)} measured, {sum(agree)} of these as predicted"
