"""The measured run of a job's traces: step times, breakdown, spans and communication of the traced ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from scaleproof.simulator.common.errors import InputError
from scaleproof.simulator.common.spans import Phase, Spans
from scaleproof.simulator.common.units import counted
from scaleproof.simulator.prediction.accounting import accounted
from scaleproof.simulator.run.breakdown import from_spans
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.schema import Scenario
from scaleproof.validator.calibration.imports import chakra, kineto, nsight
from scaleproof.validator.calibration.imports.kineto import Trace
from scaleproof.validator.calibration.imports.reading import ImportNotes, byte_parts
from scaleproof.validator.reconciliation.jobs.contradictions import check_world
from scaleproof.validator.reconciliation.jobs.dimensions import Dimensions
from scaleproof.validator.reconciliation.jobs.trace_phases import Phases
from scaleproof.validator.reconciliation.jobs.trace_spans import (
    SpanColumns,
    TracedRank,
    TracedTransfer,
    add_rank,
    transfer_times_s,
    transfers,
)
from scaleproof.validator.reconciliation.jobs.trace_steps import steps_of
from scaleproof.validator.record.assemble import rank_names
from scaleproof.validator.record.step_time import slope_interval_s

_CHAKRA: Final = re.compile(r"\.(?:et|chakra)(?:\.gz)?$|\bchakra\b|\.et\.json(?:\.gz)?$", re.I)
_NUMBER: Final = re.compile(r"(\d+)\D*$")


def read(paths: Sequence[Path], report: Callable[[str], None], notes: ImportNotes, files: int = 0) -> list[Trace]:
    """Reads one trace per rank: of torch.profiler, of Nsight Systems (SQLite), or, if its name says so (.et, or chakra), a
    Chakra execution trace. files: number of ranks' files, if more than these."""
    traces = []
    for number, path in enumerate(paths, start=1):
        report(f"reading {path} ({number} of {len(paths)})")
        if is_chakra(path):
            traces.append(chakra.read(path, files or len(paths), notes))
        else:
            traces.append((nsight if _is_sqlite(path) else kineto).read(path, notes))
    return traces


def _is_sqlite(path: Path) -> bool:
    return next(byte_parts(path, 2**40), b"").startswith(nsight.MAGIC)


def is_chakra(path: Path) -> bool:
    """Whether a file's name says that it is a Chakra execution trace."""
    return _CHAKRA.search(path.name) is not None


def ranks_of(traces: Sequence[Trace], scenario: Scenario) -> list[TracedRank]:
    """The traced ranks of a scenario, in order. Raises InputError for wrong ranks or traces without steps."""
    ranks = [_rank(trace, number, scenario) for trace, number in zip(traces, _numbers(traces, scenario), strict=True)]
    ranks.sort(key=lambda one: one.rank)
    steps = {len(one.steps.works) for one in ranks}
    if len(steps) > 1:
        raise InputError(
            f"{traces[0].path.parent}: traces of {min(steps)} to {max(steps)} steps; give the traces of one profiled window"
        )
    return ranks


def run_of(ranks: Sequence[TracedRank], scenario: Scenario, notes: ImportNotes) -> Run:
    """The run of the traced ranks."""
    times_s = transfer_times_s(ranks)
    moving = [transfers(one, times_s) for one in ranks]
    return _run(ranks, moving, scenario, notes)


def number_of(trace: Trace, position: int) -> int:
    """Rank of a trace: as recorded, else by its file's name, else its position."""
    named = _NUMBER.search(trace.path.name.partition(".")[0])
    return trace.rank if trace.rank >= 0 else int(named[1]) if named else position


def traced(trace: Trace, number: int) -> TracedRank:
    """The steps of a trace. Raises InputError if none are found."""
    return TracedRank(number, steps_of(trace), Phases(trace), trace.host, trace.device, str(trace.path))


