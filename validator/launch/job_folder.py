"""Where launcher and ranks leave things for each other: one temporary folder per job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobFolder:
    """Names of the files in a job's folder."""

    path: Path

    @property
    def job(self) -> Path:
        """What to run: two pickles, what a rank needs to start and then the function with its arguments."""
        return self.path / "job"

    @property
    def board(self) -> Path:
        """What each rank is doing."""
        return self.path / "status"

    @property
    def store(self) -> Path:
        """How ranks find one another."""
        return self.path / "store"

    def result(self, rank: int) -> Path:
        return self.path / f"result-{rank}.json"

    def error(self, rank: int) -> Path:
        return self.path / f"error-{rank}.json"

    def log(self, rank: int) -> Path:
        """What the rank printed."""
        return self.path / f"rank-{rank}.log"

    def spans(self, rank: int) -> Path:
        """What the rank recorded, step after step."""
        return self.path / f"spans-{rank}"
