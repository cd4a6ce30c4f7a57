"""Records: results that are written to files and read again by the same class."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer, model_validator

from scaleproof.simulator.common.errors import InputError, one_line


class Record(BaseModel):
    """A result as data: validated when it is made and when it is read. Its JSON has its fields, and the properties `derived`,
    which are left out when it is read."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    derived: ClassVar[tuple[str, ...]] = ()

    # pydantic 2.10 looks for the names of an annotation in the module of each subclass
    @model_serializer(mode="wrap", return_type=dict[str, Any])
    def _with_derived(self, fields: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {**fields(self), **{name: getattr(self, name) for name in self.derived}}

    @model_validator(mode="before")
    @classmethod
    def _without_derived(cls, data: Any) -> Any:
        return {name: data[name] for name in data if name not in cls.derived} if isinstance(data, dict) else data

    def __str__(self) -> str:
        return repr(self)

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
