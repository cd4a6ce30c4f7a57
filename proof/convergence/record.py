"""Record of a convergence measurement: its trials, saved as they end, and the resulting part of a scenario."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from scaleproof.proof.convergence.convergence import Trial
from scaleproof.proof.convergence.fit import FittedConvergence
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.results import digest

_TRIALS: Final = "trials.json"
_PIECE: Final = "convergence.yaml"
_DIGITS: Final = 4


class Record:
    """Trials of one scenario, target and place in a folder; nothing is saved if the folder is None."""

    def __init__(self, folder: Path | None, experiment: dict[str, Any]) -> None:
        self.folder, self.experiment = folder, experiment
        self.trials: list[Trial] = []

    @classmethod
    def opened(cls, folder: Path | None, scenario: Scenario, target: float, on: str, resume: bool) -> Record:
        """Opens a folder with its trials, to continue them. Raises InputError if the folder has other contents, or trials and
        `resume` is false."""
        record = cls(folder, {"scenario": scenario.name, "digest": digest(scenario), "target": target, "on": on})
        if folder is None:
            return record
        path = folder / _TRIALS
        saved = _read(path) if path.is_file() else None
        if saved is not None and not resume:
            raise InputError(f"{folder}: contains trials already; give --resume to continue them, or another folder")
        if saved is not None and saved["asked"] != record.experiment:
            raise InputError(f"{folder}: contains trials of another scenario, target or place; choose another folder")
        record.trials = [] if saved is None else saved["trials"]
        record._write()
        return record

    def has(self, setting: Sequence[Any], rate: float, seed: int) -> bool:
        """Whether the record has a trial of this setting, learning rate and seed."""
        key = (tuple(setting), rate, seed)
        return any((tuple(trial.setting), trial.rate, trial.seed) == key for trial in self.trials)

    def add(self, trial: Trial) -> None:
        """Adds a trial and writes the record."""
        self.trials.append(trial)
        self._write()

    def _write(self) -> None:
        if self.folder is not None:
            plain = {"asked": self.experiment, "trials": [trial.plain() for trial in self.trials]}
            write_atomically(self.folder / _TRIALS, (json.dumps(plain, indent=1) + "\n").encode())

    def keep(self, fitted: FittedConvergence, text: str) -> None:
        """Writes the fitted part of a scenario, with `text` as a comment above it."""
        if self.folder is not None:
            comment = "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())
            write_atomically(self.folder / _PIECE, f"{comment}{piece(fitted)}\n".encode())


def piece(fitted: FittedConvergence) -> str:
    """The `convergence` field of a scenario on one line."""
    given = {name: value for name, value in fitted.convergence.model_dump().items() if value is not None}
    return f"convergence: {{{', '.join(f'{name}: {value:.{_DIGITS}g}' for name, value in given.items())}}}"


def _read(path: Path) -> dict[str, Any]:
    """Contents of a file of trials. Raises InputError if it has other contents."""
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        return {"asked": plain["asked"], "trials": TypeAdapter(list[Trial]).validate_python(plain["trials"])}
    except (ValueError, LookupError, TypeError, RecursionError):
        raise InputError(f"{path}: cannot be read; choose another folder") from None
