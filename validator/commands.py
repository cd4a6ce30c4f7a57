"""The validator's commands: measure, calibrate, reconcile, score. Imports wait until a command runs."""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.commands import add_scenario_arguments

if TYPE_CHECKING:
    from rich.status import Status

    from simulator.run import Run
    from simulator.scenario import Scenario
    from validator.measure import On
    from validator.reconcile import Case


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    measure = commands.add_parser("measure", help="run a scenario for real", description="Run a scenario for real.")
    add_scenario_arguments(measure)
    _add_place_arguments(measure)
    measure.add_argument("--json", action="store_true", help="print the run as JSON")
    measure.add_argument("--out", type=Path, metavar="DIR", help="write the run and its spans to DIR/measured")
    measure.set_defaults(command=_measure)

    calibrate = commands.add_parser("calibrate", help="measure this machine and write a cluster file")
    calibrate.add_argument("--on", choices=["local"], default="local", help="where: processes on this machine")
    calibrate.add_argument("--out", type=Path, required=True, metavar="FILE", help="the cluster file to write")
    calibrate.add_argument(
        "--model",
        action="append",
        dest="models",
        metavar="NAME",
        help="whose compute to measure (default: what the demo trains)",
    )
    calibrate.add_argument("--precision", choices=["fp32", "fp64", "bf16"], default="fp32")
    calibrate.add_argument("--groups", type=int, nargs="+", default=[2, 4], metavar="RANKS", help="sizes of allreduce groups")
    calibrate.add_argument("--timeout", type=_positive, default=120.0, metavar="SECONDS", help="for each probe")
    calibrate.set_defaults(command=_calibrate)

    reconcile = commands.add_parser("reconcile", help="predict and run scenarios, and compare")
    add_scenario_arguments(reconcile, several=True)
    _add_place_arguments(reconcile)
    reconcile.add_argument("--max-error", type=_share, metavar="25%", help="exit with 1 when a step time is further off")
    reconcile.add_argument("--out", type=Path, metavar="DIR", help="write runs and reconcile.json to DIR, for 'report'")
    reconcile.set_defaults(command=_reconcile)

    score = commands.add_parser("score", help="predict a table of published measurements, and say how far off")
    score.add_argument("table", type=Path, metavar="FILE.csv", help="with the columns of a table in scenarios/published")
    score.add_argument("--calibrated", action="store_true", help="fit constants on the rows it names, and leave those out")
    score.add_argument("--json", action="store_true", help="print the score as JSON")
    score.set_defaults(command=_score)


def _add_place_arguments(parser: argparse.ArgumentParser) -> None:
    where = "processes on this machine, on hosts of a network laid inside it, or those that torchrun or srun started"
    parser.add_argument("--on", choices=["local", "netlab", "cluster"], help=f"where: {where}")
    parser.add_argument(
        "--timeout", type=_positive, default=60.0, metavar="SECONDS", help="without progress, a rank counts as hung (60)"
    )


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of seconds")
    return value


def _share(text: str) -> float:
    """0.25 from '25%' or '0.25'."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it like 25%")
    return value


def _measure(options: argparse.Namespace) -> int:
    import json

    from simulator.commands import describe
    from simulator.run import save
    from simulator.scenario import load

    scenario = load(options.scenario, options.overrides)
    folder = options.out / "measured" if options.out else None
    run = _measurer(options.on, options.timeout, lambda _: folder)(scenario)
    if not _is_first_rank():
        return 0
    if folder:
        save(run, folder)
    print(json.dumps(run.summary(), indent=2) if options.json else describe(run))
    return 0


def _is_first_rank() -> bool:
    """Under torchrun or Slurm every rank runs the command, and one speaks."""
    from validator.place import place_in

    place = place_in(os.environ)
    return place is None or place.rank == 0


def _measurer(on: On | None, timeout_s: float, folder: Callable[[Scenario], Path | None]) -> Callable[[Scenario], Run]:
    """`measure` with progress on the terminal; `folder` tells where partial results of a failed run are kept."""
    from validator.measure import Watch, measure

    def measured(scenario: Scenario) -> Run:
        with _status(f"measuring {scenario.name}") as status:
            watch = Watch(
                timeout_s,
                folder(scenario),
                lambda step: status.update(f"measuring {scenario.name}: step {max(0, step)} of {scenario.steps}"),
            )
            return measure(scenario, on, watch)

    return measured


def _status(text: str) -> Status:
    """A line on stderr that says what is going on, while it goes on; silent where stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(text)


