"""Session: one command that measures scenarios, as the only process or as one of the ranks that somebody else started.

Under torchrun and srun every rank runs the whole command. They read scenarios, and find out what need not be measured,
together: what goes wrong on one is told once, by rank 0.
"""

from __future__ import annotations

import os
import sys
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.file_lock import locked_folder
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator import results
from scaleproof.validator.launch.launch import require_torch
from scaleproof.validator.launch.rank_environment import place_in
from scaleproof.validator.measure import MeasureOptions, check, measure, meet_others, where_to

if TYPE_CHECKING:
    from rich.status import Status

Folders = Callable[[Scenario], Path]


class Session:
    """What a command's options ask for. speaks: whether this process is the one to print and to write."""

    def __init__(self, options: Namespace, watch: MeasureOptions) -> None:
        """Raises InputError and RankError where the ranks cannot meet."""
        require_torch()
        self._options = options
        self._watch = watch
        self.where = where_to(options.on)
        self._place = place_in(os.environ) if self.where == "cluster" else None
        self.speaks = self._place is None or self._place.rank == 0
        if not self.speaks:
            warnings.simplefilter("ignore")
        self._meeting = None if self._place is None else meet_others(watch)
        # what nobody else may write to until the command ends
        self._held = ExitStack()

    def scenarios(self) -> list[Scenario]:
        """All of them, once every one is known to be measurable here and --out to be writable."""
        found: list[Scenario] = []
        self._together(lambda: found.extend(self._read()))
        return found

    def found(self, scenarios: Sequence[Scenario], folder_of: Folders | None) -> dict[str, Run | None]:
        """Runs that need not be measured again, by scenario. Where this process does not speak, their names alone."""
        runs: dict[str, Run | None] = {}
        if self._options.resume and folder_of and self.speaks:
            kept = {one.name: results.find(folder_of(one), one, self.where, self._watch.verify) for one in scenarios}
            runs = {name: run for name, run in kept.items() if run is not None}
        names = self._together(lambda: list(runs))[0]
        return runs if self.speaks else dict.fromkeys(names)

    def measure(self, scenario: Scenario, folder: Path | None) -> Run:
        """`measure` with its progress on the terminal. folder: where finished steps of a run that fails are kept."""
        watch = replace(self._watch, folder=folder)
        if not self.speaks:
            return measure(scenario, self.where, watch)
        with working(f"measuring {scenario.name}") as status:

            def tell(step: int) -> None:
                status.update(f"measuring {scenario.name}: step {max(0, step)} of {scenario.steps}")

            return measure(scenario, self.where, replace(watch, progress=tell))

    def keep(self, run: Run, scenario: Scenario, folder: Path) -> None:
        """Writes a run; all ranks raise RunError where that fails."""
        self._together(lambda: results.keep(run, scenario, folder) if self.speaks else None)

    def _together(self, function: Callable[[], Any]) -> list[Any]:
        return [function()] if self._meeting is None else self._meeting.together(function)

    def _read(self) -> list[Scenario]:
        if self._options.out is None and self._options.resume:
            raise InputError("--resume goes on with what is in a folder; name it by --out DIR")
        if self._options.out is None and self._watch.profile:
            raise InputError("--profile leaves traces in a folder; name it by --out DIR")
        scenarios = [load(reference, self._options.overrides) for reference in self._options.scenarios]
        names = [scenario.name for scenario in scenarios]
        if len(set(names)) < len(names):
            raise InputError("two scenarios have the same name; results are kept by name, give each its own")
        for scenario in scenarios:
            self._check(scenario)
        if self._options.out is not None and self.speaks:
            results.prepare(self._options.out)
            self._held.enter_context(locked_folder(self._options.out, "a measurement"))
        return scenarios

    def _check(self, scenario: Scenario) -> None:
        if self._place is None:
            check(scenario, self.where, self._watch.interface, self._watch.verify)
            return
        from scaleproof.validator.launch.external import check_joined

        check_joined(scenario, self._place)

    def told_once(self, command: Callable[[], int]) -> int:
        """What a command returns. Its errors are told by one rank; the others exit with their code alone."""
        try:
            with self._held:
                return command()
        except ScaleproofError as error:
            if self.speaks:
                raise
            return error.exit_code


def working(text: str) -> Status:
    """A line on stderr that says what is going on, while it goes on; silent where stderr is not a terminal."""
    from rich.console import Console

    return Console(stderr=True).status(text)


@contextmanager
def telling(text: str, before: str = "") -> Iterator[Callable[[str], None]]:
    """`working`, and what tells of the next thing that goes on, after `before`: a line each where stderr is no terminal."""
    with working(text) as status:

        def tell(what: str) -> None:
            status.update(before + what)
            if not status.console.is_terminal:
                print(before + what, file=sys.stderr, flush=True)

        yield tell
