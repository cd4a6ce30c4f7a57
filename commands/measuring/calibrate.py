"""The command calibrate: measure a cluster and write a cluster file. Imports are deferred until it runs."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scaleproof.commands.arguments import Command
from scaleproof.commands.output import progress

if TYPE_CHECKING:
    from scaleproof.validator.calibration.calibrate import CalibrationResult
    from scaleproof.validator.calibration.plan import ProbePlan


def mount(commands: Any) -> None:
    """Adds the command to argparse's subparsers."""
    calibrate = Command(commands, "calibrate", _calibrate)
    calibrate.add_place("measure")
    calibrate.add("--cluster NAME", "cluster description with the topology and nominal values of what is measured")
    calibrate.add("--hosts N", "number of the cluster's nodes to emulate with --on netlab (4)", type=int)
    calibrate.add("--out FILE", "the cluster file to write", type=Path, required=True)
    calibrate.add(
        "--from POINTS.parquet", "fit an existing table of measurements again, without measuring", type=Path, dest="source"
    )
    calibrate.add("--probe NAME", "run only this probe", repeated=True, dest="probes")
    calibrate.add("--files FOLDER", "samples, such as images, that the probe loading reads and decodes", type=Path)
    calibrate.add("--budget TIME", "time for all probes together (35 s; 3 min on several hosts; 180 s on GPUs)")
    calibrate.add("--model NAME", "model whose layers are timed (the demo's models)", repeated=True, dest="models")
    calibrate.add("--precision", "number format to time (fp32)", choices=["fp32", "fp64", "bf16"], default="fp32")
    calibrate.add(
        "--gpu",
        "probe each rank's GPU; 'tiny' tries the same probes in sizes that mean nothing, on a CPU too",
        nargs="?",
        const="full",
        choices=["full", "tiny"],
    )
    calibrate.add(
        "--groups RANKS",
        "group sizes to time collectives on (2, half of the ranks, all ranks)",
        type=int,
        nargs="+",
        default=[],
    )
    calibrate.add("--interface NAME", "network interface that ranks use")
    calibrate.add_timeout("extra time after which a probe counts as hung", 120.0)


def _calibrate(options: argparse.Namespace) -> int:
    from scaleproof.simulator.common.errors import ScaleproofError
    from scaleproof.simulator.common.file_lock import locked_file
    from scaleproof.validator.launch.rank_environment import place_in

    _check_out(options.out)
    place = place_in(os.environ) if options.on in (None, "cluster") and options.source is None else None
    # only rank 0 writes
    lock = locked_file(options.out, "calibrate") if place is None or place.rank == 0 else nullcontext()
    try:
        with lock:
            return _measure(options) if options.source is None else _refit(options)
    except ScaleproofError as error:
        if place is None or place.rank == 0:
            raise
        # rank 0 reports the error
        return error.exit_code


def _check_out(out: Path) -> None:
    """Raises InputError if the file cannot be written, before minutes are spent on measuring."""
    from scaleproof.simulator.common.errors import InputError

    if out.is_dir():
        raise InputError(f"--out {out} is a folder; give the name of the cluster file")
    folder = next(folder for folder in out.absolute().parents if folder.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise InputError(f"--out {out}: {folder} is not a writable folder; give another file")


def _refit(options: argparse.Namespace) -> int:
    """Fits a table of points that an earlier calibration measured."""
    from dataclasses import replace

    from scaleproof.validator.calibration.calibrate import CalibrationResult, kernels_of
    from scaleproof.validator.calibration.cluster_file.files import description, points_path
    from scaleproof.validator.calibration.cluster_file.from_points import CalibrationFacts, cluster_from_points
    from scaleproof.validator.probe import points as tables

    points = tables.read(options.source)
    facts = CalibrationFacts.of(points, str(options.source))
    if options.cluster:
        facts = replace(facts, base=description(options.cluster))
    cluster, notes = cluster_from_points(points, facts)
    # do not overwrite the table with itself
    new_points = () if options.source.resolve() == points_path(options.out).resolve() else points
    return _write(CalibrationResult(cluster, new_points, notes, kernels_of(cluster, points, facts)), options.out)


def _measure(options: argparse.Namespace) -> int:
    from scaleproof.validator.calibration.calibrate import calibrate
    from scaleproof.validator.calibration.cluster_file.files import description
    from scaleproof.validator.measure import MeasureOptions

    base = description(options.cluster) if options.cluster else None
    watch = MeasureOptions(options.timeout, interface=options.interface)
    calibrated = calibrate(_plan(options), options.on, base, options.hosts, watch, progress("calibrating", "calibrating: "))
    return 0 if calibrated is None else _write(calibrated, options.out)


def _plan(options: argparse.Namespace) -> ProbePlan:
    from scaleproof.simulator.common.errors import InputError, UnitError
    from scaleproof.simulator.common.units import parse_time_s
    from scaleproof.simulator.scenario.read import load_model
    from scaleproof.validator.calibration import gpu_sizes
    from scaleproof.validator.calibration.plan import ProbePlan

    if options.gpu and (options.models or options.on == "netlab"):
        raise InputError("--gpu times its own models, on this machine or a cluster; leave out --model and --on netlab")
    names = [] if options.gpu else options.models or ["gpt-mini", "mlp-mini"]
    models = [load_model(name) for name in names]
    gpu = {None: None, "full": gpu_sizes.FULL, "tiny": gpu_sizes.TINY}[options.gpu]
    several = options.on in ("netlab", "cluster")
    default = f"{gpu.budget_s:g} s" if gpu else "3 min" if several else "35 s"
    try:
        budget_s = parse_time_s(options.budget or default)
    except UnitError as error:
        raise InputError(f"--budget: {error}") from None
    if not budget_s:
        raise InputError("--budget must be above 0; give a time, such as '35 s'")
    return ProbePlan(models, options.probes, options.groups, options.precision, budget_s, options.timeout, gpu, options.files)


def _write(calibrated: CalibrationResult, out: Path) -> int:
    """Writes the cluster file and prints its quantities."""
    from scaleproof.commands.text.calibration import table
    from scaleproof.validator.calibration.cluster_file.files import write

    write(calibrated.cluster, out, calibrated.points)
    kernels = _write_kernels(calibrated, out)
    for line in calibrated.notes:
        print(f"note: {line}", file=sys.stderr)
    print(f"{out}: {calibrated.cluster.get('description') or calibrated.cluster.get('name', '')}")
    print(table(calibrated.cluster))
    if kernels is not None:
        print(f"{kernels}: {len(calibrated.kernels)} kernels; 'scaleproof import kernels' fits a device to them")
    return 0


def _write_kernels(calibrated: CalibrationResult, out: Path) -> Path | None:
    """Writes the kernels that were timed on GPUs as a table next to the cluster file; None if there are none."""
    from scaleproof.simulator.common.errors import InputError
    from scaleproof.validator.kernels.from_points import kernels_path
    from scaleproof.validator.kernels.table import write

    if not calibrated.kernels:
        return None
    path = kernels_path(out)
    try:
        write(calibrated.kernels, path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a path that can be written with --out") from None
    return path
