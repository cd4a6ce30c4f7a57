"""Import of nccl-tests logs (all_reduce_perf and the others): a point per size, from the columns that a release prints.

Formats: src/common.cu and src/util.cu of NVIDIA/nccl-tests. Times are means over a run's iterations, out of place and in place;
sizes are those of `simulator.cluster.collectives.algorithms`. Prefixes added by mpirun, srun or a log collector are ignored.
rccl-tests prints the same tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import OPS, Op, bus_factor
from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.units import format_time_s
from scaleproof.validator.calibration.imports.merging import CONTRADICTION, SourcedPoint, merged
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
_SETTINGS: Final = re.compile(r"^#?\s*nThread:?\s+\d+\s+nGpus:?\s+\d+\s+minBytes:?\s")
_ITERATIONS: Final = re.compile(r"(?<!agg )(?<!warmup )iters:\s*(\d+)")
_TABLE_HEAD: Final = re.compile(r"^#?\s*size\s+count\s+(?:\(elements\)\s+)?type\b")
_VALID: Final = re.compile(r"Out of bounds values\s*:\s*(\d+)\s+(\w+)")
_END: Final = "Avg bus bandwidth"
_UNITS: Final = re.compile(r"^#?\s*\(B\)\s+\(elements\)\s+(?P<units>\(.*\))$")
# The release of the library: as nccl-tests encodes it, or as the library prints it (NCCL_DEBUG=VERSION).
_CODED_VERSION: Final = re.compile(r"\bnccl-library=(\d{4,6})\b")
_VERSION: Final = re.compile(r"\b[NR]CCL version\s*:?\s*(\d+\.\d+(?:\.\d+)?)")
# Bandwidths are printed with two decimals; smaller ones do not show the unit of a time.
_LEAST_RATE: Final = 0.2
_NEARLY: Final = 0.06
_WRONG: Final = "sizes with wrong results"
_IN_PLACE: Final = "sizes without a time out of place"
_USUAL: Final = ("size", "count", "type", "redop", "root", *("time", "algbw", "busbw", "#wrong") * 2)
_KNOWN: Final = {*_USUAL, "error"}
# Tests without a collective in the simulator are known too, so that their times are not taken for another's.
_OP_OF: Final[dict[str, Op | None]] = {op.replace("_", ""): op for op in OPS} | {"alltoallv": None, "hypercube": None}


@dataclass
class _LogSection:
    """Part of a log for one run. titled: whether its own line names the columns. in_place: whether all its times are.
    has_units: whether the unit of its times is known. ranks: group, host and GPU of each rank."""

    op: Op | None = None
    columns: tuple[str, ...] = _USUAL
    titled: bool = False
    in_place: bool = False
    has_units: bool = False
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


class TestedGroup(NamedTuple):
    """A table of a log. hosts: of its ranks, each once. points: its times."""

    op: Op
    hosts: tuple[str, ...]
    ranks: int
    points: Sequence[SourcedPoint]


def tested_groups(path: Path, notes: ImportNotes) -> list[TestedGroup]:
    """The usable tables of a log. Raises InputError if it is not text, or for a table in another unit."""
    return [group for _, group in _tested(path, read_text(path, _EXPECTED), notes)]


def _tested(path: Path, text: str, notes: ImportNotes) -> Iterator[tuple[_LogSection, TestedGroup]]:
    for section in _sections(path, text, notes):
        if points := _points(path, section, notes):
            hosts = tuple(dict.fromkeys(host for group, host, _ in section.ranks if group == section.ranks[0][0]))
            yield section, TestedGroup(_op(points[0].point.what), hosts, len(points[0].point.ranks), points)


def _op(name: str) -> Op:
    return next(op for op in OPS if op == name)


def read(paths: Sequence[Path], keep_median: bool = False) -> ImportResult:
    """Points of all logs; times of the same size and group are merged.

    keep_median: keeps the median of contradictory times, and allows logs of several releases of the library. Raises InputError
    for a log without points, and, unless the median is kept, for contradictory times or releases.
    """
    notes = ImportNotes()
    points: list[SourcedPoint] = []
    machines: list[Machines] = []
    versions: dict[str, str] = {}
    for path in paths:
        before, text = len(points), read_text(path, _EXPECTED)
        for section, group in _tested(path, text, notes):
            points += group.points
            machines.append(_machines(section))
        if len(points) == before:
            mine = [line for line in notes.lines() if line.startswith(f"{path}:")]
            why = f" ({' '.join(mine)})" if mine else ""
            raise InputError(f"{path}: no time of a collective found{why}; expected {_EXPECTED}")
        for number, line in enumerate(text.splitlines(), start=1):
            if version := _version(line):
                versions.setdefault(version, f"{path}:{number}")
    _check_versions(versions, notes, keep_median)
    _same_gpus(machines, notes)
    largest = max(machines, key=lambda machine: (machine.nodes, machine.devices))
    library = next(iter(versions)) if len(versions) == 1 else ""
    names = [str(path) for path in paths]
    return ImportResult("nccl-tests", names, largest, merged(points, notes, keep_median), notes, library)


def _version(line: str) -> str:
    """The release of the library that a line names, such as '2.28.7'; "" if it names none."""
    if plain := _VERSION.search(line):
        return plain[1]
    coded = _CODED_VERSION.search(line)
    if coded is None:
        return ""
    code = int(coded[1])
    # nccl.h: X·10000 + Y·100 + Z from release 2.9 on, X·1000 + Y·100 + Z before
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def _check_versions(versions: dict[str, str], notes: ImportNotes, keep_median: bool) -> None:
    """Raises InputError for several releases of the library, or notes them. versions: where each is named first."""
    if len(versions) < 2:
        return
    found = ", ".join(f"{where}: {version}" for version, where in versions.items())
    if not keep_median:
        what = "import the logs of each release separately, or all of them together with --median"
        raise InputError(f"logs of several releases of the library, whose times differ ({found}); {what}")
    notes.add(f"logs of several releases of the library ({found}) are used together, as --median says")


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
        if missing := next((name for name in ("time", "type") if name not in named), ""):
            notes.add(f"{path}:{number}: no column is called '{missing}'; nccl-tests' usual columns are assumed")
            return
        section.columns = named
        section.titled = True
        if unknown := [name for name in section.columns if name not in _KNOWN]:
            several = ", ".join(dict.fromkeys(unknown))
            notes.add(f"{path}:{number}: {_UNKNOWN}: {several}; the others are used", _UNKNOWN)
    elif (units := _UNITS.match(line)) is not None:
        times = {word for word in re.findall(r"\(([^)]*)\)", units["units"]) if not word.endswith("/s")}
        if times - {"us"}:
            several = ", ".join(sorted(times))
            raise InputError(f"{path}:{number}: times in {several}; nccl-tests prints microseconds (us); convert the table")
        section.has_units = bool(times)
    elif re.fullmatch(r"#?\s*in-place", line):
        section.in_place = True
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
    if not any(time_us is not None and time_us > 0 for time_us in times_us):
        notes.add(f"{path}:{number}: no time above zero; line left out", _UNREADABLE)
        return
    place = f"{path}:{number}"
    seconds = _seconds(place, times_us, section.in_place, notes)
    wrong = sum(as_number(word) or 0.0 for word in values.get("#wrong", []))
    if wrong:
        notes.add(f"{place}: {wrong:.0f} results of this size were wrong; its time is used, find the cause", _WRONG)
    rates = [(as_number(a), as_number(b)) for a, b in zip(values.get("algbw", []), values.get("busbw", []), strict=False)]
    for time_us, (rate_GBps, _) in zip(times_us, rates, strict=False):
        section.has_units |= _shows_unit(place, float(words[0]), time_us, rate_GBps)
    ratio = next((bus / algorithm for algorithm, bus in rates if algorithm and bus), 0.0)
    reduces = values.get("redop", ["none"])[0] != "none"
    section.rows.append(_LogLine(number, float(words[0]), reduces, seconds, wrong, ratio))


def _seconds(place: str, times_us: Sequence[float | None], in_place: bool, notes: ImportNotes) -> tuple[float, ...]:
    """Seconds of a line, at least one of which is above zero: out of place and in place, or one of them with a note.

    in_place: whether the only column of times is in place.
    """
    known = tuple(time_us * 1e-6 for time_us in times_us if time_us is not None and time_us > 0)
    if any(time_us is not None and time_us <= 0 for time_us in times_us):
        notes.add(f"{place}: one of two times is not above zero; the other is used", _UNREADABLE)
    elif times_us[0] is None or (in_place and len(times_us) == 1):
        notes.add(f"{place}: no time out of place; the one in place is used", _IN_PLACE)
    elif len(known) > 1 and max(known) > CONTRADICTION * min(known):
        times = " out of place, ".join(format_time_s(time_s) for time_s in known[:2])
        notes.add(f"{place}: {times} in place; the one out of place is used", "sizes that take longer in one place")
        return known[:1]
    return known


def _shows_unit(place: str, size_bytes: float, time_us: float | None, rate_GBps: float | None) -> bool:
    """Whether a bandwidth shows that a time is in microseconds. Raises InputError if it shows that it is not."""
    if not size_bytes or not time_us or time_us <= 0 or not rate_GBps or rate_GBps < _LEAST_RATE:
        return False
    expected_GBps = size_bytes / time_us / 1e3
    if abs(expected_GBps / rate_GBps - 1) > _NEARLY:
        given = f"size over time is {expected_GBps:.4g} GB/s if the time is in us, but algbw is {rate_GBps:.4g} GB/s"
        raise InputError(f"{place}: {given}; give the table as nccl-tests prints it, in B, us and GB/s")
    return True


def _test(text: str) -> str | None:
    """The test named in a line or in a file's name, as spelled in _OP_OF."""
    names = (match[1].lower().replace("_", "") for match in _NAME.finditer(text))
    return next((name for name in names if name in _OP_OF), None)


def _named(file_name: str) -> Op | None:
    """The collective that a file's name gives, such as all_gather_perf.log or all_gather.16.log."""
    test = _test(file_name) or re.split(r"[.\d]", file_name.lower())[0].replace("_", "").replace("-", "")
    return _OP_OF.get(test)


def _points(path: Path, section: _LogSection, notes: ImportNotes) -> list[SourcedPoint]:
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
    if not section.has_units:
        what = "no line '(us)', and no bandwidth that shows the unit"
        notes.add(f"{path}:{first}: the unit of these times is unknown ({what}); table left out; give the log with its header")
        return []
    rows = [row for row in section.rows if row.size_bytes > 0]
    return [SourcedPoint(_point(op, ranks, nodes, row, section.iterations), f"{path}:{row.line}") for row in rows]


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
