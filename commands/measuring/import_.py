"""The command import: write measurements of other tools as a cluster or device file. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Action, Command
from scaleproof.commands.measuring import import_kernels
from scaleproof.commands.output import print_json
from scaleproof.commands.text.tables import table

if TYPE_CHECKING:
    from scaleproof.simulator.model.layers import Layer
    from scaleproof.validator.calibration.imports.kineto import Trace
    from scaleproof.validator.calibration.imports.reading import ImportNotes, ImportResult
    from scaleproof.validator.calibration.imports.steps import StepTimes

Table = Sequence[Sequence[str]]

_COLLECTIVES = ("collective", "ranks on nodes", "sizes", "latency", "bandwidth", "fit's error")


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    imports = Command(commands, "import", None)
    tools = imports.parser.add_subparsers(title="tools", metavar="TOOL", required=True)
    nccl = _tool(tools, "nccl-tests", "logs of nccl-tests, such as all_reduce_perf", "LOG", _nccl_tests)
    topo = _tool(tools, "topo", "the matrix of 'nvidia-smi topo -m'", "FILE", _topo, nargs=1)
    kineto = _tool(tools, "kineto", "traces of torch.profiler, one per rank", "TRACE", _kineto)
    _tool(tools, "chakra", "execution traces of MLCommons Chakra, one per rank", "TRACE", _chakra)
    import_kernels.mount(tools)
    for tool in (nccl, topo, kineto):
        tool.add("--gpu NAME", "the GPU, if the files do not name it, such as h100-80gb-sxm", default="")
    nccl.add("--median", "keep the median of logs that contradict one another, or that several releases of the library wrote")
    kineto.add("--model NAME", "the trained model; also writes a scenario next to the cluster file")
    kineto.add("--samples N", "samples per step and rank", type=int)
    kineto.add("--precision NAME", "number format of training (that of the largest collective)", default="")
    kineto.add("--layer ANNOTATION=LAYER", "layer of the model that an annotation marks", repeated=True)


def _tool(tools: Any, name: str, what: str, files: str, run: Action, nargs: int | str = "+") -> Command:
    tool = Command(tools, name, run, what)
    tool.parser.description = f"Import {what}."
    tool.add(files, "files to import", dest="files", nargs=nargs, type=Path)
    tool.add("--out FILE.yaml", "the cluster file to write", type=Path)
    tool.add("--cluster BASE", "cluster file, or name from 'scaleproof list', that is completed with the measurements")
    tool.add("--json", "print the imported measurements as JSON")
    tool.parser.set_defaults(gpu="")
    return tool


def _nccl_tests(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.validator.calibration.imports import nccl_tests
    from scaleproof.validator.calibration.imports.reading import ImportNotes
    from scaleproof.validator.diagnosis.pairwise import diagnose_tests

    ignored = ImportNotes()
    slow, _ = diagnose_tests([group for path in options.files for group in nccl_tests.tested_groups(path, ignored)])
    words = "; ".join(one.words for one in slow)
    try:
        found = nccl_tests.read(options.files, options.median)
    except InputError as error:
        raise InputError(f"{words}\n{error}" if words else str(error)) from None
    if words:
        print(words, file=sys.stderr)
    return _finish(options, _of_gpu(found, options.gpu))


def _topo(options: argparse.Namespace) -> int:
    from scaleproof.validator.calibration.imports import topo

    found, matrix = topo.read(options.files[0], options.gpu)
    node = topo.node(matrix, found)
    return _finish(options, found, [(("what", "found"), topo.summary(matrix))], node)


def _kineto(options: argparse.Namespace) -> int:
    from scaleproof.validator.calibration.imports import kineto, layers, steps
    from scaleproof.validator.calibration.imports.reading import ImportNotes

    names = _checked(options)
    notes = ImportNotes()
    traces = [kineto.read(path, notes) for path in options.files]
    found, times = steps.find("torch.profiler (Kineto)", traces, _devices(options), notes, options.samples or 0)
    device: list[dict[str, Any]] = []
    if options.model and options.samples:
        measured = layers.times(traces, _layers(options.model), names, notes)
        found.points += layers.points(measured, options.samples)
        device = layers.entries(measured, options.samples, _precision(options, traces, notes))
    code = _finish(options, _of_gpu(found, options.gpu), _tables(traces, times), layers=device)
    _step(options, traces, times, notes)
    return code


def _chakra(options: argparse.Namespace) -> int:
    from scaleproof.validator.calibration.imports import chakra, steps
    from scaleproof.validator.calibration.imports.reading import ImportNotes

    notes = ImportNotes()
    traces = [chakra.read(path, len(options.files), notes) for path in options.files]
    found, times = steps.find("MLCommons Chakra", traces, _devices(options), notes)
    return _finish(options, found, _tables(traces, times))


def _checked(options: argparse.Namespace) -> dict[str, str]:
    """The layer that each annotation marks. Raises InputError for contradictory options."""
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.validator.calibration.imports import layers

    if options.samples is not None and options.samples < 1:
        raise InputError(f"--samples {options.samples}: give at least 1")
    if bool(options.model) != bool(options.samples):
        raise InputError("--model and --samples must be given together: the trained model, and the samples per step and rank")
    if options.layer and not options.model:
        raise InputError("--layer names layers of a model; also give --model and --samples")
    return layers.parse_names(options.layer)


def _layers(model: str) -> Sequence[Layer]:
    from scaleproof.simulator.scenario.read import load_model

    return load_model(model).build_layers()


def _devices(options: argparse.Namespace) -> int:
    """GPUs per node of the cluster named by --cluster, or 0."""
    from scaleproof.validator.calibration.cluster_file.files import read_base

    return read_base(options.cluster).cluster.node.devices if options.cluster else 0


def _tables(traces: Sequence[Trace], times: Sequence[StepTimes]) -> list[tuple[Sequence[str], Table]]:
    from scaleproof.validator.calibration.imports import steps

    calls = steps.calls(traces)
    timed = any(step.time_s for step in times)
    return [
        *([(("part of a step", "median", "share"), steps.parts(times))] if timed else []),
        *([(("communicates", "ranks", "size", "calls", "median"), calls)] if calls else []),
    ]


def _precision(options: argparse.Namespace, traces: Sequence[Trace], notes: ImportNotes) -> str:
    """The precision given by --precision, else the element type of the largest collective, else fp32."""
    from scaleproof.validator.calibration.imports.names import precision_of

    if options.precision:
        return str(options.precision)
    exchanges = [exchange for trace in traces for _, exchange in trace.exchanges]
    largest = max(exchanges, key=lambda exchange: exchange.size_bytes, default=None)
    precision = precision_of(largest.elements if largest else "")
    source = "the largest collective's elements" if largest and largest.elements else "the traces do not record one"
    notes.add(f"precision: {precision}, since {source}; give --precision if it is another")
    return precision


def _step(options: argparse.Namespace, traces: Sequence[Trace], times: Sequence[StepTimes], notes: ImportNotes) -> None:
    """Writes the scenario next to the cluster file, or prints the field to set."""
    from scaleproof.simulator.common.units import format_time_s
    from scaleproof.validator.calibration.imports import steps
    from scaleproof.validator.calibration.imports.reading import ImportNotes as Discarded

    if not times:
        print("no step with work of the device, so that the time of a step is not known", file=sys.stderr)
        return
    alone_s = steps.median_of(times, lambda step: step.alone_s)
    if not (options.model and options.out):
        samples = options.samples or "N"
        hint = f"training.measured_step={{samples: {samples}, time: {format_time_s(alone_s)}}}"
        print(f"time of a step without waiting for communication, for scenarios: --set '{hint}'", file=sys.stderr)
        return
    path = steps.scenario_path(options.out)
    workers = max(1, *(trace.world for trace in traces))
    precision = _precision(options, traces, Discarded())
    scenario = steps.scenario(options.model, options.out, workers, options.samples, precision, alone_s)
    steps.write_scenario(scenario, path)
    print(f"wrote {path}", file=sys.stderr)


def _of_gpu(found: ImportResult, gpu: str) -> ImportResult:
    """Sets the GPU that the user names, if any."""
    from dataclasses import replace

    found.machines = replace(found.machines, gpu=gpu or found.machines.gpu)
    return found


def _finish(
    options: argparse.Namespace,
    found: ImportResult,
    tables: Sequence[tuple[Sequence[str], Table]] = (),
    node: dict[str, Any] | None = None,
    layers: Sequence[dict[str, Any]] = (),
) -> int:
    """Fits, writes the cluster file, and prints notes to stderr and tables or JSON to stdout."""
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.simulator.common.file_lock import PATIENCE_S, locked_file
    from scaleproof.validator.calibration.cluster_file import constants, files
    from scaleproof.validator.calibration.fit.collective_posterior import times_of, updated
    from scaleproof.validator.calibration.imports import cluster

    posterior = None
    base = files.read_base(options.cluster) if options.cluster else None
    measured = cluster.measured_collectives(found.points, found.notes)
    if options.out:
        if not (measured or node or layers or found.points):
            raise InputError(f"{found.files[0]}: no timings found, so no cluster file was written; see the notes above")
        data = cluster.describe(found, base, measured, node, layers)
        with locked_file(options.out, "import", PATIENCE_S):
            points = files.with_earlier(options.cluster, found.points) if options.cluster else found.points
            posterior = updated(files.cluster_of(data, str(options.out)), times_of(points)) if measured else None
            files.write(constants.with_constants(data, posterior), options.out, points, f"Imported from {found.tool}.")
    for line in constants.surprises(posterior) if posterior else ():
        found.notes.add(line)
    for line in found.notes.lines():
        print(line, file=sys.stderr)
    if measured:
        tables = [*tables, (_COLLECTIVES, [cluster.row(one) for one in measured])]
    if posterior:
        tables = [*tables, (constants.TITLES, constants.rows(posterior))]
    _print(options, found, tables, constants.errors(posterior) if posterior else "")
    return 0


def _print(
    options: argparse.Namespace, found: ImportResult, tables: Sequence[tuple[Sequence[str], Table]], finding: str
) -> None:
    from scaleproof.simulator.common.errors import printable

    if options.json:
        cells = [dict(zip(head, row, strict=True)) for head, rows in tables for row in rows]
        data = {"tool": found.tool, "files": list(found.files), "found": cells, "points": len(found.points)}
        print_json(data | {"notes": found.notes.lines(), "finding": finding, "out": str(options.out or "")})
        return
    for head, rows in tables:
        print(printable("\n".join(table([head, *rows], "<"))))
    if finding:
        print(finding)
    if options.out:
        print(f"wrote {options.out}" + (f" and {options.out.with_suffix('.points.parquet')}" if found.points else ""))
