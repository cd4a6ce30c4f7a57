"""The temporary folder of a job, through which launcher and ranks exchange files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class JobFolder:
    """Paths of the files in a job's folder."""

    path: Path

    @property
    def job(self) -> Path:
        """Two pickles: settings that a rank needs to start, then the function to run with its arguments."""
        return self.path / "job"

    @property
    def board(self) -> Path:
        """The status board: current activity of each rank."""
        return self.path / "status"

    @property
    def store(self) -> Path:
        """The store by which ranks form a process group."""
        return self.path / "store"

    def result(self, rank: int) -> Path:
        """Result of the rank's function."""
        return self.path / f"result-{rank}.json"

    def error(self, rank: int) -> Path:
        """Error of the rank, if it failed."""
        return self.path / f"error-{rank}.json"

    def log(self, rank: int) -> Path:
        """Output of the rank."""
        return self.path / f"rank-{rank}.log"

    def spans(self, rank: int) -> Path:
        """Spans of the rank, step after step."""
        return self.path / f"spans-{rank}"
