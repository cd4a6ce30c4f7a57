"""Record: the trials of a convergence measurement, kept as they end, and the piece of a scenario that comes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.run.run import write_aside
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.fit.curve_fitting.convergence import FittedConvergence
from scaleproof.validator.experiments.convergence.convergence import Trial
from scaleproof.validator.results import digest

_TRIALS: Final = "trials.json"
_PIECE: Final = "convergence.yaml"
_DIGITS: Final = 4


class Record:
    """A folder's trials, all of one scenario, target and place; of None, nothing is kept."""

    def __init__(self, folder: Path | None, asked: dict[str, Any]) -> None:
        self.folder, self.asked = folder, asked
        self.trials: list[Trial] = []

    @classmethod
    def opened(cls, folder: Path | None, scenario: Scenario, target: float, on: str, resume: bool) -> Record:
        """With the trials that are there, to go on with. Raises InputError where the folder holds something else, or holds
        trials that nobody asked to go on with."""
        found = cls(folder, {"scenario": scenario.name, "digest": digest(scenario), "target": target, "on": on})
        if folder is None:
            return found
        path = folder / _TRIALS
        there = _read(path) if path.is_file() else None
        if there is not None and not resume:
            raise InputError(f"{folder}: holds trials already; give --resume to go on, or another folder")
        if there is not None and there["asked"] != found.asked:
            raise InputError(f"{folder}: holds trials of another scenario, target or place; choose another folder")
        found.trials = [] if there is None else there["trials"]
        found._write()
        return found

    def has(self, setting: Sequence[Any], rate: float, seed: int) -> bool:
        return any((tuple(one.setting), one.rate, one.seed) == (tuple(setting), rate, seed) for one in self.trials)

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._write()

    def _write(self) -> None:
        if self.folder is not None:
            plain = {"asked": self.asked, "trials": [trial.plain() for trial in self.trials]}
            write_aside(self.folder / _TRIALS, (json.dumps(plain, indent=1) + "\n").encode())

    def keep(self, fitted: FittedConvergence, told: str) -> None:
        """Writes the piece of a scenario, under what was told of it."""
        if self.folder is not None:
            comment = "".join(f"# {line}".rstrip() + "\n" for line in told.splitlines())
            write_aside(self.folder / _PIECE, f"{comment}{piece(fitted)}\n".encode())


def piece(fitted: FittedConvergence) -> str:
    """What a scenario says of it, on one line."""
    given = {name: value for name, value in fitted.convergence.model_dump().items() if value is not None}
    return f"convergence: {{{', '.join(f'{name}: {value:.{_DIGITS}g}' for name, value in given.items())}}}"


def _read(path: Path) -> dict[str, Any]:
    """Raises InputError for a file that holds something else."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return {"asked": plain["asked"], "trials": TypeAdapter(list[Trial]).validate_python(plain["trials"])}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f"{path}: cannot be read; choose another folder") from None