def _numbers(traces: Sequence[Trace], scenario: Scenario) -> list[int]:
    """Rank of each trace: as recorded, else by its file's name, else by its position. Raises InputError for wrong ranks."""
    numbers: list[int] = []
    for position, trace in enumerate(traces):
        number = number_of(trace, position)
        if not is_chakra(trace.path):
            check_world(trace.world, str(trace.path), scenario)
        if number in numbers:
            other = traces[numbers.index(number)].path
            raise InputError(f"{other} and {trace.path} are both of rank {number}; give one trace per rank")
        if number >= scenario.strategy.training_ranks:
            ranks = scenario.strategy.training_ranks
            raise InputError(
                f"{trace.path} is of rank {number}, but {scenario.name} has ranks 0 to {ranks - 1}; check strategy"
            )
        numbers.append(number)
    return numbers


def _rank(trace: Trace, number: int, scenario: Scenario) -> TracedRank:
    device = scenario.cluster.device
    if not trace.has_device and device.kernels is not None and device.kernels.generation != "cpu":
        cause = f"{scenario.name} trains on {device.name}"
        raise InputError(f"{trace.path}: no kernels of a GPU, but {cause}; profile with ProfilerActivity.CUDA")
    return traced(trace, number)


def _run(
    ranks: Sequence[TracedRank], moving: Sequence[Sequence[Sequence[TracedTransfer]]], scenario: Scenario, notes: ImportNotes
) -> Run:
    to, dimensions = SpanColumns(), Dimensions(scenario)
    for index, (rank, own) in enumerate(zip(ranks, moving, strict=True)):
        add_rank(index, rank, own, dimensions, to)
    ends_s = np.array([np.array(rank.steps.ends_s) - rank.steps.ends_s[0] for rank in ranks])
    step_ends_s = ends_s.max(axis=0)
    times = from_spans(Spans.of(to.columns), step_ends_s, servers=np.zeros(len(ranks), dtype=bool), elapsed_s=ends_s[:, -1])
    times = replace(times, step_time_interval_s=slope_interval_s(step_ends_s))
    names = rank_names(scenario.strategy)
    training = scenario.strategy.training_ranks
    fields = vars(times) | {"ranks": scenario.strategy.ranks, "compute_ranks": training}
    run = Run(
        **fields,
        origin="measured",
        scenario=scenario.name,
        strategy=scenario.strategy.kind,
        samples=scenario.total_samples,
        capacity_bytes=scenario.cluster.device.memory_bytes,
        rank_names=tuple(names[rank.rank] for rank in ranks),
        provenance={"trace": f"{len(ranks)} of {training} ranks, {counted(len(step_ends_s) - 1, 'step')}"},
    )
    _note(ranks, run, scenario, notes)
    return accounted(run, scenario)


def _note(ranks: Sequence[TracedRank], run: Run, scenario: Scenario, notes: ImportNotes) -> None:
    """Notes on how steps were found, and on what the traces do not show."""
    first = ranks[0].steps
    skipped = "the first is left out as warm-up" if first.skipped else "none is left out as warm-up"
    notes.add(
        f"traces of {len(ranks)} of {run.compute_ranks} ranks; steps by {first.found_by}, {skipped}, {len(first.works)} used"
    )
    communicates = any(work.exchange is not None for rank in ranks for step in rank.steps.works for work in step)
    if communicates and len(ranks) == 1 and run.compute_ranks > 1:
        notes.add("one rank's trace, whose collectives include waiting for others; give all ranks' traces to separate both")
    stages = {name for name in run.rank_names if "stage" in name}
    traced = len({re.sub(r".*\b(stage \d+).*", r"\1", name) for name in stages})
    if traced < scenario.strategy.stages and scenario.strategy.stages > 1:
        notes.add(
            f"{traced} of {scenario.strategy.stages} pipeline stages are traced; give a rank of each, the means are over all"
        )
    if run.phase_s[Phase.BACKWARD.label] == 0:
        notes.add("the traces do not show which kernels are backward passes; divided as predicted (profile the CPU, too)")
