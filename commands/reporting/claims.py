"""The command claims: what the field's articles say, and what comes of it. Imports wait until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scaleproof.reports.claims.claim import Claim
    from scaleproof.reports.claims.measured import Record
    from scaleproof.reports.claims.result import Result
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    claims = commands.add_parser(
        "claims",
        help="what the field's articles say: does it hold, when, and by which numbers",
        description="Test what the field's articles say, by forecasts, and by measurements in a network inside this machine.",
    )
    claims.add_argument("names", nargs="*", metavar="NAME", help="of a claim, or the path of one's YAML file; all, if none")
    claims.add_argument("--json", action="store_true", help="print verdicts and numbers as JSON, in SI units")
    claims.add_argument("--out", type=Path, metavar="DIR", help="write claims.json, and a figure of each claim as PNG and SVG")
    claims.add_argument("--on", choices=["netlab"], help="measure those that can be there, and keep what comes of it")
    claims.set_defaults(command=_claims)


def _claims(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from scaleproof.reports.claims import text
    from scaleproof.reports.claims.claim import names, read

    claims = [read(name) for name in options.names or names()]
    if options.on:
        _measure([claim for claim in claims if claim.netlab or options.names])
    with Console(stderr=True).status("predicting all scenarios, and bisecting borders"):
        results = _results(claims)
        plain = [result.plain() for result in results] if options.json or options.out else []
    if options.out:
        _write(results, plain, options.out)
    print(json.dumps(plain, indent=2) if options.json else text.describe(results, at_length=bool(options.names)))
    return 0


def _results(claims: list[Claim]) -> list[Result]:
    from scaleproof.reports.claims.evaluate import evaluate
    from scaleproof.reports.claims.measured import read_all
    from scaleproof.reports.claims.result import Result

    records: dict[Path, dict[str, Record]] = {folder: read_all(folder) for folder in {claim.path.parent for claim in claims}}
    return [Result(claim, evaluate(claim), records[claim.path.parent].get(claim.name)) for claim in claims]


def _measure(claims: list[Claim]) -> None:
    """Each is kept as soon as it is measured."""
    from rich.console import Console

    from scaleproof.reports.claims.measured import keep, measured

    console = Console(stderr=True)
    for claim in claims:
        with console.status(f"measuring {claim.name}"):
            keep(claim.path.parent, claim.name, measured(claim, _trained(claim)))


def _trained(claim: Claim) -> Callable[[Scenario], Run]:
    """Trains a scenario in a network inside this machine; compares it with one process where the claim is of that."""
    from scaleproof import MeasureOptions, measure

    experiment = claim.netlab
    verify = experiment is not None and any("deviation" in experiment.quantity_of(name) for name in experiment.lines)
    return lambda scenario: measure(scenario, "netlab", MeasureOptions(timeout_s=120.0, verify=verify))


def _write(results: list[Result], plain: list[dict[str, Any]], folder: Path) -> None:
    import json

    from scaleproof.reports.claims.figure import figure
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.simulator.run.run import write_aside

    with locked_folder(folder, "claims"):
        write_aside(folder / "claims.json", (json.dumps(plain, indent=2) + "\n").encode())
        for result in results:
            for form in ("png", "svg"):
                write_aside(folder / f"{result.claim.name}.{form}", figure(result, form))
