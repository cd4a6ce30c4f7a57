"""Timelines as Chrome trace events, which Perfetto and chrome://tracing open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from simulator.errors import RunError
from simulator.run import Phase, Run, Stream, write_aside


def write(run: Run, path: Path) -> None:
    """Writes the run's spans to `path`. Raises RunError when it has none or the file cannot be written."""
    if run.spans is None:
        raise RunError(f"{run.scenario}: the run was kept without spans, there is no timeline to write")
    try:
        write_aside(path, json.dumps({"traceEvents": events(run), "displayTimeUnit": "ms"}).encode())
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; choose another file") from None


def events(run: Run) -> list[dict[str, Any]]:
    """Trace events: one process per rank, its main stream and its communication as threads; microseconds."""
    assert run.spans is not None
    names = run.rank_names or tuple(f"rank {rank}" for rank in range(run.ranks))
    result: list[dict[str, Any]] = []
    for rank, name in enumerate(names):
        result.append({"ph": "M", "name": "process_name", "pid": rank, "args": {"name": name}})
        result.append({"ph": "M", "name": "process_sort_index", "pid": rank, "args": {"sort_index": rank}})
        for stream in Stream:
            args = {"name": stream.name.lower()}
            result.append({"ph": "M", "name": "thread_name", "pid": rank, "tid": int(stream), "args": args})
    columns = run.spans.columns()
    for row in zip(*(column.tolist() for column in columns.values()), strict=True):
        result.append(_event(dict(zip(columns, row, strict=True))))
    return result


def _event(span: dict[str, Any]) -> dict[str, Any]:
    phase, microbatch = Phase(span["phase"]).label, span["microbatch"]
    name = phase if microbatch < 0 else f"{phase} {microbatch}"
    args = {key: span[key] for key in ("step", "stage", "microbatch", "size_bytes") if span[key] >= 0}
    args["waited_us"] = (span["start_s"] - span["arrival_s"]) * 1e6
    return {
        "ph": "X",
        "name": name,
        "cat": phase,
        "pid": span["rank"],
        "tid": span["stream"],
        "ts": span["arrival_s"] * 1e6,
        "dur": (span["end_s"] - span["arrival_s"]) * 1e6,
        "args": args,
    }
