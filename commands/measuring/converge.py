"""The command converge: how many updates a target loss takes, measured by batch and staleness. Imports wait until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from scaleproof.commands.arguments import add_scenario_arguments
from scaleproof.commands.measuring.measure import positive

if TYPE_CHECKING:
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.experiments.convergence.convergence import Setting
    from scaleproof.validator.experiments.convergence.record import Record

_N = TypeVar("_N", int, float)
_AROUND: Final = (1 / 3, 1.0, 3.0)


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    converge = commands.add_parser(
        "converge",
        help="measure how many updates a target loss takes, by batch and staleness",
        description="Train a small problem for real by several batches, and by servers that wait for nobody, and fit the "
        "model of convergence that a scenario's `convergence` has.",
    )
    add_scenario_arguments(converge)
    converge.add_argument("--target", type=_number, required=True, metavar="LOSS", help="to be reached")
    converge.add_argument("--batches", type=_wholes, default=[], metavar="N,N", help="samples of a step, all workers in step")
    converge.add_argument(
        "--workers",
        type=_wholes,
        default=[],
        metavar="N,N",
        help="how many go each on its own, with the scenario's own samples",
    )
    converge.add_argument(
        "--bounds", type=_bounds, default=[], metavar="N,N", help="the same, no worker so many steps ahead of another"
    )
    converge.add_argument(
        "--rates",
        type=_numbers,
        default=[],
        metavar="X,X",
        help="learning rates, of which the best counts (a third to 3 times)",
    )
    converge.add_argument("--seeds", type=int, choices=range(1, 101), default=1, metavar="N", help="runs of each (1)")
    converge.add_argument(
        "--on", choices=["local", "netlab"], default="local", help="where: processes, or a lab's hosts (local)"
    )
    converge.add_argument(
        "--timeout", type=positive, default=60.0, metavar="SECONDS", help="without progress, a rank hangs (60)"
    )
    converge.add_argument("--out", type=Path, metavar="DIR", help="keep trials as they end, and a piece of YAML, in DIR")
    converge.add_argument("--resume", action="store_true", help="go on with the trials in --out")
    converge.add_argument("--json", action="store_true", help="print fit and trials as JSON")
    converge.set_defaults(command=_converge)


def _converge(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.convergence import describe, notes, plain
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import locked_folder
    from scaleproof.simulator.scenario.load import load
    from scaleproof.validator.calibration.fit.curve_fitting.convergence import fit_convergence
    from scaleproof.validator.experiments.convergence import convergence
    from scaleproof.validator.experiments.convergence.record import Record

    if options.resume and options.out is None:
        raise InputError("--resume goes on with what is in a folder; name it by --out DIR")
    scenario = load(options.scenario, options.overrides)
    convergence.check(scenario)
    settings = _settings(options, scenario)
    rates = options.rates or [factor * scenario.training.learning_rate for factor in _AROUND]
    wanted = [(setting, rate, seed) for setting in settings for rate in rates for seed in range(options.seeds)]
    with locked_folder(options.out, "a convergence measurement") if options.out else nullcontext():
        record = Record.opened(options.out, scenario, options.target, options.on, options.resume)
        _train(options, scenario, [one for one in wanted if not record.has(*one)], record)
        asked = [trial for trial in record.trials if (trial.setting, trial.rate, trial.seed) in wanted]
        chosen = convergence.chosen(asked)
        fitted = fit_convergence(convergence.by_setting(chosen))
        told = describe(scenario, options.target, chosen, fitted)
        record.keep(fitted, told)
    for note in notes(scenario, chosen, fitted):
        print(f"note: {note}", file=sys.stderr)
    print(json.dumps(plain(asked, chosen, fitted), indent=2) if options.json else told)
    return 0


def _settings(options: argparse.Namespace, scenario: Scenario) -> list[Setting]:
    """All of them, each known to be trainable. Raises InputError."""
    from scaleproof.validator import measure as measuring
    from scaleproof.validator.experiments.convergence import convergence

    each = scenario.samples_per_worker
    batches = options.batches or [scenario.strategy.workers * each * factor for factor in (1, 2, 4)]
    found = convergence.settings(scenario, batches, options.workers, options.bounds)
    for setting in found:
        trained = convergence.scenario_of(scenario, setting, scenario.training.learning_rate, 0)
        measuring.check(trained, options.on, None)
    return found


def _train(
    options: argparse.Namespace, scenario: Scenario, wanted: Sequence[tuple[Setting, float, int]], record: Record
) -> None:
    """The trials that are wanted, each kept as it ends."""
    from scaleproof.commands.measuring.session import working
    from scaleproof.validator.experiments.convergence.convergence import train
    from scaleproof.validator.measure import MeasureOptions, measure

    watch = MeasureOptions(options.timeout)
    with working("training") as status:
        trials = train(scenario, wanted, options.target, lambda trained: measure(trained, options.on, watch))
        for number, (setting, rate, _) in enumerate(wanted):
            status.update(f"training {number + 1} of {len(wanted)}: {setting}, rate {rate:g}")
            try:
                record.add(next(trials))
            except KeyboardInterrupt:
                if options.out:
                    print(f"{len(record.trials)} trials are in {options.out}; --resume goes on", file=sys.stderr)
                raise


def _listed(text: str, read: Callable[[str], _N], least: float, what: str) -> list[_N]:
    """Numbers between commas, each once."""
    try:
        numbers = [read(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(least <= number < float("inf") for number in numbers):
        raise argparse.ArgumentTypeError(f"expected {what} between commas, got {text!r}")
    return list(dict.fromkeys(numbers))


def _wholes(text: str) -> list[int]:
    return _listed(text, int, 1, "whole numbers of at least 1")


def _bounds(text: str) -> list[int]:
    return _listed(text, int, 0, "whole numbers of at least 0")


def _numbers(text: str) -> list[float]:
    return _listed(text, float, 1e-12, "numbers above zero")


def _number(text: str) -> float:
    return _listed(text, float, 1e-12, "a number above zero, and none")[0]
