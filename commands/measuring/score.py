"""The command score: compare predictions with published measurements."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    score = commands.add_parser("score", help="predict published measurements and print the errors")
    where = "table with the columns of those in scenarios/published, or a folder of tables (all shipped tables)"
    score.add_argument("tables", type=Path, nargs="*", metavar="FILE.csv", help=where)
    score.add_argument(
        "--calibrated", action="store_true", help="fit constants on the rows marked for calibration, and leave those rows out"
    )
    score.add_argument("--rows", type=Path, metavar="OUT.csv", help="write one line per scored row")
    score.add_argument(
        "--ablate",
        action="append",
        default=[],
        metavar="NAME",
        help="switch off a mechanism of frameworks, such as host; may be repeated",
    )
    score.add_argument(
        "--default-framework",
        action="store_true",
        help="use the default framework for training runs instead of the published one",
    )
    score.add_argument("--json", action="store_true", help="print the score as JSON")
    score.set_defaults(command=_score)


def _score(options: argparse.Namespace) -> int:
    import json

    from scaleproof.validator.published.score import Options, describe, score_all, tables_at, write_rows

    how = Options(options.calibrated, tuple(options.ablate), not options.default_framework)
    result = score_all(tables_at(options.tables), how)
    if options.rows:
        write_rows(result.predictions, options.rows)
    plain = result.tables[0].plain() if len(result.tables) == 1 else result.plain()
    print(json.dumps(plain, indent=2) if options.json else describe(result))
    return 0
