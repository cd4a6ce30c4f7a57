"""Import of nccl-tests logs (all_reduce_perf and the others): a point per size, from the columns that a release prints.

Formats: src/common.cu and src/util.cu of NVIDIA/nccl-tests. Times are means over a run's iterations, out of place and in place;
sizes are those of `simulator.cluster.collectives.algorithms`. Prefixes added by mpirun, srun or a log collector are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scaleproof.simulator.cluster.collectives.algorithms import OPS, Op, bus_factor
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.names import element_bytes
from scaleproof.validator.calibration.imports.reading import (
    ImportNotes,
    ImportResult,
    Machines,
    as_number,
    group_text,
    ranks_text,
    read_text,
)
from scaleproof.validator.probe.points import Point

_EXPECTED: Final = "a log of nccl-tests, such as all_reduce_perf prints"
_UNREADABLE: Final = "unreadable table lines"
_UNKNOWN: Final = "unknown columns"
# mpirun --tag-output and prterun, srun -l, containers' time stamps.
_PREFIX: Final = re.compile(r"^\s*(?:\[[^\]]*\](?:<std(?:out|err)>)?:?|\d+:|\d{4}-\d\d-\d\dT\S+(?: std(?:out|err) [FP])?)\s?")
_RANK: Final = re.compile(
    r"^#\s*Rank\s+\d+\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+\d+\s+\[[^\]]*\]\s*(.*)$"
)
_NAME: Final = re.compile(r"\b(\w+?)_perf(?:_mpi)?\b")
_SETTINGS: Final = re.compile(r"^#?\s*nThread\s+\d+\s+nGpus\s+\d+\s+minBytes\s")
_ITERATIONS: Final = re.compile(r"(?<!agg )(?<!warmup )iters:\s*(\d+)")
_TABLE_HEAD: Final = re.compile(r"^#?\s*size\s+count\s+(?:\(elements\)\s+)?type\b")
_VALID: Final = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_END: Final = "Avg bus bandwidth"
_USUAL: Final = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
_KNOWN: Final = {*_USUAL, "error"}
# Tests without a collective in the simulator are known too, so that their times are not taken for another's.
_OP_OF: Final[dict[str, Op | None]] = {op.replace("_", ""): op for op in OPS} | {"alltoallv": None, "hypercube": None}


@dataclass
class _LogSection:
    """Part of a log for one run. titled: whether its own line names the columns. ranks: group, host and GPU of each rank."""

    op: Op | None = None
    columns: tuple[str, ...] = _USUAL
    titled: bool = False
    ranks: list[tuple[str, str, str]] = field(default_factory=list)
    iterations: int = 0
    rows: list[_LogLine] = field(default_factory=list)
    ended: bool = False


@dataclass(frozen=True)
class _LogLine:
    """A line of a table. ratio: of bus bandwidth to algorithm bandwidth, 0 if the line has no bus bandwidth."""

    line: int
    size_bytes: float
    reduces: bool
    seconds: tuple[float, ...]
    wrong: float
    ratio: float


def read(paths: Sequence[Path]) -> ImportResult:
    """Points of all logs; times of the same size and group are merged. Raises InputError for a log without points."""
    notes = ImportNotes()
    points: list[Point] = []
    machines: list[Machines] = []
    for path in paths:
        before = len(points)
        for section in _sections(path, read_text(path, _EXPECTED), notes):
            section_points = _points(path, section, notes)
            points += section_points
            machines += [_machines(section)] if section_points else []
        if len(points) == before:
            mine = [line for line in notes.lines() if line.startswith(f"{path}:")]
            why = f" ({' '.join(mine)})" if mine else ""
            raise InputError(f"{path}: no time of a collective found{why}; expected {_EXPECTED}")
    _same_gpus(machines, notes)
    largest = max(machines, key=lambda machine: (machine.nodes, machine.devices))
    return ImportResult("nccl-tests", [str(path) for path in paths], largest, joined(points), notes)


def joined(points: Sequence[Point]) -> list[Point]:
    """Merges points of the same kind, group and size."""
    result: dict[tuple[object, ...], Point] = {}
    for point in points:
        key = (point.probe, point.what, point.group, point.size, point.ranks)
        known = result.get(key)
        seconds = (*(known.seconds if known else ()), *point.seconds)
        result[key] = Point(**{**vars(known or point), "seconds": seconds})
    return list(result.values())


def _sections(path: Path, text: str, notes: ImportNotes) -> Iterator[_LogSection]:
    """Runs of a log; a run begins where settings, ranks or a test's name are printed after a table."""
    section = _LogSection(op=_named(path.name))
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _PREFIX.sub("", raw, count=1).strip()
        settings, rank, test = _SETTINGS.match(line), _RANK.match(line), _test(line)
        if section.rows and (settings or rank or test):
            yield section
            section = _LogSection(op=_named(path.name))
        if settings:
            iterations = _ITERATIONS.search(line)
            section.iterations = int(iterations[1]) if iterations else 0
        elif rank:
            section.ranks.append((rank[1] or "0", rank[2], rank[3].strip()))
        elif test:
            section.op = _OP_OF[test]
        else:
            _line(path, number, line, section, notes)
    yield section
    if section.rows and not section.ended:
        notes.add(f"{path}: ends without '{_END}', as if cut off; the lines before are used")


