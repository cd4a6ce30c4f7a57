"""The validator's commands: calibrate, reconcile, score, and those of commands_measure. Imports wait until a command runs."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from simulator.commands import add_scenario_arguments
from validator import commands_measure
from validator.commands_measure import add_place_arguments, positive

if TYPE_CHECKING:
    from simulator.run import Run
    from simulator.scenario import Scenario
    from validator.reconcile import Case
    from validator.session import Session


def mount(commands: Any) -> None:
    """Adds the commands to argparse's subparsers."""
    commands_measure.mount(commands)
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
    calibrate.add_argument("--timeout", type=positive, default=120.0, metavar="SECONDS", help="for each probe")
    calibrate.set_defaults(command=_calibrate)

    reconcile = commands.add_parser("reconcile", help="predict and run scenarios, and compare")
    add_scenario_arguments(reconcile, several=True)
    add_place_arguments(reconcile)
    reconcile.add_argument("--max-error", type=_share, metavar="25%", help="exit with 1 when a step time is further off")
    reconcile.add_argument("--out", type=Path, metavar="DIR", help="write runs and reconcile.json to DIR, for 'report'")
    reconcile.set_defaults(command=_reconcile)

    score = commands.add_parser("score", help="predict a table of published measurements, and say how far off")
    score.add_argument("table", type=Path, metavar="FILE.csv", help="with the columns of a table in scenarios/published")
    score.add_argument("--calibrated", action="store_true", help="fit constants on the rows it names, and leave those out")
    score.add_argument("--json", action="store_true", help="print the score as JSON")
    score.set_defaults(command=_score)


def _share(text: str) -> float:
    """0.25 from '25%' or '0.25'."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share; write it like 25%")
    return value


def _calibrate(options: argparse.Namespace) -> int:
    from simulator import library
    from simulator.errors import InputError
    from simulator.model import Gpt, Mlp
    from simulator.scenario import load_model
    from validator.calibrate import Plan, calibrate, write
    from validator.session import working

    names = options.models or ["gpt-mini", "mlp-mini"]
    models = [load_model(library.find_part("model", name, Path())) for name in names]
    trainable = [model for model in models if isinstance(model, Gpt | Mlp)]
    if len(trainable) < len(models):
        raise InputError("--model: only gpt and mlp models can be trained here")
    if any(ranks < 2 for ranks in options.groups):
        raise InputError("--groups: a group has at least 2 ranks")
    with working("calibrating") as status:

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
    print(f"{options.out}: {cluster['description']}")
    _print_calibrated(cluster, options.precision)
    return 0


def _print_calibrated(cluster: dict[str, Any], precision: str) -> None:
    """What was measured, a line each."""
    node, peak = cluster["node"], cluster["device"]["peak"][precision]
    print(f"  compute      {node['cores']:.2f} cores' worth when all work; {peak} in matmul")
    sums = {f"allreduce {m['ranks']}": m for m in cluster["collectives"]["allreduce"]}
    for name, link in {"messages": node["link"], **sums}.items():
        print(f"  {name:<12} {link['latency']} + size / {link['bandwidth']}")


def _reconcile(options: argparse.Namespace) -> int:
    from validator.measure import Watch
    from validator.session import Session

    session = Session(options, Watch(options.timeout, interface=options.interface))
    return session.told_once(partial(_reconcile_all, options, session))


def _reconcile_all(options: argparse.Namespace, session: Session) -> int:
    from simulator.errors import RunError
    from validator.reconcile import measured_folder, reconcile

    scenarios = session.scenarios()
    found = session.found(scenarios, partial(measured_folder, options.out) if options.out else None)

    def measured(scenario: Scenario) -> Run:
        return found.get(scenario.name) or session.measure(
            scenario, measured_folder(options.out, scenario) if options.out else None
        )

    if not session.speaks:
        for scenario in scenarios:
            if scenario.name not in found:
                # rank 0 tells
                with contextlib.suppress(RunError):
                    measured(scenario)
        return 0
    print(f"{'scenario':<24} {'predicted':>10} {'measured':>10} {'error':>7}")
    return _verdict(reconcile(scenarios, measured, options.out, options.max_error, _tell), options.max_error)


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
