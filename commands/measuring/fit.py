"""The command fit: constants of a framework and a cluster from a few measured runs. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import SCENARIO, Command, positive
from scaleproof.commands.output import print_result, working


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    fit = Command(commands, "fit", _fit)
    where = (
        "runs: a CSV file with a step time or tokens/s and a column for each field that differs, results folders of measure, "
    )
    fit.add("RUNS", f"{where}and logs of training software", type=Path, nargs="+")
    fit.add("--scenario SCENARIO", f"the scenario of the runs, which is also predicted: {SCENARIO}")
    fit.add_overrides()
    where = "runs that are predicted and compared, and not given to the fit, such as larger ones"
    fit.add("--check RUNS", where, type=Path, nargs="+", default=[])
    fit.add("--target N", "predict the scenario on N GPUs (its own layout), and narrow that prediction", type=positive)
    fit.add("--gpus N", "largest number of GPUs of the run to measure next (the most of the runs)", type=positive)
    fit.add("--out FILE", "write the fitted framework file, for --set framework=FILE", type=Path)
    fit.add("--page DIR", "write fit.json and a page with figures to DIR", type=Path)
    fit.add("--json", "print the fit as JSON")


def _fit(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import by_section
    from scaleproof.reports.descriptions.fit import describe
    from scaleproof.validator.calibration.imports.reading import ImportNotes
    from scaleproof.validator.fitting import fit_file, record
    from scaleproof.validator.fitting.fit import fit

    notes = ImportNotes()
    with working("reading runs") as report:
        sizes = options.target, options.gpus
        found = fit(options.runs, options.scenario, options.overrides, *sizes, notes, report, options.check)
    if options.out:
        fit_file.write(options.out, found.posterior, found.runs, found.target)
    if options.page:
        _write_page(record.of(found), options.page)
    for note in notes.lines():
        print(f"note: {note}", file=sys.stderr)
    use = f"\n\n{options.out}: use it with --set framework={options.out}" if options.out else ""
    return print_result(options, lambda: record.of(found).to_dict(), lambda: by_section(describe(record.of(found))) + use)


def _write_page(found: Any, folder: Path) -> None:
    from scaleproof.reports.pages.page import build
    from scaleproof.validator.fitting import record

    record.write(found, folder)
    print(build(folder).path, file=sys.stderr)
