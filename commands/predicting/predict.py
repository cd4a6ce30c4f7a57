"""The command predict: predict the run of a scenario."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from scaleproof.commands.arguments import add_scenario_arguments


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    predict = commands.add_parser(
        "predict",
        help="predict step time, memory and cost of a scenario",
        description="Predict step time, throughput, memory and cost of a scenario.",
    )
    add_scenario_arguments(predict)
    predict.add_argument("--json", action="store_true", help="print the run as JSON")
    predict.add_argument("--out", type=Path, metavar="DIR", help="write the run and its spans to DIR/predicted")
    predict.add_argument("--trace", type=Path, metavar="FILE", help="write the timeline as Chrome trace JSON (for Perfetto)")
    predict.set_defaults(command=_predict)


def _predict(options: argparse.Namespace) -> int:
    import json

    from scaleproof.commands.text.run import describe
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_folder
    from scaleproof.simulator.predict import predict
    from scaleproof.simulator.run import chrome_trace
    from scaleproof.simulator.run.files import save
    from scaleproof.simulator.scenario import dump
    from scaleproof.simulator.scenario.load import load

    scenario = load(options.scenario, options.overrides)
    run = predict(scenario)
    if options.out:
        with locked_folder(options.out, "predict", PATIENCE_S):
            dump.keep(scenario, options.out)
            save(run, options.out / "predicted")
    if options.trace:
        chrome_trace.write(run, options.trace)
    print(json.dumps(run.summary(), indent=2) if options.json else describe(run))
    return 0
