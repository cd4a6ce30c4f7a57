"""The command sweep: a study in, a table of its points out. Imports wait until it runs."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

    from scaleproof.simulator.analysis.study.study import Study

# errors that are told of those that points have
_TOLD: Final = 3
_LINE: Final = 80


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    sweep = commands.add_parser(
        "sweep", help="forecast all points of a study", description="Forecast a scenario along axes of its fields."
    )
    sweep.add_argument("study", metavar="STUDY", help="a YAML file with a scenario and axes, or the name of one that ships")
    sweep.add_argument("--out", type=Path, required=True, metavar="DIR", help="where tables are kept as points finish")
    sweep.add_argument("--resume", action="store_true", help="go on with what is there, and compute none of it again")
    sweep.add_argument("--intervals", action="store_true", help="tell how far each step time may be off; takes twice as long")
    sweep.add_argument(
        "--executor", default="local", metavar="NAME", help="who does the work: local (all cores), dask or slurm"
    )
    sweep.add_argument("--scheduler", metavar="ADDRESS", help="of dask's scheduler, such as tcp://head:8786")
    sweep.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", dest="overrides", help="a field of all points' scenario"
    )
    sweep.set_defaults(command=_sweep)


def _sweep(options: argparse.Namespace) -> int:
    from scaleproof.simulator.analysis.study.study import read
    from scaleproof.simulator.analysis.study.sweep import sweep

    study = read(options.study, options.overrides)
    with _progress(len(study), options.out) as told:
        found = sweep(
            study, options.out, resume=options.resume, executor=options.executor, scheduler=options.scheduler,
            intervals=options.intervals, told=told,
        )  # fmt: skip
    print(describe(study, found, options.out))
    return 0


def describe(study: Study, found: pd.DataFrame, out: Path) -> str:
    """What came of a study: how many points there are, the fastest of them, and what was wrong with others."""
    from scaleproof.simulator.common.units import format_time_s

    wrong = found["error"].dropna()
    headline, lines = f"{len(found):,} points, {len(wrong):,} of them with an error, in {out}", []
    for words, some in (("fastest", found), ("fastest that fits its memory", found[found["fits"].eq(True)])):
        done = some.dropna(subset=["samples_per_s"]).sort_values("samples_per_s", kind="stable").tail(1)
        if len(done) and (words == "fastest" or not found["fits"].dropna().all()):
            point, rate = done["point"].tolist()[0], done["samples_per_s"].tolist()[0]
            lines.append(f"{words}: {rate:,.4g} samples/s at {_at(study, point)}")
    if "time_to_target_s" in found:
        done = found[~found["fits"].eq(False)].dropna(subset=["time_to_target_s"])
        soonest = done.sort_values("time_to_target_s", kind="stable").head(1)
        for point, time_s in zip(soonest["point"].tolist(), soonest["time_to_target_s"].tolist(), strict=True):
            lines.append(f"soonest at its target, as modelled: {format_time_s(time_s)} at {_at(study, point)}")
    lines += [f"{count:,} times: {text}" for text, count in wrong.value_counts().head(_TOLD).items()]
    wrapper = textwrap.TextWrapper(_LINE, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
    return "\n".join([headline, *(line for text in lines for line in wrapper.wrap(text))])


def _at(study: Study, point: int) -> str:
    import numpy as np

    places = study.places(np.array([point]))[0].tolist()
    return ", ".join(axis.words(place) for axis, place in zip(study.axes, places, strict=True))


@contextmanager
def _progress(points: int, out: Path) -> Iterator[Callable[[int], None]]:
    """What hears of points as they are done: a bar with rate and time left, where there is a terminal to show it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        """Points per second."""

        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f} points/s" if task.speed else "")

    console, done = Console(stderr=True), 0
    columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("points", total=points)

        def told(more: int) -> None:
            nonlocal done
            # what was there before says nothing of the rate
            progress.update(bar, advance=more) if done else progress.update(bar, completed=more)
            done += more

        try:
            yield told
        except KeyboardInterrupt:
            progress.stop()
            print(f"{done:,} of {points:,} points are in {out}; --resume goes on", file=sys.stderr)
            raise
