"""Import of torch.profiler (Kineto) traces: steps, kernels and collectives of each rank, in seconds.

Formats: libkineto's output_json.cpp and torch/csrc/profiler/util.h, which add a collective's name, elements, type and group to
the kernels of NCCL. Without kernels, as on CPUs, operators are the computation and gloo's ranges the communication.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.cluster.collectives.groups import Op
from scaleproof.simulator.common.errors import InputError
from scaleproof.validator.calibration.imports.json_stream import read_list
from scaleproof.validator.calibration.imports.names import collective, collective_of_kernel, element_bytes, is_communication
from scaleproof.validator.calibration.imports.reading import ImportNotes, as_list, as_number

_EXPECTED: Final = "a trace that torch.profiler exports (export_chrome_trace)"
_US: Final = 1e-6
_STEP: Final = "ProfilerStep"
# Categories; releases before 1.12 write Kernel, Memcpy, Runtime and Operator.
_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset")
_LAUNCHES: Final = ("cuda_runtime", "cuda_driver", "xpu_runtime", "privateuse1_runtime", "runtime")
_OPERATORS: Final = ("cpu_op", "operator")
_ANNOTATIONS: Final = ("user_annotation", "python_function")
# Arguments of operators that are used.
_OF_OPERATORS: Final = ("Sequence number", "Fwd thread id")
_SHAPES: Final = "Input Dims"
# Prefixes of operators that only wrap communication.
_GLOO: Final = "gloo:"
_AROUND: Final = ("c10d::", _GLOO, "record_param_comms", "nccl:")


class TraceSpan(NamedTuple):
    """A named interval. thread: of the host."""

    name: str
    start_s: float
    end_s: float
    thread: str = ""


class DeviceWork(NamedTuple):
    """Work of a device. launched_s: when the host launched it. thread: host thread that launched it. way: of a message,
    "send" or "recv"; "" if unknown. shape: of its grid, which differs where a kernel has more to do; "" if unknown."""

    name: str
    start_s: float
    end_s: float
    launched_s: float
    thread: str
    exchange: TracedCollective | None = None
    way: str = ""
    shape: str = ""


class TracedCollective(NamedTuple):
    """A collective in a trace. op: None if only its time is known. group: its name. members: its ranks. description: words of
    the program that made the group, such as 'mesh_tp'. ends: ranks that send and receive a message, empty if unknown."""

    op: Op | None
    size_bytes: float
    elements: str
    group: str
    members: tuple[int, ...]
    size: int
    description: str = ""
    ends: tuple[int, ...] = ()


@dataclass
class Trace:
    """Trace of one rank. rank, world: -1 and 0 if unknown. host: "" if unknown. devices: number of GPUs that its process sees.
    device: the GPU of its works, -1 if unknown. has_steps: whether steps are marked; otherwise the whole trace is one.
    has_device: whether works are those of a device, not operators of the host. operators: of the host, with their
    arguments."""

    path: Path
    rank: int = -1
    world: int = 0
    host: str = ""
    gpu: str = ""
    devices: int = 0
    device: int = -1
    has_steps: bool = True
    has_device: bool = True
    steps: list[TraceSpan] = field(default_factory=list)
    works: list[DeviceWork] = field(default_factory=list)
    annotations: list[TraceSpan] = field(default_factory=list)
    operators: list[tuple[TraceSpan, Mapping[str, Any]]] = field(default_factory=list)

    @property
    def exchanges(self) -> list[tuple[DeviceWork, TracedCollective]]:
        """Communication in order of its start."""
        exchanges = [(work, work.exchange) for work in self.works if work.exchange is not None]
        return sorted(exchanges, key=lambda pair: pair[0].start_s)


def read(path: Path, notes: ImportNotes) -> Trace:
    """Reads one rank's trace. Raises InputError if it is not such a trace, or nothing in it takes time."""
    trace = Trace(path)
    events = _Events()
    document = read_list(path, "traceEvents", _EXPECTED, notes, events.add)
    if not events.timed:
        raise InputError(f"{path}: no events with a category and a duration; expected {_EXPECTED}")
    _read_metadata(document, trace)
    events.fill(trace, notes)
    if not trace.works:
        raise InputError(f"{path}: neither kernels nor operators found; expected {_EXPECTED}")
    if not trace.steps:
        start_s, end_s = min(work.launched_s for work in trace.works), max(work.end_s for work in trace.works)
        trace.steps, trace.has_steps = [TraceSpan("the whole trace", start_s, end_s)], False
    return trace


def _category(event: Any) -> str:
    return str(event.get("cat", "")).lower() if isinstance(event, dict) and as_number(event.get("dur")) is not None else ""


def _read_metadata(document: Mapping[str, Any], trace: Trace) -> None:
    """Sets rank, world, host and GPU, which newer releases record."""
    distributed = document.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    trace.rank = int(as_number(distributed.get("rank", -1)) or 0)
    trace.world = int(as_number(distributed.get("world_size", 0)) or 0)
    trace.host = str(document.get("host_name", ""))
    devices = [
        device for device in as_list(document.get("deviceProperties")) if isinstance(device, dict) and device.get("name")
    ]
    trace.devices = len(devices)
    trace.gpu = str(devices[0]["name"]) if devices else ""


