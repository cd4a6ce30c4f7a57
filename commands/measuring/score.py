"""The command score: compare predictions with published measurements."""

from __future__ import annotations

import argparse
import itertools
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import print_result
from scaleproof.commands.text.tables import table as table_lines
from scaleproof.simulator.common.units import format_percent

if TYPE_CHECKING:
    from scaleproof.proof.published.score import Score, Scores, SetScore

# The choice of --leave-out, as in `Options.leave_out`, which is imported late.
LEAVE_OUT_SOURCE: Final = "source"
_TITLES: Final = (
    "set", "rows", "scored", "mean", "median", "p95", "worst", "order", "floor", "in 90%", "width", "regret", "worst regret",
)  # fmt: skip
_WIDTHS: Final = (3, 5, 6, 7, 7, 7, 7, 6, 6, 6, 5)


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    score = Command(commands, "score", _score)
    where = "table with the columns of those in scenarios/published, or a folder of tables, or the name of a shipped one "
    where += "(all shipped tables)"
    score.add("FILE.csv", where, dest="tables", type=Path, nargs="*")
    score.add("--calibrated", "fit constants on the rows marked for calibration, and leave those rows out")
    score.add("--rows OUT.csv", "write one line per scored row", type=Path)
    score.add("--ablate NAME", "switch off a mechanism of frameworks, such as host", repeated=True)
    score.add("--default-framework", "use the default framework for training runs instead of the published one")
    score.add("--raw", "intervals from the priors of the clusters alone, without the errors of published runs")
    left_out = "predict each row with constants and errors that were fitted without its source (source)"
    score.add("--leave-out WHAT", left_out, choices=[LEAVE_OUT_SOURCE])
    score.add("--json", "print the score as JSON")


def _score(options: argparse.Namespace) -> int:
    from scaleproof.proof.published.prediction import Options
    from scaleproof.proof.published.score import score_all, tables_at, write_rows

    how = Options(
        options.calibrated, tuple(options.ablate), not options.default_framework, options.raw, options.leave_out or ""
    )
    result = score_all(tables_at(options.tables), how)
    if options.rows:
        write_rows(result.predictions, options.rows)
    only = result.tables[0] if len(result.tables) == 1 else result
    return print_result(options, only.plain, lambda: describe(result))


def describe(result: Scores) -> str:
    """The scores as text, one table below another with common column widths."""
    parts = [(table.table, {**table.sets, **table.totals}, _notes(table)) for table in result.tables]
    if len(parts) > 1:
        parts.append(("all tables", dict(result.totals), []))
    rows = [_cells(name, score) for _, scores, _ in parts for name, score in scores.items()]
    head, *lines = table_lines([_TITLES, *rows], widths=_WIDTHS, gap=1)
    remaining = iter(lines)
    blocks = ([title, head, *itertools.islice(remaining, len(scores)), *notes] for title, scores, notes in parts)
    return "\n\n".join("\n".join(block) for block in blocks)


def _cells(name: str, score: SetScore) -> tuple[str, ...]:
    errors = score.mean, score.median, score.p95, score.worst, score.order_right, score.floor, score.coverage90
    width = "–" if score.width90 is None else f"{score.width90:.2f}"
    regrets = score.regret_mean, score.regret_worst
    return (name, str(score.rows), str(score.scored), *map(_percent, errors), width, *map(_percent, regrets))


def _percent(share: float | None) -> str:
    return "–" if share is None else format_percent(share)


def _notes(result: Score) -> list[str]:
    """Lines on what was skipped, assumed and fitted."""
    lines = []
    for title in ("skipped", "assumed"):
        counts: Counter[str] = Counter()
        for score in result.sets.values():
            counts.update(getattr(score, title))
        lines += [f"{title}: {', '.join(f'{what} ({n} rows)' for what, n in counts.items())}"] if counts else []
    return [*lines, *(f"constants fitted on, and left out: {subset}" for subset in result.calibration), *result.notes]
