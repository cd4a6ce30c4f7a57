"""Fit of the model error of prediction intervals to all published measurements, and its check with whole sources left out.

Run: python benchmarks/intervals.py [--write] [--scored FILE] [--only TABLE]

1. Scores collectives, data_parallel_scaling, pipeline_schedules, vision, and transformer_training twice: with the row's
   framework and with the default one (some minutes on two cores; `--scored FILE` keeps the scored rows in a file, and reads
   them from there the next time, in seconds; delete the file when predictions have changed).
2. Fits each family of predictions, and pairs of configurations, to all sources, and again without each of them.
3. Prints the coverage of 90 % intervals with the row's own source left out, as a share of rows and as the mean over sources,
   with the mean width (upper over lower end); what a shift of the prediction would gain; and how often the configuration that
   `plan` and `compare` call faster was.
4. With `--write`, writes `scenarios/uncertainty/errors.yaml`, which predictions read. With `--only TABLE`, families of that
   table alone are scored, fitted, and written; those of other tables stay as they are.

To do after any change of predictions: `python benchmarks/intervals.py --write`, then `scaleproof score --leave-out source`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import yaml

from scaleproof.proof.published.error_fit import FLOOR, Coverage, Ends, ErrorRow, coverage, fit, left_out, source_weights
from scaleproof.proof.published.pair_fit import (
    Configuration,
    Pairs,
    curve,
    first_is_faster,
    left_out_probabilities,
    likeliest_reversed_share,
    pairs_of,
    shared_errors,
    without_other_models,
)
from scaleproof.proof.published.prediction import LEAVE_OUT_SOURCE, Options, Prediction
from scaleproof.proof.published.score import score
from scaleproof.simulator.cluster.quantities import DEVIATIONS, QUANTITIES
from scaleproof.simulator.published.tables import folder
from scaleproof.simulator.uncertainty.error_model import (
    EXPOSED,
    FILE,
    MODEL,
    NARROW,
    NODE_RANKS,
    NODES,
    Fit,
    PairFit,
    log_exposed,
)
from scaleproof.simulator.uncertainty.pairwise import with_reversals

# Scored tables, and whether with the row's framework.
_TABLES: Final = (
    ("collectives", True),
    ("data_parallel_scaling", True),
    ("pipeline_schedules", True),
    ("transformer_training", True),
    ("transformer_training", False),
    ("vision", True),
)
# Tables whose families can be fitted alone: pairs are of transformers.
_ALONE: Final = ("collectives", "data_parallel_scaling", "pipeline_schedules", "vision")
# No end of the model error is nearer to the prediction than that of the prior, since the next source is a new draw; the rows of
# schedules are one paper's, so that their own errors say little about others. Memory is counted.
_FLOOR: Final = QUANTITIES[MODEL].prior * DEVIATIONS


class Family(NamedTuple):
    """How a family is fitted. covariates: of the scale of errors. ends, floor: as in `fit`."""

    covariates: tuple[str, ...] = ()
    ends: Ends = "tails"
    floor: float = _FLOOR


# Whether a run fits and which is faster depend on each end, so that these have a twentieth of the rows beyond each. The four
# sources of data-parallel series resemble one another and say too little about the next. Of collectives three sources are
# inside nodes, too few for a covariate of that.
_FAMILIES: Final[Mapping[str, Family]] = {
    "training": Family((EXPOSED, NODES)),
    "scaling": Family((NODES,), "worst"),
    "collectives": Family(("small",), "shortest"),
    "schedules": Family(),
    "memory": Family(("default_framework",), floor=FLOOR),
    "vision": Family((NODE_RANKS, NARROW)),
}
_MANY_NODES: Final = 2
_HEADER: Final = """\
# Model errors of predictions by family, fitted to the tables in scenarios/published by: python benchmarks/intervals.py --write
# below, above: ends of the 90 % interval of log(measured / predicted time), in multiples of the scale
# `deviation * exp(sum of slope * covariate)`. without: the same with one source left out.
"""


class Scored(NamedTuple):
    """A scored row. table: its name, with the framework if that is the default one."""

    table: str
    family: str
    nodes: int
    configuration: Configuration

    @property
    def row(self) -> ErrorRow:
        """The row as the error model is fitted to it."""
        return self.configuration.row


def scored_rows(only: str | None = None) -> Iterator[Scored]:
    """Yields all rows that the error model is fitted to, predicted with constants that were fitted without the row's source.

    Intervals are from the priors alone. only: the table whose rows are taken; all if None.
    """
    for name, with_framework in [one for one in _TABLES if only in (None, one[0])]:
        title = name if with_framework else f"{name}, default framework"
        result = score(folder() / f"{name}.csv", Options(frameworks=with_framework, raw=True, leave_out=LEAVE_OUT_SOURCE))
        print(f"scored {title}: {len(result.predictions)} rows", flush=True)
        for one in result.predictions:
            if not one.skipped and one.uncertainty is not None and one.uncertainty.case.family is not None:
                yield _scored(title, one)


def _scored(title: str, one: Prediction) -> Scored:
    known = one.uncertainty
    assert known is not None
    case = known.case
    assert case.family is not None
    times = (1 / one.predicted, 1 / one.measured) if known.is_rate else (one.predicted, one.measured)
    covariates = {EXPOSED: float(log_exposed(known.exposed)), **case.covariates}
    row = ErrorRow(one.source, case.group, math.log(times[1] / times[0]), known.deviation, covariates)
    table = f"{title}, memory" if case.family == "memory" else title
    system = known.device, one.pairs[1] if len(one.pairs) > 1 else ""
    return Scored(table, case.family, one.nodes, Configuration(row, one.pairs[0], system, known.degrees, *times))


def kept_rows(path: Path | None, only: str | None = None) -> list[Scored]:
    """The rows in the file, or scored ones, which are then kept there. only: as in `scored_rows`."""
    if path is None:
        return list(scored_rows(only))
    if not path.is_file():
        rows = list(scored_rows(only))
        path.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    return [_read(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _read(line: Sequence[Any]) -> Scored:
    table, family, nodes, (row, model, system, degrees, *times) = line
    return Scored(table, family, nodes, Configuration(ErrorRow(*row), model, tuple(system), tuple(degrees), *times))


class Fitted(NamedTuple):
    """The fit of a family to all sources, and without each of them."""

    fit: Fit
    without: Mapping[str, Fit]


def fitted_families(rows: Sequence[Scored]) -> dict[str, Fitted]:
    """The fits by family."""
    families = {}
    for family, (names, ends, floor) in _FAMILIES.items():
        members = [one.row for one in rows if one.family == family]
        if members:
            families[family] = Fitted(fit(members, names, floor, ends), dict(left_out(members, names, floor, ends)))
    return families


def print_coverage(rows: Sequence[Scored], families: Mapping[str, Fitted]) -> None:
    """Prints the coverage with the row's source left out, and of the fit to all sources, by table, group and source."""
    print(f"\n{'90 % intervals, own source left out':46} rows  in 90 %: rows  sources  width   all sources: rows  width")
    for title in dict.fromkeys(one.table for one in rows):
        members = [one for one in rows if one.table == title]
        _print_line(title, members, families)
        for group in sorted({one.row.group for one in members}):
            _print_line(f"  {group}", [one for one in members if one.row.group == group], families)
        _print_line(f"  more than {_MANY_NODES} nodes", [one for one in members if one.nodes > _MANY_NODES], families)
        for source in sorted({one.row.source for one in members}):
            _print_line(f"    {source}", [one for one in members if one.row.source == source], families)