class _Events:
    """What matters of a trace's events. timed: number of events with a category and a duration."""

    def __init__(self) -> None:
        self.timed = 0
        self._damaged = 0
        self._launches: dict[str, tuple[float, str]] = {}
        self._on_device: list[tuple[Mapping[str, Any], TraceSpan, str]] = []
        self._ranges: list[tuple[Mapping[str, Any], TraceSpan]] = []
        self._operators: list[tuple[TraceSpan, Mapping[str, Any]]] = []
        self._steps: list[TraceSpan] = []

    def add(self, event: Any) -> None:
        """Adds an event of any kind."""
        category = _category(event)
        self.timed += bool(category)
        if not isinstance(event, dict) or event.get("ph") != "X":
            return
        span, arguments = _span(event), event.get("args")
        arguments = arguments if isinstance(arguments, dict) else {}
        if span is None:
            self._damaged += 1
        elif category in _ON_DEVICE:
            self._on_device.append((arguments, span, str(arguments.get("device", event.get("pid")))))
        elif category in _LAUNCHES:
            self._launches[str(arguments.get("correlation"))] = (span.start_s, span.thread)
        elif span.name.startswith(_STEP) and not category.startswith("gpu_"):
            self._steps.append(span)
        elif category in _OPERATORS:
            kept = {name: arguments[name] for name in _OF_OPERATORS if name in arguments}
            if _SHAPES in arguments:
                kept[_SHAPES] = sys.intern(str(arguments[_SHAPES]))
            self._operators.append((span, kept))
        elif category in _ANNOTATIONS:
            self._ranges.append((arguments if span.name.startswith(_GLOO) else {}, span))

    def fill(self, trace: Trace, notes: ImportNotes) -> None:
        """Sets a trace's steps, works, annotations and operators."""
        if self._damaged:
            notes.add(f"{trace.path}: {self._damaged} events without a readable time; left out")
        trace.steps = sorted(self._steps, key=lambda span: span.start_s)
        trace.operators, trace.annotations = self._operators, [span for _, span in self._ranges]
        trace.has_device = bool(self._on_device)
        if trace.has_device:
            # of the busiest device, if a process has several
            busiest = Counter(number for _, _, number in self._on_device).most_common(1)[0][0]
            trace.device = int(busiest) if busiest.isdecimal() else -1
            trace.works = list(self._kernels(busiest, trace.rank))
        else:
            trace.works = list(_host_works(trace, self._ranges))

    def _kernels(self, busiest: str, rank: int) -> Iterator[DeviceWork]:
        """Kernels of a device of a rank."""
        for arguments, span, number in self._on_device:
            if number == busiest:
                launched_s, thread = self._launches.get(str(arguments.get("correlation")), (span.start_s, "None"))
                exchange = _exchange(arguments, span.name, rank) if is_communication(span.name) else None
                named = str(arguments.get("Collective name", "")).lower()
                way = named if named in ("send", "recv") else ""
                shape = sys.intern(str(arguments.get("grid", "")))
                yield DeviceWork(span.name, span.start_s, span.end_s, launched_s, thread, exchange, way, shape)


def _span(event: Mapping[str, Any]) -> TraceSpan | None:
    start_us, duration_us = as_number(event.get("ts")), as_number(event.get("dur"))
    if start_us is None or duration_us is None or duration_us < 0:
        return None
    # names repeat a million times
    name, thread = sys.intern(str(event.get("name", ""))), sys.intern(str(event.get("tid")))
    return TraceSpan(name, start_us * _US, (start_us + duration_us) * _US, thread)


def _exchange(arguments: Mapping[str, Any], name: str, rank: int) -> TracedCollective:
    """Communication of an NCCL kernel of a rank: from torch's arguments, otherwise from its name."""
    recorded = arguments.get("Collective name")
    op = collective(str(recorded)) if recorded else collective_of_kernel(name)
    elements = str(arguments.get("dtype", ""))
    counts = [as_number(arguments.get(f"{direction} msg nelems")) or 0.0 for direction in ("In", "Out")]
    size_bytes = max(counts) * (element_bytes(elements) or 0)
    members = tuple(int(number) for number in re.findall(r"\d+", str(arguments.get("Process Group Ranks", ""))))
    size = int(as_number(arguments.get("Group size")) or len(members))
    # long lists are abbreviated in the trace
    members = members if len(members) == size else ()
    group, description = (str(arguments.get(f"Process Group {key}", "")) for key in ("Name", "Description"))
    # torch names the other end of a message
    ends = tuple(int(as_number(arguments.get(f"{end} Rank", rank)) or 0) for end in ("Src", "Dst"))
    ends = ends if op == "sendrecv" and rank in ends and ends[0] != ends[1] else ()
    return TracedCollective(op if size_bytes else None, size_bytes, elements, group, members, size, description, ends)


def _host_works(trace: Trace, ranges: Sequence[tuple[Mapping[str, Any], TraceSpan]]) -> Iterator[DeviceWork]:
    """Works of a trace without a device: operators, and gloo's ranges, which record the shapes of their tensors."""
    for span, arguments in trace.operators:
        if not span.name.startswith(_AROUND):
            shape = str(arguments.get(_SHAPES, ""))
            yield DeviceWork(span.name, span.start_s, span.end_s, span.start_s, span.thread, shape=shape)
    for arguments, span in ranges:
        if span.name.startswith(_GLOO):
            exchange = _gloo(arguments, span.name, trace.world)
            yield DeviceWork(span.name, span.start_s, span.end_s, span.start_s, span.thread, exchange)


def _gloo(arguments: Mapping[str, Any], name: str, world: int) -> TracedCollective:
    shapes, kinds = as_list(arguments.get(_SHAPES)), [str(kind) for kind in as_list(arguments.get("Input type"))]
    sized = [(shape, element_bytes(kind)) for shape, kind in zip(shapes, kinds, strict=False) if isinstance(shape, list)]
    known = [(shape, size) for shape, size in sized if size and all(isinstance(n, int) for n in shape)]
    size_bytes = float(sum(prod(shape) * size for shape, size in known))
    op = collective(name) if size_bytes else None
    return TracedCollective(op, size_bytes, kinds[0] if kinds else "", "", tuple(range(world)), world)
