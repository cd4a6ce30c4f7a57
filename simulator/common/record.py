"""Records: results that are written to files and read again by the same class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from scaleproof.simulator.common.errors import InputError, one_line


class Record(BaseModel):
    """A result as data: validated when it is made and when it is read. Its fields are those of its JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def read(cls, path: Path, remedy: str) -> Self:
        """The record in a file. remedy: the command that writes it again. Raises InputError if it cannot be read."""
        try:
            return cls.model_validate_json(path.read_bytes())
        except (OSError, ValidationError) as error:
            raise InputError(f"{path}: cannot be read ({one_line(error)}); write it again with {remedy}") from None

    def to_dict(self) -> dict[str, Any]:
        """The fields as plain data for JSON, in SI units."""
        return self.model_dump(mode="json")

    def to_json(self) -> str:
        """The content of its file."""
        return self.model_dump_json(indent=2) + "\n"