def _print_line(title: str, members: Sequence[Scored], families: Mapping[str, Fitted]) -> None:
    if not members:
        return
    of = families[members[0].family]
    rows = [one.row for one in members]
    out, everywhere = coverage(rows, of.without, of.fit), coverage(rows, {}, of.fit)
    print(
        f"{title:46} {len(rows):4}  {out.of_rows:13.1%}  {out.of_sources:7.1%}  {_width(out):5.2f}   "
        f"{everywhere.of_rows:17.1%}  {_width(everywhere):5.2f}"
    )


def _width(found: Coverage) -> float:
    return math.exp(float(found.width.mean()))


def print_shifts(rows: Sequence[Scored]) -> None:
    """Prints what shifting each prediction by the other sources' mean log error would do to the mean absolute log error."""
    print("\nmean |log error|, sources equal         as predicted  shifted by the mean of the other sources")
    for title in dict.fromkeys(one.table for one in rows):
        members = [one.row for one in rows if one.table == title]
        source, error = np.array([row.source for row in members]), np.array([row.log_error for row in members])
        if len(set(source.tolist())) < 2:
            continue
        shifts = np.zeros(len(error))
        for name in set(source.tolist()):
            others = source != name
            shifts[~others] = float((source_weights(source[others], 1.0) * error[others]).sum())
        weights = source_weights(source, 1.0)
        print(f"{title:46} {(weights * np.abs(error)).sum():8.3f}  {(weights * np.abs(error - shifts)).sum():8.3f}")


