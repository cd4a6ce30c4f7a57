"""Predictions of captured scripts against real runs of the same scripts on this machine.

Each script is captured, run for real, and predicted, on local processes and on hosts of netlab, as
`scaleproof reconcile --script` does. The network of each place is measured once. The table has the predicted and the measured
time of a step and its phases, bytes of communication, and peak memory, with errors of totals relative to the measured one, and
of phases to the measured step.

Run: python benchmarks/captured_against_real.py [local|netlab …] [WORD …] (cases with all words; about fifteen minutes on two
quiet cores; scripts of packages need peft, transformers and lightning)
"""

from __future__ import annotations

import importlib.util
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal, NamedTuple

from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_bytes, format_change, format_percent, format_time_s
from scaleproof.simulator.run.run import Run
from scaleproof.validator.capture.command.command_line import parse
from scaleproof.validator.reconciliation.jobs.comparison import phases
from scaleproof.validator.reconciliation.reconcile import ReconciledCase
from scaleproof.validator.record.provenance import cpu_model
from scaleproof.validator.script_runs import this_machine
from scaleproof.validator.script_runs.reconcile import ScriptFiles, ScriptOptions, reconcile_script

_FOLDERS: Final = (Path(__file__).parents[1] / "examples" / "captured", Path(__file__).parent / "scripts")
STEPS: Final = 12
TIMEOUT_S: Final = 120.0
Place = Literal["local", "netlab"]
_PLACES: Final[Sequence[Place]] = ("local", "netlab")
# Ranks for which the networks are measured.
MOST_RANKS: Final = 4


class Case(NamedTuple):
    """A script with its arguments, on a number of ranks. package: what it imports in addition to PyTorch."""

    script: str
    ranks: int
    arguments: str
    package: str = ""


_GPT: Final = "--layers 4 --width 256 --heads 4 --vocabulary 1024 --length 128 --batch 4 --steps 14 --dtype float32"
_SMALL: Final = "--layers 8 --width 256 --heads 4 --vocabulary 1024 --length 128 --batch 4 --steps 14"
CASES: Final = (
    Case("gpt_ddp", 2, _GPT),
    Case(
        "llama_fsdp2", 2,
        "--layers 4 --width 256 --heads 4 --kv-heads 2 --hidden 512 --vocabulary 1024 --length 128 --batch 4 --shards 2 "
        "--dtype float32",
    ),
    Case("tensor_parallel", 2, "128 4 256 2 512 64 2"),
    Case("pipeline_1f1b", 2, "256 1024 128 8 2"),
    Case("mixture_of_experts", 2, "128 64 8 2 2 256"),
    Case("gpt_ddp", 4, _GPT),
    Case("gpt", 2, f"{_SMALL} --parallel zero_1"),
    Case("gpt", 4, f"{_SMALL} --parallel interleaved --stages 4"),
    Case("gan", 2, ""),
    Case(
        "lora_peft", 2,
        "--layers 4 --width 256 --heads 4 --kv-heads 2 --hidden 512 --vocabulary 1024 --length 128 --batch 4", "peft",
    ),
    Case("lightning_fabric", 2, "", "lightning"),
)  # fmt: skip


def main() -> int:
    """Reconciles all cases and prints the tables."""
    places = [place for place in _PLACES if place in sys.argv[1:]] or _PLACES
    words = [word for word in sys.argv[1:] if word not in _PLACES]
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    print(f"{datetime.now(UTC):%d %B %Y}, {cores} cores of {cpu_model()}, load {load:.1f} before", flush=True)
    print("| script | on | ranks | quantity | predicted | measured | error |\n|---|---|---|---|---|---|---|")
    errors: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as path:
        for on in places:
            cluster = Path(path) / f"{on}.yaml"
            this_machine.describe(on, MOST_RANKS, cluster, TIMEOUT_S, lambda _: None)
            for case in CASES:
                if words and not all(word in f"{case.script} {case.ranks} {case.arguments}" for word in words):
                    continue
                if case.package and importlib.util.find_spec(case.package) is None:
                    print(f"{case.script} on {on}: {case.package} is not installed", file=sys.stderr, flush=True)
                    continue
                try:
                    done = reconciled(case, on, cluster, Path(path))
                except ScaleproofError as refusal:
                    print(f"{case.script} on {on}: {refusal}", file=sys.stderr, flush=True)
                    continue
                for name, predicted, measured, error in rows(done):
                    errors.setdefault(name, []).append(abs(error))
                    texts = (case.script, on, str(case.ranks), name, predicted, measured, format_change(error))
                    print(f"| {' | '.join(texts)} |", flush=True)
                print_notes(done)
    for name, all_of in errors.items():
        median, worst = (format_percent(of(all_of)) for of in (statistics.median, max))
        print(f"{name}: median error {median} of {len(all_of)}, worst {worst}")
    return 0


def reconciled(case: Case, on: Place, cluster: Path, folder: Path) -> ReconciledCase:
    """The case, predicted and measured."""
    script = next(file for folder in _FOLDERS if (file := folder / f"{case.script}.py").exists())
    started = parse(["python", str(script), *case.arguments.split()])
    options = ScriptOptions(on, str(cluster), case.ranks, STEPS, TIMEOUT_S)
    files = ScriptFiles(folder / f"{case.script}-{on}-{case.ranks}-{CASES.index(case)}.zip", cluster)
    return reconcile_script(started, options, files, lambda _: None)


def rows(case: ReconciledCase) -> Iterator[tuple[str, str, str, float]]:
    """Quantities with both sides and their error."""
    predicted, measured = case.predicted, case.measured
    assert measured is not None
    sides = [run.step_time_s for run in (predicted, measured)]
    yield "step time", *map(format_time_s, sides), sides[0] / sides[1] - 1  # type: ignore[misc]
    for phase in phases(predicted, measured):
        change = phase.difference_s / measured.step_time_s
        yield phase.label, format_time_s(phase.predicted_s), format_time_s(phase.measured_s), change
    sizes = [_volume_bytes(run) for run in (predicted, measured)]
    yield "bytes of communication", *map(format_bytes, sizes), sizes[0] / sizes[1] - 1  # type: ignore[misc]
    peaks = [run.memory_bytes_per_rank or 0.0 for run in (predicted, measured)]
    yield "peak memory", *map(format_bytes, peaks), peaks[0] / peaks[1] - 1  # type: ignore[misc]


def _volume_bytes(run: Run) -> float:
    return sum(part.size_bytes for part in run.communication)


def print_notes(case: ReconciledCase) -> None:
    """What limits the comparison, and each kind of communication, to stderr."""
    assert case.measured is not None
    for warning in case.measured.warnings:
        print(f"{case.scenario.name}: {warning}", file=sys.stderr, flush=True)
    for side, run in (("predicted", case.predicted), ("measured", case.measured)):
        for part in run.communication:
            sizes = f"{part.calls:g} calls {format_bytes(part.size_bytes)}"
            print(f"  {side} {part.label}: {sizes}, {format_time_s(part.time_s)}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
