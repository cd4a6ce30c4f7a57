"""Timelines as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from scaleproof.simulator.common.errors import RunError
from scaleproof.simulator.run.run import Phase, Run, Stream, write_aside

_US: Final = 1e6
# the threads of a rank: its main stream, and what moves beside it by phase
_MAIN: Final = "main"
_BESIDE: Final = {Phase.SEND: "sends", Phase.RECEIVE: "receives", Phase.SYNCHRONISE: "collectives"}
# these are waits from arrival to end
_WAITS: Final = (Phase.WAIT, Phase.INPUT)


def write(run: Run, path: Path) -> None:
    """Writes the run's spans to `path`. Raises RunError when it has none or the file cannot be written."""
    if run.spans is None:
        raise RunError(f"{run.scenario}: the run was kept without spans, there is no timeline to write")
    try:
        write_aside(path, json.dumps(plain(run)).encode())
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; choose another file") from None


def plain(run: Run) -> dict[str, Any]:
    """The trace as data for JSON. `otherData`, which viewers show as metadata, names the run and its framework."""
    about = {"scenario": run.scenario, "strategy": run.strategy, "origin": run.origin}
    framework = {"framework": run.framework, "framework_is_default": run.framework_is_default} if run.framework else {}
    return {"traceEvents": events(run), "displayTimeUnit": "ms", "otherData": about | framework}


def events(run: Run) -> list[dict[str, Any]]:
    """Trace events in microseconds: a process per rank, with a thread for its main stream and one each for what it sends, what
    it receives and its collectives; further ones where those overlap. Nothing within a thread does."""
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
        result += _main(span, threads) if span["stream"] == Stream.MAIN else _beside(span, threads)
    return [*result, *threads.names()]


class _Threads:
    """Threads of every rank by name, and until when each is taken."""

    def __init__(self) -> None:
        self._until_s: dict[tuple[int, str], list[float]] = {}
        self._numbers: dict[tuple[int, str, int], int] = {}

    def main(self, rank: int) -> int:
        return self._number(rank, _MAIN, 0)

    def free(self, rank: int, name: str, start_s: float, end_s: float) -> int:
        """The first thread of that name that nothing is in by `start_s`; it is taken until `end_s`."""
        until_s = self._until_s.setdefault((rank, name), [])
        which = next((i for i, taken_s in enumerate(until_s) if taken_s <= start_s), len(until_s))
        until_s[which : which + 1] = [end_s]
        return self._number(rank, name, which)

    def names(self) -> Iterator[dict[str, Any]]:
        """Events that name all threads, in the order main, sends, receives, collectives."""
        order = (_MAIN, *_BESIDE.values())
        for (rank, name, which), number in self._numbers.items():
            at = {"ph": "M", "pid": rank, "tid": number}
            yield at | {"name": "thread_name", "args": {"name": name if which == 0 else f"{name} {which + 1}"}}
            yield at | {"name": "thread_sort_index", "args": {"sort_index": 1000 * order.index(name) + which}}

    def _number(self, rank: int, name: str, which: int) -> int:
        return self._numbers.setdefault((rank, name, which), len(self._numbers))


def _main(span: dict[str, Any], threads: _Threads) -> Iterator[dict[str, Any]]:
    """What a rank did on its main stream, and how long it waited for that before."""
    thread = threads.main(span["rank"])
    arrival_s, start_s, end_s = span["arrival_s"], span["start_s"], span["end_s"]
    if span["phase"] in _WAITS:
        start_s = arrival_s
    if start_s > arrival_s:
        yield _event(span, thread, f"wait for {_name(span)}", arrival_s, start_s)
    if end_s > start_s:
        yield _event(span, thread, _name(span), start_s, end_s)


def _beside(span: dict[str, Any], threads: _Threads) -> Iterator[dict[str, Any]]:
    """What moved beside the main stream."""
    name = _BESIDE[Phase(span["phase"])]
    thread = threads.free(span["rank"], name, span["start_s"], span["end_s"])
    yield _event(span, thread, _name(span), span["start_s"], span["end_s"])


def _name(span: dict[str, Any]) -> str:
    phase, microbatch = Phase(span["phase"]).label, span["microbatch"]
    return phase if microbatch < 0 else f"{phase} {microbatch}"


def _event(span: dict[str, Any], thread: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    return {
        "ph": "X",
        "name": name,
        "cat": Phase(span["phase"]).label,
        "pid": span["rank"],
        "tid": thread,
        "ts": start_s * _US,
        "dur": (end_s - start_s) * _US,
        "args": {key: span[key] for key in ("step", "stage", "microbatch", "size_bytes") if span[key] >= 0},
    }
