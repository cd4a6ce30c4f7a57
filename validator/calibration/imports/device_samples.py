"""Import of samples of GPUs over time: CSV tables of `nvidia-smi --query-gpu`, tables of `nvidia-smi dmon` and of `dcgmi dmon`,
and what dcgm-exporter serves to Prometheus, once or several times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_number, clock_text, read_text

_EXPECTED: Final = (
    "a CSV table of nvidia-smi with clocks.sm, a table of nvidia-smi dmon with pclk or of dcgmi dmon with SMCLK, or metrics of "
    "dcgm-exporter with DCGM_FI_DEV_SM_CLOCK"
)
# From this number of samples of a GPU on, its clock is compared with that of others.
FEWEST: Final = 3
# Columns by what they report: names of nvidia-smi without their unit, of its dmon, and of dcgmi.
_COLUMNS: Final[Mapping[str, re.Pattern[str]]] = {
    "date": re.compile(r"^date$", re.I),
    "time": re.compile(r"^time(?:stamp)?$", re.I),
    "device": re.compile(r"^(?:index|gpu|entity|id)$", re.I),
    "clock": re.compile(r"^(?:clocks\.(?:current\.)?(?:sm|graphics|gr)|smclk|sm_clock|pclk)$", re.I),
    "temperature": re.compile(r"^(?:temperature\.gpu|tmptr|gpu_temp|gtemp)$", re.I),
    "utilisation": re.compile(r"^(?:utilization\.gpu|gputl|gract|smact|gpu_util|gr_engine_active|sm)$", re.I),
    "reasons": re.compile(r"^clocks?_(?:throttle|event)_reasons(?:\.active)?$", re.I),
}
# A metric of dcgm-exporter, its labels, and its value, which a time in milliseconds may follow.
_METRIC: Final = re.compile(r"^DCGM_FI_(?:DEV|PROF)_(\w+)\{(.*)\} +(\S+)(?: +(\d+))?$", re.M)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
# Reasons that NVML reports as bits (nvml.h), and nvidia-smi as columns.
_REASONS: Final = {
    0x4: "power cap", 0x8: "hardware slowdown", 0x20: "software thermal limit", 0x40: "hardware thermal limit",
    0x80: "power brake",
}  # fmt: skip
_REASON_COLUMN: Final = re.compile(
    r"^clocks_(?:throttle|event)_reasons\.(sw_power_cap|hw_slowdown|sw_thermal_slowdown|hw_thermal_slowdown|hw_power_brake_slowdown)$"
)


@dataclass
class DeviceSamples:
    """Samples of a GPU. host: as in the file, or the file's name. times: as in the file, "" if unknown. clocks_MHz: of its
    processors. busy: whether it worked. reasons: why its clock was lower, in words."""

    path: Path
    device: str
    host: str
    times: list[str] = field(default_factory=list)
    clocks_MHz: list[float] = field(default_factory=list)
    temperatures: list[float] = field(default_factory=list)
    busy: list[bool] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, clock_MHz: float, values: Mapping[str, str], reasons: Iterable[str]) -> None:
        """Adds a sample. values: cells by what they report."""
        self.times.append(" ".join(values[name] for name in ("date", "time") if values.get(name)))
        self.clocks_MHz.append(clock_MHz)
        self.temperatures.append(as_number(_bare(values.get("temperature", ""))) or 0.0)
        used = as_number(_bare(values.get("utilisation", "100"))) or 0.0
        self.busy.append(used >= (50.0 if used > 1.0 else 0.5))
        self.reasons.append(", ".join(dict.fromkeys(reasons)))


def is_table(text: str) -> bool:
    """Whether a text begins with the head of such a table, or has such metrics."""
    return _head(text.splitlines()) is not None or "SM_CLOCK" in {match[1] for match in _METRIC.finditer(text)}


def _head(lines: Sequence[str]) -> int | None:
    """The position of the line with the names of columns."""
    return next((number for number, line in enumerate(lines[:3]) if "clock" in _places(_words(line))), None)


def read(path: Path, notes: ImportNotes) -> list[DeviceSamples]:
    """The samples of each device. Raises InputError without any."""
    text = read_text(path, _EXPECTED)
    lines = text.splitlines()
    head = _head(lines)
    found = _of_metrics(path, text) if head is None else _of_table(path, lines, head, notes)
    if not found:
        raise InputError(f"{path}: no sample has a clock; expected {_EXPECTED}")
    if all(len(one.times) < FEWEST for one in found):
        notes.add(f"{path}: fewer than {FEWEST} samples of each GPU, too few to compare their clocks; sample for longer")
    return found


def _of_table(path: Path, lines: Sequence[str], head: int, notes: ImportNotes) -> list[DeviceSamples]:
    names = _words(lines[head])
    places = _places(names)
    found: dict[str, DeviceSamples] = {}
    for number, line in enumerate(lines[head + 1 :], start=head + 2):
        words = _words(line)
        clock = as_number(_bare(words[places["clock"]])) if len(words) == len(names) else None
        if clock is None or clock <= 0:
            if line.strip() and not line.lstrip().lower().startswith(("id", "#", "timestamp")):
                notes.add(f"{path}:{number}: no clock; line left out", "samples without a clock")
            continue
        values = {name: words[place] for name, place in places.items()}
        device = re.sub(r"\D", "", values.get("device", "0")) or "0"
        own = found.setdefault(device, DeviceSamples(path, device, path.name.partition(".")[0]))
        own.add(clock, values, _reasons(names, words, values.get("reasons", "")))
    return list(found.values())


def _of_metrics(path: Path, text: str) -> list[DeviceSamples]:
    """Samples from metrics: the n-th values of each metric of a device are those of its n-th sample."""
    series: dict[tuple[str, str], dict[str, list[str]]] = {}
    metrics: dict[tuple[tuple[str, str], str], str] = {}
    for match in _METRIC.finditer(text):
        labels = dict(_LABEL.findall(match[2]))
        place = labels.get("Hostname", path.name.partition(".")[0]), labels.get("gpu", "0")
        own = series.setdefault(place, {})
        if match[1] == "SM_CLOCK":
            own.setdefault("time", []).append(clock_text(1e-3 * float(match[4])) if match[4] else "")
        for name in _places([match[1]]):
            # of several metrics of the utilisation the first
            if metrics.setdefault((place, name), match[1]) == match[1]:
                own.setdefault(name, []).append(match[3])
    found = []
    for (host, device), own in series.items():
        samples = DeviceSamples(path, device, host)
        for number, text_of in enumerate(own.get("clock", [])):
            values = {name: column[number] for name, column in own.items() if number < len(column)}
            clock = as_number(text_of)
            if clock is not None and clock > 0:
                samples.add(clock, values, _reasons([], [], values.get("reasons", "")))
        found += [samples] if samples.times else []
    return found


def _words(line: str) -> list[str]:
    """Cells of a line of a CSV table, or words of a line of dcgmi, whose entities are two words."""
    line = re.sub(r"^\s*#\s*", "", line)
    if "," in line:
        return [cell.strip() for cell in line.split(",")]
    return re.sub(r"^\s*(GPU|Switch)\s+(?=\d)", r"\1", line).split()


def _places(words: Sequence[str]) -> dict[str, int]:
    """Positions of known columns in a head."""
    bare = [re.sub(r"\s*\[.*\]$", "", word) for word in words]
    found = ((name, [place for place, word in enumerate(bare) if pattern.match(word)]) for name, pattern in _COLUMNS.items())
    return {name: places[0] for name, places in found if places}


def _bare(cell: str) -> str:
    """A number without its unit."""
    return cell.split()[0] if cell.split() else ""


def _reasons(names: Sequence[str], words: Sequence[str], bits: str) -> Iterator[str]:
    try:
        mask = int(bits, 16) if bits.lower().startswith("0x") else int(float(bits or 0))
    except (ValueError, OverflowError):
        mask = 0
    yield from (words_of for bit, words_of in _REASONS.items() if mask & bit)
    for name, word in zip(names, words, strict=True):
        match = _REASON_COLUMN.match(name)
        if match and word.lower() == "active":
            yield match[1].replace("_", " ").replace("sw", "software").replace("hw", "hardware")
