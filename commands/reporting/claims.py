"""The command claims: test claims of published articles. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result, working

if TYPE_CHECKING:
    from scaleproof.proof.claims.claim import Claim
    from scaleproof.proof.claims.result import Result
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    claims = Command(commands, "claims", _claims)
    claims.parser.description = "Test claims of published articles by prediction, and by measurement in an emulated network."
    claims.add("NAME", "name of a claim, words of its text, or path of its YAML file (all claims)", dest="names", nargs="*")
    claims.add("--json", "print verdicts and values as JSON, in SI units")
    claims.add("--out DIR", "write claims.json and a figure of each claim (PNG and SVG) to DIR", type=Path)
    claims.add(
        "--on", "measure the claims that can be measured in an emulated network, and keep the results", choices=["netlab"]
    )


def _claims(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.claims import describe
    from scaleproof.proof.claims.claim import names, read
    from scaleproof.proof.claims.result import results_of

    claims = [read(name) for name in options.names or names()]
    if options.on:
        _measure([claim for claim in claims if claim.netlab or options.names])
    with working("predicting all scenarios, and locating borders"):
        results = results_of(claims)
        plain = [result.plain() for result in results] if options.json or options.out else []
    if options.out:
        _write(results, plain, options.out)
    return print_result(options, lambda: plain, lambda: describe(results, at_length=bool(options.names)))


def _measure(claims: list[Claim]) -> None:
    """Measures claims and keeps each result at once."""
    from scaleproof.proof.claims.measured import keep, measured

    for claim in claims:
        with working(f"measuring {claim.name}"):
            keep(claim.path.parent, claim.name, measured(claim, _trained(claim)))


def _trained(claim: Claim) -> Callable[[Scenario], Run]:
    """A function that trains a scenario in an emulated network, and verifies it if the claim is about the deviation."""
    from scaleproof.validator.measure import MeasureOptions, measure

    experiment = claim.netlab
    verify = experiment is not None and any("deviation" in experiment.quantity_of(name) for name in experiment.lines)
    return lambda scenario: measure(scenario, "netlab", MeasureOptions(timeout_s=120.0, verify=verify))


def _write(results: list[Result], plain: list[dict[str, Any]], folder: Path) -> None:
    import json

    from scaleproof.proof.claims.figure import figure
    from scaleproof.simulator.common.atomic_file import write_atomically
    from scaleproof.simulator.common.file_lock import locked_folder

    with locked_folder(folder, "claims"):
        write_atomically(folder / "claims.json", (json.dumps(plain, indent=2) + "\n").encode())
        for result in results:
            for form in ("png", "svg"):
                write_atomically(folder / f"{result.claim.name}.{form}", figure(result, form))
