"""Timelines as Chrome trace events, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.common.communication import label_of, named
from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.common.spans import Phase, Stream
from scaleproof.simulator.run.run import Run

_US: Final = 1e6
# Threads of a rank: its main stream, and its communication by phase.
_MAIN: Final = "main"
_COMMUNICATION: Final = {Phase.SEND: "sends", Phase.RECEIVE: "receives", Phase.SYNCHRONISE: "collectives"}
# Phases that are waiting from arrival to end.
_WAITS: Final = (Phase.WAIT, Phase.INPUT)


def write(run: Run, path: Path) -> None:
    """Writes a run's spans to `path`. Raises RunError if the run has no spans or the file cannot be written."""
    if run.spans is None:
        raise RunError(f"{run.scenario}: the run was saved without spans, so that it has no timeline")
    try:
        write_atomically(path, json.dumps(plain(run)).encode())
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; choose another file") from None


def plain(run: Run) -> dict[str, Any]:
    """The trace of a run as plain data for JSON. Viewers show `otherData`, the run and its framework, as metadata."""
    about = {"scenario": run.scenario, "strategy": run.strategy, "origin": run.origin}
    framework = {"framework": run.framework, "framework_is_default": run.framework_is_default} if run.framework else {}
    return {"traceEvents": events(run), "displayTimeUnit": "ms", "otherData": about | framework}


def events(run: Run) -> list[dict[str, Any]]:
    """Trace events of a run, in microseconds.

    Each rank is a process with threads for its main stream, its sends, its receives and its collectives, and further threads
    where these overlap, so that the events of one thread never do.
    """
    assert run.spans is not None
    names = run.rank_names or tuple(f"rank {rank}" for rank in range(run.ranks))
    result: list[dict[str, Any]] = []
    for rank, name in enumerate(names):
        result.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        result.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
    threads = _Threads()
    columns = run.spans.columns()
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    for span in sorted((dict(zip(columns, row, strict=True)) for row in rows), key=lambda span: float(span["start_s"])):
        result += _main(span, threads) if span["stream"] == Stream.MAIN else _communication(span, threads)
    return [*result, *threads.names()]


class _Threads:
    """The threads of all ranks by name, and the time until which each is occupied."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[int, str], list[float]] = {}
        self._numbers: dict[tuple[int, str, int], int] = {}

    def main(self, rank: int) -> int:
        return self._number(rank, _MAIN, 0)

    def free(self, rank: int, name: str, start_s: float, end_s: float) -> int:
        """The first thread of that name that is free at `start_s`; it is occupied until `end_s`."""
        until_s = self._until_s.setdefault((rank, name), [])
        index = next((i for i, occupied_s in enumerate(until_s) if occupied_s <= start_s), len(until_s))
        until_s[index : index + 1] = [end_s]
        return self._number(rank, name, index)

    def names(self) -> Iterator[dict[str, Any]]:
        """Events that name all threads, in the order main, sends, receives, collectives."""
        order = (_MAIN, *_COMMUNICATION.values())
        for (rank, name, index), number in self._numbers.items():
            event = {"ph": "M", "pid": rank, "tid": number}
            yield event | {"name": "thread_name", "args": {"name": name if index == 0 else f"{name} {index + 1}"}}
            yield event | {"name": "thread_sort_index", "args": {"sort_index": 1000 * order.index(name) + index}}

    def _number(self, rank: int, name: str, index: int) -> int:
        return self._numbers.setdefault((rank, name, index), len(self._numbers))


def _main(span: dict[str, Any], threads: _Threads) -> Iterator[dict[str, Any]]:
    """Events of a span of the main stream: the wait before it, and the span itself."""
    thread = threads.main(span["rank"])
    arrival_s, start_s, end_s = span["arrival_s"], span["start_s"], span["end_s"]
    if span["phase"] in _WAITS:
        start_s = arrival_s
    if start_s > arrival_s:
        yield _event(span, thread, f"wait for {_name(span)}", arrival_s, start_s)
    if end_s > start_s:
        yield _event(span, thread, _name(span), start_s, end_s)


def _communication(span: dict[str, Any], threads: _Threads) -> Iterator[dict[str, Any]]:
    """The event of a span of communication."""
    name = _COMMUNICATION[Phase(span["phase"])]
    thread = threads.free(span["rank"], name, span["start_s"], span["end_s"])
    yield _event(span, thread, _name(span), span["start_s"], span["end_s"])


def _name(span: dict[str, Any]) -> str:
    """'forward 3' or 'PP send 3' with the microbatch; layers are arguments, so that viewers add up events by name."""
    what, microbatch = label_of(span["communication"]) or Phase(span["phase"]).label, span["microbatch"]
    return what if microbatch < 0 else f"{what} {microbatch}"


def _arguments(span: dict[str, Any]) -> dict[str, Any]:
    """What is known of a span: its place, and its communication."""
    known = {key: span[key] for key in ("step", "stage", "microbatch") if span[key] >= 0}
    if span["communication"] >= 0:
        dimension, collective = named(span["communication"])
        known |= {"dimension": dimension.label, "collective": collective.label}
        known |= {key: span[key] for key in ("first_layer", "last_layer") if span[key] >= 0}
    return known | {key: span[key] for key in ("calls", "message_bytes", "size_bytes") if span[key] > 0}


def _event(span: dict[str, Any], thread: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": Phase(span["phase"]).label,
        "pid": span["rank"],
        "tid": thread,
        "ts": start_s * _US,
        "dur": (end_s - start_s) * _US,
        "args": _arguments(span),
    }
