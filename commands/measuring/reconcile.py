"""The command reconcile: compare predictions with measured runs. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command, positive, share
from scaleproof.commands.measuring.measure import add_place_arguments
from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.common.units import format_change, format_percent

if TYPE_CHECKING:
    from scaleproof.commands.measuring.session import Session
    from scaleproof.simulator.run.explanation import Explanation
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.run.step_times import StepComparison
    from scaleproof.simulator.scenario.schema import Scenario
    from scaleproof.validator.reconciliation.reconcile import ReconciledCase
    from scaleproof.validator.reconciliation.refit import Refit

# The table is printed row by row, so that its widths do not follow from its cells.
_WIDTHS: Final = (24, 10, 10, 7, 7)
_LOG_FORMATS: Final = (
    "torchtitan", "megatron-lm", "nemo", "deepspeed", "nanotron", "lightning", "hf-trainer", "maxtext",
    "wandb-csv",
)  # fmt: skip
_SCRIPT_STEPS: Final = 10
_INSIDE: Final = {True: "yes", False: "no", None: "-"}


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    reconcile = Command(commands, "reconcile", _reconcile)
    reconcile.add_scenario(several=True)
    add_place_arguments(reconcile)
    reconcile.add("--trace FILE", "traces of a job that runs elsewhere, one per rank", nargs="+", type=Path, default=[])
    reconcile.add(
        "--log FILE",
        "log of that job: torchtitan, Megatron-LM, NeMo, DeepSpeed, nanotron, Lightning, HF Trainer, MaxText or W&B",
        type=Path,
    )
    reconcile.add("--log-format NAME", "format of the log, if it is not found", choices=_LOG_FORMATS)
    reconcile.add("--script", "the words after -- start a training script: capture it, run it, predict it and compare")
    reconcile.add("--ranks N", "ranks of that script, on this machine", type=positive)
    reconcile.add("--cluster NAME", "cluster that describes where the script runs; without it, this machine is measured first")
    reconcile.add(
        "--script-steps N", f"steps of that script that are measured ({_SCRIPT_STEPS})", type=positive, default=_SCRIPT_STEPS
    )
    reconcile.add("--json", "print the comparison as JSON, with --trace, --log or --script")
    reconcile.add("--max-error 25%", "exit with code 1 if the error of a step time is larger", type=share)
    reconcile.add("--explain", "print all components of each difference")
    reconcile.add("--steps", "also compare the distributions of the times of single steps")
    reconcile.add("--update FILE", "refit this cluster file to the measurements", type=Path)
    reconcile.add("--out DIR", "write runs and reconcile.json to DIR, for 'report'", type=Path)


def _reconcile(options: argparse.Namespace) -> int:
    if options.script:
        return _reconcile_script(options)
    if options.trace or options.log is not None:
        return _reconcile_job(options)
    from scaleproof.commands.measuring.session import Session
    from scaleproof.validator.measure import MeasureOptions

    session = Session(options, MeasureOptions(options.timeout, interface=options.interface))
    return session.report_once(partial(_reconcile_all, options, session))


def _reconcile_job(options: argparse.Namespace) -> int:
    from scaleproof.commands.measuring.real_job import reconcile_job

    cases = reconcile_job(options)
    _remember(cases, options)
    return _exit_code(cases, options.max_error)


def _reconcile_script(options: argparse.Namespace) -> int:
    from scaleproof.commands.measuring.script_job import reconcile_script_job

    cases = reconcile_script_job(options)
    _remember(cases, options)
    return _exit_code(cases, options.max_error)


def _reconcile_all(options: argparse.Namespace, session: Session) -> int:
    from scaleproof.commands.text.runs import describe_steps
    from scaleproof.simulator.common.errors import RunError
    from scaleproof.simulator.scenario.read import load_cluster
    from scaleproof.validator.reconciliation.reconcile import measured_folder, reconcile

    if options.update is not None:
        # fail early, before hours are spent on measuring
        load_cluster(options.update)
    scenarios = session.scenarios()
    completed = session.completed(scenarios, partial(measured_folder, options.out) if options.out else None)

    def measured(scenario: Scenario) -> Run:
        return completed.get(scenario.name) or session.measure(
            scenario, measured_folder(options.out, scenario) if options.out else None
        )

    if not session.prints:
        for scenario in scenarios:
            if scenario.name not in completed:
                # rank 0 reports the error
                with contextlib.suppress(RunError):
                    measured(scenario)
        return 0
    print(*table([("scenario", "predicted", "measured", "error", "in 90%")], widths=_WIDTHS, gap=1))
    report = partial(_print_case, _parts if options.explain else _sentences, describe_steps if options.steps else _no_steps)
    cases = reconcile(scenarios, measured, options.out, options.max_error, report)
    code = _verdict(cases, options.max_error)
    _remember(cases, options)
    return code


def _remember(cases: Sequence[ReconciledCase], options: argparse.Namespace) -> None:
    """Appends to the history in the output folder, and refits the cluster file that --update names."""
    from scaleproof.validator.reconciliation import history, refit

    if options.out is not None:
        history.append_cases(cases, options.out)
        for cluster in {history.fingerprint(case.scenario.cluster): case.scenario.cluster for case in cases}.values():
            # a cluster without a date was not measured
            if "date" in cluster.provenance:
                history.append_cluster(cluster, options.out)
    if options.update is not None:
        print(describe_refit(refit.update(options.update, cases), options.update))


def describe_refit(result: Refit, path: Path) -> str:
    """Console text of a refit, and whether the file was updated."""
    medians = f"{format_percent(result.median_before)} → {format_percent(result.median_after)}"
    lines = [f"refit to {len(result.errors_before)} runs; median error of held-out step times: {medians}"]
    if result.improves:
        rows = ((one.quantity, one.before, "→", one.after, f"{one.low} to {one.high}") for one in result.changes)
        lines += table(rows, "<><<", (22, 12, 1, 12), gap=1, indent="  ")
    lines += [f"  not used: {name}: {why}" for name, why in result.left_out.items()]
    verdict = "updated" if result.improves else "unchanged: held-out runs are not significantly better predicted"
    return "\n".join([*lines, f"{path}: {verdict}"])


def _no_steps(_: StepComparison | None) -> list[str]:
    return []


def _print_case(
    explain: Callable[[Explanation], list[str]], steps: Callable[[StepComparison | None], list[str]], case: ReconciledCase
) -> None:
    """Prints a line for the scenario, one for each phase, lines on single steps, and the explanation of the difference."""
    from scaleproof.simulator.common.spans import Phase
    from scaleproof.simulator.common.units import format_time_s

    name, predicted = case.scenario.name, format_time_s(case.predicted.step_time_s)
    if case.measured is None or case.error is None or case.explanation is None:
        print(*table([(name, predicted, "failed")], widths=_WIDTHS, gap=1), flush=True)
        return
    rows = [(name, predicted, format_time_s(case.measured.step_time_s), format_change(case.error), _INSIDE[case.inside])]
    for phase in Phase:
        pair_s = case.predicted.phase_s[phase.label], case.measured.phase_s.get(phase.label, 0.0)
        if any(pair_s):
            rows.append((f"  {phase.label}", format_time_s(pair_s[0]), format_time_s(pair_s[1]), "", ""))
    head, *phases = table(rows, widths=_WIDTHS, gap=1)
    framework = f"  framework: {case.predicted.framework_words}"
    what = "run" if case.measured.disturbed else "calibration of its cluster"
    disturbed = [f"  not counted: other work disturbed the {what}"] if case.disturbed else []
    print("\n".join([head, framework, *disturbed, *phases, *steps(case.steps), *explain(case.explanation)]), flush=True)


def _sentences(explanation: Explanation) -> list[str]:
    """The explanation as wrapped sentences."""
    return [line for sentence in explanation.sentences for line in wrapped(sentence, "  ", "    ")]


def _parts(explanation: Explanation) -> list[str]:
    """The explanation as sentences and a table of components: predicted, measured, and contribution to the difference."""
    from scaleproof.simulator.common.units import format_change_s, format_time_s
    from scaleproof.validator.reconciliation.explain import label

    def time(seconds: float | None) -> str:
        return "-" if seconds is None else format_time_s(seconds)

    rows = [("part of the difference", "predicted", "measured", "effect")]
    for part in explanation.parts:
        if part.difference_s or part.predicted_s or part.measured_s:
            effect = format_change_s(part.difference_s)
            rows.append((f"  {label(part.name)}", time(part.predicted_s), time(part.measured_s), effect))
    rows.append(("  total", "", "", format_change_s(explanation.difference_s)))
    return [*_sentences(explanation), *table(rows, widths=(22, 10, 10, 10), gap=1, indent="  ")]


def _verdict(cases: Sequence[ReconciledCase], max_error: float | None) -> int:
    """The closing lines, and the exit code: 1 when a run failed or an error is larger than allowed."""
    disturbed = [case.scenario.name for case in cases if case.disturbed]
    counted = [case for case in cases if not case.disturbed]
    errors = {case.scenario.name: abs(case.error) for case in counted if case.error is not None}
    failed = [case for case in cases if case.error is None]
    if errors:
        worst = max(errors, key=lambda name: errors[name])
        median = format_percent(statistics.median(errors.values()))
        print(f"median error {median}, worst {format_percent(errors[worst])} ({worst}), {len(errors)} runs")
    inside = [case.inside for case in counted if case.inside is not None]
    if inside:
        print(f"{sum(inside)} of {len(inside)} measured values inside their 90 % intervals")
    if disturbed:
        names = ", ".join(disturbed)
        words = f"not counted, since other work disturbed them or their calibration: {names}; measure again on a quiet machine"
        print("\n".join(wrapped(words)))
    for case in failed:
        print(f"{case.scenario.name} could not be measured: {case.failure}", file=sys.stderr)
    return _exit_code(cases, max_error)


def _exit_code(cases: Sequence[ReconciledCase], max_error: float | None) -> int:
    """1 when a run failed or an error is larger than allowed, which is printed."""
    errors = {case.scenario.name: abs(case.error) for case in cases if case.error is not None}
    too_far = [name for name, error in errors.items() if max_error is not None and error > max_error]
    for name in too_far:
        limit = format_percent(max_error or 0.0)
        print(f"{name}: error {format_percent(errors[name])} exceeds {limit}", file=sys.stderr)
    return 1 if too_far or any(case.error is None for case in cases) else 0