def _line(path: Path, number: int, line: str, section: _LogSection, notes: ImportNotes) -> None:
    """Processes a line of the table, or of its surroundings."""
    if _TABLE_HEAD.match(line):
        named = tuple(word for word in line.lstrip("# ").split() if word != "(elements)")
        if "time" not in named:
            notes.add(f"{path}:{number}: no column is called 'time'; nccl-tests' usual columns are assumed")
            return
        section.columns = named
        section.titled = True
        if unknown := [name for name in section.columns if name not in _KNOWN]:
            several = ", ".join(dict.fromkeys(unknown))
            notes.add(f"{path}:{number}: {_UNKNOWN}: {several}; the others are used", _UNKNOWN)
    elif (valid := _VALID.search(line)) is not None:
        section.ended = True
        if valid[2] != "OK":
            notes.add(f"{path}:{number}: {valid[1]} results were wrong; their times are used, find the cause")
    elif _END in line:
        section.ended = True
    elif re.match(r"\d+\s+\d+\s", line):
        _row(path, number, line.split(), section, notes)


def _row(path: Path, number: int, words: list[str], section: _LogSection, notes: ImportNotes) -> None:
    """Processes a line of the table, or notes why it is left out."""
    columns = section.columns
    if len(words) != len(columns):
        source = "this table" if section.titled else "nccl-tests"
        notes.add(f"{path}:{number}: {len(words)} columns where {source} has {len(columns)}; line left out", _UNREADABLE)
        return
    values: dict[str, list[str]] = {}
    for name, word in zip(columns, words, strict=True):
        values.setdefault(name, []).append(word)
    if element_bytes(values["type"][0]) is None:
        notes.add(f"{path}:{number}: {values['type'][0]!r} is not a type of nccl-tests; line left out", _UNREADABLE)
        return
    times_us = [as_number(word) for word in values["time"]]
    seconds = tuple(time_us * 1e-6 for time_us in times_us if time_us is not None and time_us > 0)
    if not seconds:
        notes.add(f"{path}:{number}: no time above zero; line left out", _UNREADABLE)
        return
    if any(time_us is not None and time_us <= 0 for time_us in times_us):
        notes.add(f"{path}:{number}: one of two times is not above zero; the other is used", _UNREADABLE)
    wrong = sum(as_number(word) or 0.0 for word in values.get("#wrong", []))
    rates = [(as_number(a), as_number(b)) for a, b in zip(values.get("algbw", []), values.get("busbw", []), strict=False)]
    ratio = next((bus / algorithm for algorithm, bus in rates if algorithm and bus), 0.0)
    reduces = values.get("redop", ["none"])[0] != "none"
    section.rows.append(_LogLine(number, float(words[0]), reduces, seconds, wrong, ratio))


def _test(text: str) -> str | None:
    """The test named in a line or in a file's name, as spelled in _OP_OF."""
    names = (match[1].lower().replace("_", "") for match in _NAME.finditer(text))
    return next((name for name in names if name in _OP_OF), None)


def _named(file_name: str) -> Op | None:
    """The collective that a file's name gives, such as all_gather_perf.log or all_gather.16.log."""
    test = _test(file_name) or re.split(r"[.\d]", file_name.lower())[0].replace("_", "").replace("-", "")
    return _OP_OF.get(test)


def _points(path: Path, section: _LogSection, notes: ImportNotes) -> list[Point]:
    """Points of a run; none, and a note, if its ranks or its collective are unknown."""
    if not section.rows:
        return []
    first = section.rows[0].line
    if not section.ranks:
        notes.add(f"{path}:{first}: no '# Rank' lines above this table, so its group is unknown; table left out")
        return []
    # groups made by NCCL_TESTS_SPLIT are equivalent
    hosts = [host for group, host, _ in section.ranks if group == section.ranks[0][0]]
    ranks, nodes = len(hosts), len(set(hosts))
    if ranks < 2:
        notes.add(f"{path}:{first}: {section.op or 'a collective'} of one rank, which moves no data; table left out")
        return []
    op = section.op or _by_rates(section.rows, ranks)
    if op is None:
        notes.add(f"{path}:{first}: unknown collective; name the file after its test, such as all_gather.log")
        return []
    rows = [row for row in section.rows if row.size_bytes > 0]
    return [_point(op, ranks, nodes, row, section.iterations) for row in rows]


def _point(op: Op, ranks: int, nodes: int, row: _LogLine, iterations: int) -> Point:
    return Point(
        probe="collective",
        what=op,
        where=ranks_text(ranks),
        ranks=tuple(range(ranks)),
        group=group_text(ranks, nodes),
        size=row.size_bytes,
        unit="bytes",
        seconds=row.seconds,
        stopped="narrow",
        numbers={"nodes": float(nodes), "wrong": row.wrong, "iterations": float(iterations)},
    )


def _by_rates(rows: Sequence[_LogLine], ranks: int) -> Op | None:
    """The collective that has a table's ratio of bandwidths, if unambiguous: all_reduce or reduce_scatter."""
    row = max(rows, key=lambda row: row.size_bytes)
    candidates: tuple[Op, ...] = ("all_reduce", "reduce_scatter") if row.reduces else ()
    return next((op for op in candidates if abs(row.ratio / bus_factor(op, ranks) - 1) < 0.02), None)


def _machines(section: _LogSection) -> Machines:
    hosts, gpus = {host for _, host, _ in section.ranks}, [gpu for *_, gpu in section.ranks]
    return Machines(max(gpus, key=gpus.count), len(hosts), -(-len(section.ranks) // len(hosts)))


def _same_gpus(machines: Sequence[Machines], notes: ImportNotes) -> None:
    if len(gpus := sorted({machine.gpu for machine in machines})) > 1:
        notes.add(f"logs of different GPUs ({', '.join(gpus)}); import each kind separately")
