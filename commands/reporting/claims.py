"""The command claims: test claims of published articles. Imports are deferred until it runs."""

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
        help="test claims of published articles: whether, and under which conditions, they hold",
        description="Test claims of published articles by prediction, and by measurement in an emulated network.",
    )
    claims.add_argument("names", nargs="*", metavar="NAME", help="name of a claim, or path of its YAML file (all claims)")
    claims.add_argument("--json", action="store_true", help="print verdicts and values as JSON, in SI units")
    claims.add_argument(
        "--out", type=Path, metavar="DIR", help="write claims.json and a figure of each claim (PNG and SVG) to DIR"
    )
    claims.add_argument(
        "--on", choices=["netlab"], help="measure the claims that can be measured in an emulated network, and keep the results"
    )
    claims.set_defaults(command=_claims)


def _claims(options: argparse.Namespace) -> int:
    import json

    from rich.console import Console

    from scaleproof.reports.claims import text
    from scaleproof.reports.claims.claim import names, read

    claims = [read(name) for name in options.names or names()]
    if options.on:
        _measure([claim for claim in claims if claim.netlab or options.names])
    with Console(stderr=True).status("predicting all scenarios, and locating borders"):
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
    """Measures claims and keeps each result at once."""
    from rich.console import Console

    from scaleproof.reports.claims.measured import keep, measured

    console = Console(stderr=True)
    for claim in claims:
        with console.status(f"measuring {claim.name}"):
            keep(claim.path.parent, claim.name, measured(claim, _trained(claim)))


def _trained(claim: Claim) -> Callable[[Scenario], Run]:
    """A function that trains a scenario in an emulated network, and verifies it if the claim is about the deviation."""
    from scaleproof import MeasureOptions, measure

    experiment = claim.netlab
    verify = experiment is not None and any("deviation" in experiment.quantity_of(name) for name in experiment.lines)
    return lambda scenario: measure(scenario, "netlab", MeasureOptions(timeout_s=120.0, verify=verify))


def _write(results: list[Result], plain: list[dict[str, Any]], folder: Path) -> None:
    import json

    from scaleproof.reports.claims.figure import figure
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.simulator.run.files import write_atomically

    with locked_folder(folder, "claims"):
        write_atomically(folder / "claims.json", (json.dumps(plain, indent=2) + "\n").encode())
        for result in results:
            for form in ("png", "svg"):
                write_atomically(folder / f"{result.claim.name}.{form}", figure(result, form))