def fitted_pairs(rows: Sequence[Scored], training: Fitted) -> tuple[PairFit, dict[str, PairFit]]:
    """Prints the calibration curve of comparisons with sources left out, and fits pairs to all sources and without each."""
    configurations = [one.configuration for one in rows if one.table == "transformer_training" and one.family == "training"]
    pairs = pairs_of(configurations)
    chosen = without_other_models(pairs)
    shared = {
        source: PairFit(shared_errors(pairs.where(pairs.source != source), configurations, fitted))
        for source, fitted in training.without.items()
    }
    fits = {source: (fitted, shared[source]) for source, fitted in training.without.items()}
    probability = left_out_probabilities(chosen, configurations, fits)
    reversed_share = likeliest_reversed_share(probability, chosen)
    _print_curve("own source left out", chosen, with_reversals(probability, reversed_share))
    everywhere = PairFit(shared_errors(pairs, configurations, training.fit), reversed_share)
    _print_curve("fitted to all sources", chosen, first_is_faster(chosen, configurations, training.fit, everywhere))
    print(f"in common: {dict(everywhere.shared)}; reversed: {reversed_share:.2%}")
    return everywhere, {source: replace(one, reversed_share=reversed_share) for source, one in shared.items()}


def _print_curve(title: str, pairs: Pairs, probability: Any) -> None:
    print(f"\npairs of one model on one cluster, {title}\npredicted  came true  mean of sources  pairs")
    for point in curve(probability, pairs):
        print(f"{point.predicted:8.1%}  {point.came_true:9.1%}  {point.of_sources:15.1%}  {point.pairs:5}")


def written(families: Mapping[str, Fitted], pairs: PairFit, without: Mapping[str, PairFit], rows: Sequence[Scored]) -> str:
    """The content of the file of errors."""
    sources = sorted({source for one in families.values() for source in one.without})
    left = {}
    for source in sources:
        left[source] = {"families": {name: _plain(of.without[source]) for name, of in families.items() if source in of.without}}
        if source in without:
            left[source]["pairs"] = _plain_pairs(without[source])
    fits = {}
    for name, of in families.items():
        members = [one.row for one in rows if one.family == name]
        counts = {"rows": len(members), "sources": len({row.source for row in members})}
        fits[name] = counts | _plain(of.fit)
    content = {"families": fits, "pairs": _plain_pairs(pairs), "without": left}
    return _HEADER + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=128, allow_unicode=True)


def with_families(text: str, families: Mapping[str, Fitted], rows: Sequence[Scored]) -> str:
    """The content of the file of errors with some families in place of those that it has."""
    content, new = yaml.safe_load(text), yaml.safe_load(written(families, PairFit(), {}, rows))
    content["families"] |= new["families"]
    for source, fits in new["without"].items():
        of_source = content["without"].setdefault(source, {"families": {}})
        of_source["families"] |= fits["families"]
    content["without"] = dict(sorted(content["without"].items()))
    return _HEADER + yaml.safe_dump(content, sort_keys=False, default_flow_style=None, width=128, allow_unicode=True)


def _plain(fitted: Fit) -> dict[str, Any]:
    return {
        "deviation": fitted.deviation,
        "covariates": {name: vars(one) for name, one in fitted.covariates.items()},
        "groups": {name: {"below": below, "above": above} for name, (below, above) in fitted.ends.items()},
    }


def _plain_pairs(pairs: PairFit) -> dict[str, Any]:
    return {"shared": dict(pairs.shared), "reversed": pairs.reversed_share}


def main() -> None:
    """Scores, fits, prints coverage, and writes the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file that predictions read")
    parser.add_argument("--scored", type=Path, metavar="FILE", help="scored rows: read if the file exists, else written")
    parser.add_argument("--only", choices=_ALONE, metavar="TABLE", help="fit this table alone")
    options = parser.parse_args()
    rows = kept_rows(options.scored, options.only)
    families = fitted_families(rows)
    print_coverage(rows, families)
    print_shifts(rows)
    if options.only:
        if options.write:
            FILE.write_text(with_families(FILE.read_text(encoding="utf-8"), families, rows), encoding="utf-8")
            print(f"wrote {FILE}")
        return
    pairs, without = fitted_pairs(rows, families["training"])
    if options.write:
        FILE.parent.mkdir(exist_ok=True)
        FILE.write_text(written(families, pairs, without, rows), encoding="utf-8")
        print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
