"""Settings of the configurations of a plan: columns of those that differ, and words for those that are equal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scaleproof.reports.sections import Column
from scaleproof.simulator.analysis.planner.words import blocks_words, recompute_words

_NONE: Final = "–"
# Schedules that follow from the number of virtual stages.
_IMPLIED: Final = ("1f1b", "interleaved_1f1b")
_Value = Callable[[Mapping[str, Any]], str]


def _number(name: str) -> _Value:
    return lambda row: str(row.get(name, 1))


def _expert_tensor(row: Mapping[str, Any]) -> str:
    """Tensor-parallel size of the experts; by default that of the other layers."""
    return str(row["expert_tensor"] or row["tensor"]) if row.get("expert", 1) > 1 else "1"


def _servers(row: Mapping[str, Any]) -> str:
    """'8 dedicated, by node': number, placement, and whether workers of a node push aggregated gradients."""
    if "servers" not in row:
        return _NONE
    return f"{row['servers']} {row['placement']}" + (", by node" if row["two_level"] else "")


# Settings that are numbers, and those that are words, by the heads of their columns.
_NUMBERS: Final[dict[str, _Value]] = {
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
}
_WORDS: Final[dict[str, _Value]] = {
    "recompute": lambda row: recompute_words(row["recompute"]),
    "tables": lambda row: row.get("tables", _NONE),
    "offload": lambda row: row.get("offload", _NONE),
    "nodes": lambda row: row.get("nodes", _NONE),
    "samples of workers": lambda row: row.get("shares", _NONE),
    "blocks": lambda row: blocks_words(row["blocks"]) if "blocks" in row else _NONE,
    "schedule": lambda row: _NONE if row.get("schedule") in _IMPLIED else str(row.get("schedule", _NONE)),
    "SP": lambda row: "yes" if row.get("sequence_parallel") else "no",
    "servers": _servers,
    "dispatcher": lambda row: row.get("dispatcher", _NONE),
    "shared experts overlap": lambda row: "yes" if row.get("overlap_shared_experts") else "no",
    "framework": lambda row: str(row["framework"]),
}
# Settings that have a column even where all rows are equal: what is offloaded, as it costs the most, and what unequal nodes do.
_SHOWN: Final = ("offload", "nodes", "samples of workers", "blocks")
# Values of settings that are only mentioned where they are used; the framework is named elsewhere.
_SILENT: Final = {
    "schedule": _NONE, "tables": _NONE, "SP": "no", "servers": _NONE, "ETP": "1", "dispatcher": _NONE,
    "shared experts overlap": "no", **dict.fromkeys(_SHOWN, _NONE),
}  # fmt: skip
_ELSEWHERE: Final = "framework"


def settings(configurations: Sequence[Mapping[str, Any]]) -> tuple[list[Column], str]:
    """The columns of the settings that differ, and those that are equal, such as 'CP 1, EP 1, recompute none'.

    configurations: values of scenario fields by name.
    """
    columns = [
        Column(head, [value(row) for row in configurations], is_text=head in _WORDS)
        for head, value in (_NUMBERS | _WORDS).items()
    ]
    differing = [column for column in columns if len(set(column.cells)) > 1 or (column.head in _SHOWN and _is_used(column))]
    equal = {column.head: column.cells[0] for column in columns if column not in differing}
    named = (f"{head} {value}" for head, value in equal.items() if head != _ELSEWHERE and value != _SILENT.get(head))
    return differing, ", ".join(named)


def _is_used(column: Column) -> bool:
    return set(column.cells) != {_NONE}
