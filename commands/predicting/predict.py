"""The command predict: predict the run of a scenario."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.config_files import reference
from scaleproof.commands.gpus import add_gpus, loaded, say_precision
from scaleproof.commands.output import print_result
from scaleproof.simulator.common.errors import ExitCode

if TYPE_CHECKING:
    from scaleproof.simulator.run.run import Run
    from scaleproof.simulator.scenario.schema import Scenario


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    predict = Command(commands, "predict", _predict)
    predict.add_scenario_or_files()
    predict.add_overrides()
    add_gpus(predict)
    code = ExitCode.OUT_OF_MEMORY
    predict.parser.epilog = f"Exit code {code}: the scenario is predicted, and does not fit into its devices' memory."
    predict.add("--allow-oom", f"exit with 0 instead of {code} if memory does not suffice")
    predict.add_tokens()
    predict.add("--steps", "also print the distribution of the times of single steps, and the sources of their variation")
    predict.add("--memory", "also print what PyTorch's caching allocator reserves, its fragmentation, and when the peak occurs")
    predict.add("--json", "print the run as JSON")
    predict.add("--raw", "interval from the priors of the cluster alone, without the errors of published runs")
    predict.add("--evidence", "also print published runs that are similar, and how well they are predicted")
    predict.add("--out DIR", "write the run and its spans to DIR/predicted", type=Path)
    predict.add("--trace FILE", "write the timeline as Chrome trace JSON (for Perfetto)", type=Path)


def write(scenario: Scenario, run: Run, folder: Path) -> None:
    """Writes a scenario and its predicted run to a folder, as a page needs them."""
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder
    from scaleproof.simulator.run.files import save
    from scaleproof.simulator.scenario import dump

    with locked_folder(folder, "predict", PATIENCE_S):
        dump.keep(scenario, folder)
        save(run, folder / "predicted")


def _predict(options: argparse.Namespace) -> int:
    from scaleproof.commands.text.sections import described
    from scaleproof.reports.descriptions.runs import describe
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.uncertainty.error_model import RAW

    scenario = loaded(*reference(options), options.gpus)
    say_precision(scenario)
    run = predict(scenario, errors=RAW if options.raw else None)
    if options.out:
        write(scenario, run, options.out)
    if options.trace:
        from scaleproof.simulator.run import chrome_trace

        chrome_trace.write(run, options.trace)
    details = list(_details(options, scenario, run))
    print_result(
        options,
        lambda: run.to_dict() | {name: value for data, _ in details for name, value in data.items()},
        lambda: "\n".join([described(describe(run)), *(line for _, lines in details for line in lines)]),
    )
    return ExitCode.OUT_OF_MEMORY if run.fits is False and not options.allow_oom else ExitCode.DONE


def _details(options: argparse.Namespace, scenario: Scenario, run: Run) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """What options request in addition to the run, as plain data and as lines of text."""
    from scaleproof.commands.text.sections import facts_text, section_lines
    from scaleproof.reports.descriptions import runs

    if options.steps:
        # the run has the data
        yield {}, facts_text([runs.steps(run)])
    if options.memory:
        from scaleproof.reports.descriptions import allocator as descriptions
        from scaleproof.simulator.memory.allocator import allocator_use

        fixed, expandable = (allocator_use(scenario, expandable=segments) for segments in (False, True))
        allocator = {"fixed_segments": fixed.plain(), "expandable_segments": expandable.plain()}
        yield {"allocator": allocator}, facts_text([descriptions.describe(fixed, expandable)])
    if options.tokens:
        from scaleproof.simulator.run.totals import TrainingTotals

        totals = TrainingTotals.of_run(run, options.tokens, scenario.cluster.electricity.carbon_kg_per_J)
        yield {"training": totals.to_dict()}, facts_text([runs.totals(totals)])
    if options.evidence:
        from scaleproof.reports.descriptions.evidence import describe, summary
        from scaleproof.simulator.analysis.evidence import evidence

        found = evidence(scenario)
        yield {"evidence": found.to_dict()}, ["", f"evidence: {summary(found)}", *section_lines(describe(found))]
