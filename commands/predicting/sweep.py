"""The command sweep: predict all points of a study. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from scaleproof.commands.arguments import Command
from scaleproof.commands.gpus import add_gpu_counts, say_added
from scaleproof.commands.output import show
from scaleproof.commands.text.tables import wrapped

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.simulator.analysis.study.study import Study

# number of distinct errors that are printed
_MOST_ERRORS: Final = 3
_GPUS: Final = re.compile(r"^[\d,]+ GPUs: ")
# number of points from which the duration is announced, and points per second on two cores (benchmarks/studies.py)
_MANY: Final = 100_000
_POINTS_PER_S: Final = 5_000


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    sweep = Command(commands, "sweep", _sweep)
    sweep.parser.description = "Predict a scenario over axes of its fields."
    sweep.add("STUDY", "a YAML file with a scenario and axes, or a name from 'scaleproof list'; with --gpus also a scenario")
    add_gpu_counts(sweep, "numbers of GPUs as a further axis: keeps batch and degrees, changes the workers")
    sweep.add("--out DIR", "folder of the result tables, written as points finish", type=Path, required=True)
    sweep.add("--resume", "continue an earlier sweep in --out")
    sweep.add("--intervals", "also compute the 90%% interval of each step time; takes twice as long")
    sweep.add("--executor NAME", "what runs the sweep: local (all cores), dask or slurm (local)", default="local")
    sweep.add("--scheduler ADDRESS", "address of the dask scheduler, such as tcp://head:8786")
    sweep.add_overrides("a field of the scenario of all points")


def _sweep(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.study.study import read
    from scaleproof.simulator.analysis.study.sweep import sweep
    from scaleproof.simulator.scenario.fields import GPUS

    study = read(options.study, options.overrides, {GPUS: list(options.gpus)} if options.gpus else {})
    if study.cluster is not None:
        say_added(study.cluster, options.gpus)
    if len(study) > _MANY:
        print(f"{len(study):,} points, some {len(study) / _POINTS_PER_S / 60:,.0f} min on two cores", file=sys.stderr)
    with _progress(len(study), options.out) as advance:
        points = sweep(
            study, options.out, resume=options.resume, executor=options.executor, scheduler=options.scheduler,
            intervals=options.intervals, progress=advance,
        )  # fmt: skip
    show(describe(study, points, options.out))
    return 0


def describe(study: Study, points: pd.DataFrame, out: Path) -> str:
    """Console text of a study: the number of points, the fastest ones, and the most frequent errors."""
    from scaleproof.simulator.analysis.study.evaluate import throughput_unit
    from scaleproof.simulator.cluster.host import assumptions
    from scaleproof.simulator.common.units import format_bytes, format_number, format_time_s
    from scaleproof.simulator.uncertainty.unmodelled import unmodelled

    wrong = points["error"].dropna()
    unfit = int(points["fits"].eq(False).sum())
    problems = f", {unfit:,} do not fit into memory" if unfit else ""
    headline, lines = f"{len(points):,} points, {len(wrong):,} of them with an error{problems}, in {out}", []
    fitting = points[~points["fits"].eq(False)].dropna(subset=["samples_per_s"])
    unit = throughput_unit(fitting)
    for point, rate in fitting.nlargest(1, "samples_per_s")[["point", f"{unit}_per_s"]].itertuples(index=False):
        lines.append(f"fastest{' that fits' if unfit else ''}: {format_number(rate)} {unit}/s at {study.words_of(point)}")
        fastest = study.scenario(study.places_of(point))
        notes = [one.note for one in unmodelled(fastest)]
        notes += [assumptions(fastest.cluster)] if fastest.training.offload else []
        lines += [f"warning: {note}" for note in notes if note]
    if (cheapest := _cheapest(fitting)) is not None:
        lines.append(f"cheapest{' that fits' if unfit else ''}: {cheapest[1]} at {study.words_of(cheapest[0])}")
    if unfit and fitting.empty:
        least = points.nsmallest(1, "memory_bytes")
        for point, needed in least[["point", "memory_bytes"]].itertuples(index=False):
            lines.insert(
                0, f"Out of memory at every point; the least need is {format_bytes(needed)} per GPU at {study.words_of(point)}"
            )
    if "time_to_target_s" in points:
        done = points[~points["fits"].eq(False)].dropna(subset=["time_to_target_s"])
        soonest = done.sort_values("time_to_target_s", kind="stable").head(1)
        for point, time_s in zip(soonest["point"].tolist(), soonest["time_to_target_s"].tolist(), strict=True):
            lines.append(f"shortest time to target, as modelled: {format_time_s(time_s)} at {study.words_of(point)}")
    lines += _errors(wrong.tolist())
    return "\n".join([headline, *(line for text in lines for line in wrapped(text))])


def _cheapest(fitting: pd.DataFrame) -> tuple[int, str] | None:
    """The point of least cost and '0.201 USD per million tokens'; of samples where not all points have tokens."""
    priced = fitting.dropna(subset=["cost_USD_per_million_samples"])
    if priced.empty:
        return None
    cost_USD, unit = priced["cost_USD_per_million_samples"], "samples"
    if priced["tokens_per_s"].notna().all():
        cost_USD, unit = cost_USD * priced["samples_per_s"] / priced["tokens_per_s"], "tokens"
    return int(priced["point"].iloc[int(cost_USD.argmin())]), f"{cost_USD.min():.3g} USD per million {unit}"


def _errors(texts: Sequence[str]) -> Iterator[str]:
    """The most frequent errors; those that differ in the number of GPUs alone are counted together."""
    by_text: dict[str, list[str]] = {}
    for text in texts:
        by_text.setdefault(_GPUS.sub("", text), []).append(text)
    kinds = sorted(by_text.items(), key=lambda kind: -len(kind[1]))
    for text, same in kinds[:_MOST_ERRORS]:
        yield f"{len(same):,} times: {text}" if len(same) > 1 else f"once: {same[0]}"
    if others := sum(len(same) for _, same in kinds[_MOST_ERRORS:]):
        yield f"{others:,} points with other errors are in the table"


@contextmanager
def _progress(points: int, out: Path) -> Iterator[Callable[[int], None]]:
    """Yields a function that counts finished points, with a progress bar on stderr if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Points per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} points/s" if task.speed else "")

    from scaleproof.simulator.analysis.study.store import finished

    console, begun = Console(stderr=True), False
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("points", total=points)

        def advance(more: int) -> None:
            nonlocal begun
            # points of an earlier sweep do not count for the rate
            progress.update(bar, advance=more) if begun else progress.update(bar, completed=more)
            begun = True

        try:
            yield advance
        except KeyboardInterrupt as error:
            error.add_note(f"{len(finished(out)):,} of {points:,} points are in {out}; --resume continues")
            raise
