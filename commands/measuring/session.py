"""A session of a measuring command, in a single process or in each of the ranks that torchrun or srun started.

Under torchrun and srun every rank runs the whole command. All ranks read the scenarios and find the completed runs
collectively; an error on any rank is reported once, by rank 0.
"""

from __future__ import annotations

import os
import signal
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from scaleproof.commands.output import working
from scaleproof.simulator.common.errors import InputError, ScaleproofError
from scaleproof.simulator.common.file_lock import locked_folder
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator import results
from scaleproof.validator.launch.launch import require_torch
from scaleproof.validator.launch.rank_environment import place_in
from scaleproof.validator.measure import MeasureOptions, measure, meet_others, where_to
from scaleproof.validator.preflight.checks import check
from scaleproof.validator.record.disturbance import MOST_ATTEMPTS, least_disturbed

Folders = Callable[[Scenario], Path]


class Session:
    """The state of a measuring command. prints: whether this process prints and writes files."""

    def __init__(self, options: Namespace, watch: MeasureOptions) -> None:
        """Joins the other ranks, if any. Raises InputError and RankError if they cannot meet."""
        require_torch()
        self._options = options
        self._watch = watch
        self.where = where_to(options.on)
        self._place = place_in(os.environ) if self.where == "cluster" else None
        if self._place is not None:
            # the launcher ends its ranks by SIGTERM, also those that wait inside of a collective
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.prints = self._place is None or self._place.rank == 0
        if not self.prints:
            warnings.simplefilter("ignore")
        self._meeting = None if self._place is None else meet_others(watch)
        # locks on the output folder, released when the command ends
        self._locks = ExitStack()

    def scenarios(self) -> list[Scenario]:
        """The scenarios of the command line, after checks that each can be measured here and that --out is writable."""
        scenarios: list[Scenario] = []
        self._collectively(lambda: scenarios.extend(self._read()))
        return scenarios

    def completed(self, scenarios: Sequence[Scenario], folder_of: Folders | None) -> dict[str, Run | None]:
        """Completed runs by scenario name, with --resume. On ranks that do not print, the runs are None."""
        runs: dict[str, Run | None] = {}
        if self._options.resume and folder_of and self.prints:
            for scenario in scenarios:
                run = results.find(folder_of(scenario), scenario, self.where, self._watch.verify)
                if run is not None:
                    runs[scenario.name] = run
        names = self._collectively(lambda: list(runs))[0]
        return runs if self.prints else dict.fromkeys(names)

    def measure(self, scenario: Scenario, folder: Path | None) -> Run:
        """Measures a scenario and shows progress on the terminal; again if other work on the machine disturbs it. folder: keeps
        finished steps if the run fails."""
        watch = replace(self._watch, folder=folder)
        # profiles are of one run
        attempts = 1 if watch.profile else MOST_ATTEMPTS
        if not self.prints:
            return least_disturbed(lambda _: measure(scenario, self.where, watch), attempts)
        with working(f"measuring {scenario.name}") as update:

            def once(attempt: int) -> Run:
                again = f" again, since other work disturbed it ({attempt} of {attempts})" if attempt > 1 else ""

                def report(step: int) -> None:
                    update(f"measuring {scenario.name}{again}: step {max(0, step)} of {scenario.steps}")

                return measure(scenario, self.where, replace(watch, progress=report))

            return least_disturbed(once, attempts)

    def keep(self, run: Run, scenario: Scenario, folder: Path) -> None:
        """Writes a run. All ranks raise RunError if that fails."""
        self._collectively(lambda: results.keep(run, scenario, folder) if self.prints else None)

    def _collectively(self, function: Callable[[], Any]) -> list[Any]:
        return [function()] if self._meeting is None else self._meeting.together(function)

    def _read(self) -> list[Scenario]:
        if self._options.out is None and self._options.resume:
            raise InputError("--resume continues an earlier run; name its folder with --out DIR")
        if self._options.out is None and self._watch.profile:
            raise InputError("--profile writes traces to a folder; name it with --out DIR")
        scenarios = [load(reference, self._options.overrides) for reference in self._options.scenarios]
        names = [scenario.name for scenario in scenarios]
        if len(set(names)) < len(names):
            raise InputError("two scenarios have the same name; results are stored by name, so give each its own name")
        for scenario in scenarios:
            check(scenario, self.where, self._watch.interface, self._watch.verify)
        if self._options.out is not None and self.prints:
            results.prepare(self._options.out)
            self._locks.enter_context(locked_folder(self._options.out, "a measurement"))
        return scenarios

    def report_once(self, command: Callable[[], int]) -> int:
        """Runs a command and returns its exit code. One rank raises its errors; the others return only their exit code."""
        try:
            with self._locks:
                return command()
        except ScaleproofError as error:
            if self.prints:
                raise
            return error.exit_code
