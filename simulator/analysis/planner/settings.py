"""Settings of configurations as columns of a table; those that are equal in all rows are named once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Self

from scaleproof.simulator.analysis.planner.words import recompute_words

_NONE: Final = "–"
# Schedules that follow from the number of virtual stages.
_IMPLIED: Final = ("1f1b", "interleaved_1f1b")


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: str(row.get(name, 1))


def _expert_tensor(row: Mapping[str, Any]) -> str:
    """Tensor-parallel size of the experts; by default that of the other layers."""
    return str(row["expert_tensor"] or row["tensor"]) if row.get("expert", 1) > 1 else "1"


def _servers(row: Mapping[str, Any]) -> str:
    """'8 dedicated, by node': number, placement, and whether workers of a node push aggregated gradients."""
    if "servers" not in row:
        return _NONE
    return f"{row['servers']} {row['placement']}" + (", by node" if row["two_level"] else "")


# Settings of a configuration by the heads of their columns.
SETTINGS: Final[dict[str, Callable[[Mapping[str, Any]], str]]] = {
    "DP": _number("workers"),
    "TP": _number("tensor"),
    "PP": _number("stages"),
    "VPP": _number("chunks"),
    "CP": _number("context"),
    "EP": _number("expert"),
    "ETP": _expert_tensor,
    "MBS": _number("samples"),
    "GA": _number("microbatches"),
    "ZeRO": lambda row: str(row.get("zero", 0)),
    "recompute": lambda row: recompute_words(row["recompute"]),
    "schedule": lambda row: _NONE if row.get("schedule") in _IMPLIED else str(row.get("schedule", _NONE)),
    "SP": lambda row: "yes" if row.get("sequence_parallel") else "no",
    "servers": _servers,
    "framework": lambda row: str(row["framework"]),
}
# Settings that are only mentioned where they are used.
_SILENT: Final = {"schedule": _NONE, "SP": "no", "servers": _NONE, "ETP": "1"}


class Settings(NamedTuple):
    """The settings of several configurations. differing: columns by their heads. equal: values that all rows share."""

    differing: Mapping[str, list[str]]
    equal: Mapping[str, str]

    @classmethod
    def of(cls, configurations: Sequence[Mapping[str, Any]]) -> Self:
        """The settings of configurations, each given as the values of scenario fields by name."""
        columns = {name: [value(row) for row in configurations] for name, value in SETTINGS.items()}
        same = {name for name, column in columns.items() if len(set(column)) == 1}
        equal = {name: columns[name][0] for name in same if columns[name][0] != _SILENT.get(name)}
        return cls(
            {name: column for name, column in columns.items() if name not in same},
            {name: equal[name] for name in columns if name in equal and name != "framework"},
        )

    @property
    def equal_words(self) -> str:
        """'CP 1, EP 1, recompute none'."""
        return ", ".join(f"{name} {value}" for name, value in self.equal.items())
