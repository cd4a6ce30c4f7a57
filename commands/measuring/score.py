"""The command score: published measurements against their predictions."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    score = commands.add_parser("score", help="predict published measurements, and print the errors")
    where = "with the columns of a table in scenarios/published, or a folder of such; all that ship, if there is none"
    score.add_argument("tables", type=Path, nargs="*", metavar="FILE.csv", help=where)
    score.add_argument("--calibrated", action="store_true", help="fit constants on the rows it names, and leave those out")
    score.add_argument("--rows", type=Path, metavar="OUT.csv", help="write a line for each row that was scored")
    score.add_argument(
        "--ablate", action="append", default=[], metavar="NAME", help="switch a mechanism of frameworks off, such as host"
    )
    score.add_argument(
        "--default-framework", action="store_true", help="leave the framework of training runs to the default, as if unknown"
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
