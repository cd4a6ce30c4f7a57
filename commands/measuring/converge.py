"""The command converge: measure the updates to a target loss by batch and staleness. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaleproof.commands.arguments import Command, number
from scaleproof.commands.output import print_result, working

if TYPE_CHECKING:
    from scaleproof.proof.convergence.convergence import Setting
    from scaleproof.proof.convergence.record import Record
    from scaleproof.simulator.scenario.schema import Scenario

_N = TypeVar("_N", int, float)
# Multiples of the scenario's learning rate that are tried by default.
_RATE_FACTORS: Final = (1 / 3, 1.0, 3.0)


def _each(parse: Callable[[str], _N]) -> Callable[[str], list[_N]]:
    """A function that parses numbers separated by commas, and leaves out repetitions."""
    return lambda text: list(dict.fromkeys(map(parse, text.split(","))))


_wholes = _each(number(int, lambda value: value >= 1, "whole numbers of at least 1, separated by commas"))
_bounds = _each(number(int, lambda value: value >= 0, "whole numbers of at least 0, separated by commas"))
_rates = _each(number(float, lambda value: 1e-12 <= value < math.inf, "numbers above zero, separated by commas"))
_loss = number(float, lambda value: 1e-12 <= value < math.inf, "a number above zero")


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    converge = Command(commands, "converge", _converge)
    converge.parser.description = (
        "Train a small problem with several batch sizes and with asynchronous parameter servers, and fit the convergence "
        "model that the field `convergence` of a scenario uses."
    )
    converge.add_scenario()
    converge.add("--target LOSS", "training loss to reach", type=_loss, required=True)
    converge.add("--batches N,N", "samples per step of synchronous training", type=_wholes, default=[])
    converge.add(
        "--workers N,N", "numbers of asynchronous workers, with the scenario's samples per worker", type=_wholes, default=[]
    )
    converge.add(
        "--bounds N,N", "bounds of stale synchronous training: steps by which a worker may be ahead", type=_bounds, default=[]
    )
    converge.add(
        "--rates X,X",
        "learning rates to try; the best of each setting is used (1/3, 1 and 3 times the scenario's)",
        type=_rates,
        default=[],
    )
    converge.add("--seeds N", "runs of each setting and learning rate (1)", type=int, choices=range(1, 101), default=1)
    converge.add(
        "--on",
        "where to train: processes on this machine, or hosts of an emulated network inside it (local)",
        choices=["local", "netlab"],
        default="local",
    )
    converge.add_timeout("time without progress after which a rank counts as hung", 60.0)
    converge.add("--out DIR", "write trials as they end, and the fitted YAML, to DIR", type=Path)
    converge.add("--resume", "continue with the trials in --out")
    converge.add("--json", "print the fit and the trials as JSON")


def _converge(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.convergence import describe, notes, plain
    from scaleproof.proof.convergence import convergence
    from scaleproof.proof.convergence.fit import fit_convergence
    from scaleproof.proof.convergence.record import Record
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.simulator.scenario.load import load

    if options.resume and options.out is None:
        raise InputError("--resume continues an earlier run; name its folder with --out DIR")
    scenario = load(options.scenario, options.overrides)
    convergence.check(scenario)
    settings = _settings(options, scenario)
    rates = options.rates or [factor * scenario.training.learning_rate for factor in _RATE_FACTORS]
    wanted = [(setting, rate, seed) for setting in settings for rate in rates for seed in range(options.seeds)]
    with locked_folder(options.out, "a convergence measurement") if options.out else nullcontext():
        record = Record.opened(options.out, scenario, options.target, options.on, options.resume)
        _train(options, scenario, [one for one in wanted if not record.has(*one)], record)
        trials = [trial for trial in record.trials if (trial.setting, trial.rate, trial.seed) in wanted]
        chosen = convergence.chosen(trials)
        fitted = fit_convergence(convergence.by_setting(chosen))
        text = describe(scenario, options.target, chosen, fitted)
        record.keep(fitted, text)
    for note in notes(scenario, chosen, fitted):
        print(f"note: {note}", file=sys.stderr)
    return print_result(options, lambda: plain(trials, chosen, fitted), lambda: text)


def _settings(options: argparse.Namespace, scenario: Scenario) -> list[Setting]:
    """The settings to train, each checked. Raises InputError if one cannot be trained."""
    from scaleproof.proof.convergence import convergence
    from scaleproof.validator.preflight.checks import check

    samples = scenario.samples_per_worker
    batches = options.batches or [scenario.strategy.workers * samples * factor for factor in (1, 2, 4)]
    settings = convergence.settings(scenario, batches, options.workers, options.bounds)
    for setting in settings:
        trained = convergence.scenario_of(scenario, setting, scenario.training.learning_rate, 0)
        check(trained, options.on, None)
    return settings


def _train(
    options: argparse.Namespace, scenario: Scenario, wanted: Sequence[tuple[Setting, float, int]], record: Record
) -> None:
    """Runs the wanted trials and records each as it ends."""
    from scaleproof.proof.convergence.convergence import train
    from scaleproof.validator.measure import MeasureOptions, measure

    watch = MeasureOptions(options.timeout)
    with working("training") as update:
        trials = train(scenario, wanted, options.target, lambda trained: measure(trained, options.on, watch))
        for number, (setting, rate, _) in enumerate(wanted):
            update(f"training {number + 1} of {len(wanted)}: {setting}, rate {rate:g}")
            try:
                record.add(next(trials))
            except KeyboardInterrupt as error:
                if options.out:
                    error.add_note(f"{len(record.trials)} trials are in {options.out}; --resume continues")
                raise