def _calibrate(options: argparse.Namespace) -> int:
    from simulator import library
    from simulator.errors import InputError
    from simulator.model import Gpt, Mlp
    from simulator.scenario import load_model
    from validator.calibrate import Plan, calibrate, write

    names = options.models or ["gpt-mini", "mlp-mini"]
    models = [load_model(library.find_part("model", name, Path())) for name in names]
    trainable = [model for model in models if isinstance(model, Gpt | Mlp)]
    if len(trainable) < len(models):
        raise InputError("--model: only gpt and mlp models can be trained here")
    if any(ranks < 2 for ranks in options.groups):
        raise InputError("--groups: a group has at least 2 ranks")
    with _status("calibrating") as status:

        def tell(text: str) -> None:
            status.update(f"calibrating: {text}")
            if not status.console.is_terminal:
                print(f"calibrating: {text}", file=sys.stderr, flush=True)

        plan = Plan(
            models=trainable,
            groups=options.groups,
            precision=options.precision,
            timeout_s=options.timeout,
            progress=tell,
        )
        cluster = calibrate(plan)
    write(cluster, options.out)
    node = cluster["node"]
    print(f"{options.out}: {cluster['description']}")
    peak = cluster["device"]["peak"][options.precision]
    print(f"  compute      {node['cores']:.2f} cores' worth when all work; {peak} in matmul")
    for name, link in [
        ("messages", node["link"]),
        *((f"allreduce {m['ranks']}", m) for m in cluster["collectives"]["allreduce"]),
    ]:
        print(f"  {name:<12} {link['latency']} + size / {link['bandwidth']}")
    return 0


def _reconcile(options: argparse.Namespace) -> int:
    from simulator.errors import InputError
    from simulator.scenario import load
    from validator.checks import check_trainable
    from validator.reconcile import reconcile

    scenarios = [load(reference, options.overrides) for reference in options.scenarios]
    for scenario in scenarios:
        check_trainable(scenario)
    names = [scenario.name for scenario in scenarios]
    if len(set(names)) < len(names):
        raise InputError("two scenarios have the same name; results are kept by name, give each its own")

    def folder(scenario: Scenario) -> Path | None:
        return options.out / "runs" / scenario.name / "measured" if options.out else None

    print(f"{'scenario':<24} {'predicted':>10} {'measured':>10} {'error':>7}")
    cases = reconcile(scenarios, _measurer(options.on, options.timeout, folder), options.out, options.max_error, _tell)
    return _verdict(cases, options.max_error)


def _score(options: argparse.Namespace) -> int:
    import json

    from validator.published import describe, score

    result = score(options.table, options.calibrated)
    print(json.dumps(result.plain(), indent=2) if options.json else describe(result))
    return 0


def _tell(case: Case) -> None:
    """One line for the scenario and one for each phase, as soon as it is measured."""
    from simulator.run import Phase
    from simulator.units import format_time_s

    if case.measured is None or case.error is None:
        predicted = format_time_s(case.predicted.step_time_s)
        print(f"{case.scenario.name:<24} {predicted:>10} {'failed':>10}", flush=True)
        return
    measured = case.measured
    times = f"{format_time_s(case.predicted.step_time_s):>10} {format_time_s(measured.step_time_s):>10}"
    print(f"{case.scenario.name:<24} {times} {case.error:>+7.1%}")
    for phase in Phase:
        pair = case.predicted.phase_s[phase.label], measured.phase_s[phase.label]
        if any(pair):
            print(f"  {phase.label:<22} {format_time_s(pair[0]):>10} {format_time_s(pair[1]):>10}")
    sys.stdout.flush()


def _verdict(cases: Sequence[Case], max_error: float | None) -> int:
    """The closing lines, and the exit code: 1 when a run failed or an error is larger than allowed."""
    errors = {case.scenario.name: abs(case.error) for case in cases if case.error is not None}
    failed = [case for case in cases if case.error is None]
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        print(f"median error {statistics.median(errors.values()):.1%}, worst {errors[worst]:.1%} ({worst}), {len(errors)} runs")
    for case in failed:
        print(f"{case.scenario.name} could not be measured: {case.failure}", file=sys.stderr)
    too_far = [name for name, error in errors.items() if max_error is not None and error > max_error]
    for name in too_far:
        print(f"{name}: error {errors[name]:.1%} exceeds {max_error:.1%}", file=sys.stderr)
    return 1 if failed or too_far else 0
