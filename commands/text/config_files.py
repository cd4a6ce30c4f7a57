"""Console text of configuration files that were read as a scenario: what became of each key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from scaleproof.commands.text.tables import table, wrapped
from scaleproof.simulator.scenario.config_files import Line


def describe_config_files(paths: Sequence[str], lines: Sequence[Line]) -> str:
    """What became of each key, in columns; keys that are ignored for the same reason in one paragraph."""
    rows = [(line.kind, line.key or line.field, line.reason or line.field) for line in lines if line.kind != "ignored"]
    shown = [f"from {', '.join(paths)}", *table(_without_repeats(rows), "<", indent="  ")]
    ignored: dict[str, list[str]] = {}
    for line in lines:
        if line.kind == "ignored":
            ignored.setdefault(line.reason, []).append(line.key)
    for reason, keys in ignored.items():
        shown += wrapped(f"{reason}: {', '.join(keys)}", "  ignored  ", "    ")
    return "\n".join(shown)


def _without_repeats(rows: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """The rows, each kind in its first one alone."""
    before = ""
    for kind, key, result in rows:
        yield ("" if kind == before else kind), key, result
        before = kind
