"""Freezes what people see of predictions, and compares it after a change of the code.

    python tests/golden.py write FOLDER [PART …]      with the code before
    python tests/golden.py check FOLDER [PART …]      with the code after

Parts: scenarios (`predict --json` of all that ship, with intervals and memory by holder), published (200 rows), plans (the
first ten and the proof), study (540 points), scores (of all tables), captures (of the example scripts), constants (fitted to
the points of three calibrations, which `write` measures), console (blocks of the documentation, whose output is in the pages).
Texts must be equal, and numbers within the tolerance of their part. Differences are printed, the largest first.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import yaml

import scaleproof
from scaleproof.simulator.captured.reading import allocations_of
from scaleproof.simulator.captured.record import Capture, EventKind, RecordedRanks
from scaleproof.simulator.common import catalog
from scaleproof.simulator.common.atomic_file import write_atomically
from scaleproof.simulator.memory.captured import LiveMemory
from scaleproof.simulator.published import tables

ROOT: Final = Path(__file__).parents[1]
# Folders of scenarios that ship, with what leads to their names.
_SHIPPED: Final = ("what-if", "systems", "demo", "netlab")
_TRAINING: Final = "transformer_training.csv"
_ROWS: Final = 200
_PLANNED: Final = {
    "megatron-175b-3d-selene": 512, "gpt3-175b-hybrid-selene": 768, "mixtral-8x7b-experts-h100": 64,
    "llama-2-7b-fsdp-a100": 64, "llama-3-8b-long-context-h100": 64, "llama-2-7b-zero-bubble-a100": 16,
    "resnet50-ring-p100": 32, "resnet50-servers-p100": 32, "byteps": 32, "deepspeed-zero-3": 64, "pytorch-ddp": 32,
    "tensorflow-parameter-server": 16,
}  # fmt: skip
# What a plan says of how long it took, and when.
_MEASURED: Final = ("estimate_seconds", "search_seconds", "written")
_STUDY: Final = {
    "scenario": {
        "model": "resnet50", "cluster": "p100-25gbe", "strategy": "data_parallel", "batch": {"per_worker": 64},
        "training": {"optimizer": "momentum"},
    },
    "axes": {
        "strategy": {
            "ring": {"kind": "data_parallel"}, "servers": {"kind": "parameter_server", "servers": 4},
            "late": {"kind": "data_parallel", "overlap": False},
        },
        "strategy.workers": {"from": 2, "to": 32, "factor": 2},
        "cluster.network.bandwidth": {"from": "1 Gbit/s", "to": "100 Gbit/s", "points": 12, "log": True},
        "batch.per_worker": [16, 64, 128],
    },
}  # fmt: skip
_CALIBRATIONS: Final = {"processors": ("--budget", "35 s"), "groups": ("--groups", "2", "3"), "tiny": ("--gpu", "tiny")}


class Part(NamedTuple):
    """outputs: name and content of each output. tolerance: largest relative difference of numbers."""

    outputs: Callable[[Path], Iterator[tuple[str, Any]]]
    tolerance: float


def main() -> int:
    """Writes or checks; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"among {', '.join(PARTS)} (all)")
    options = parser.parse_args()
    differ = 0
    for name in options.parts or PARTS:
        part, path = PARTS[name], options.folder / f"{name}.json"
        print(f"{name} …", file=sys.stderr, flush=True)
        if options.action == "write":
            for old in options.folder.glob(f"{name}/*"):
                old.unlink()
        outputs = json.loads(json.dumps(dict(part.outputs(options.folder / name))))
        if options.action == "write":
            write_atomically(path, json.dumps(outputs, indent=1).encode())
        else:
            differ += not _same(name, json.loads(path.read_text()), outputs, part.tolerance)
    return int(differ > 0)


def _same(name: str, before: Any, after: Any, tolerance: float) -> bool:
    """Compares a part, and prints the result."""
    found = sorted(_differences(before, after, tolerance), key=lambda one: -one[0])
    largest = max((size for size, _ in found), default=0.0)
    print(f"{name}: {len(before)} outputs, {len(found)} differences" + (f", the largest {largest:.3g}" if found else ""))
    for size, text in found[:20]:
        print(f"  {size:10.3g}  {text}")
    return not found


def _differences(before: Any, after: Any, tolerance: float, where: str = "") -> Iterator[tuple[float, str]]:
    """Relative size, infinite for anything but numbers, and description of each difference."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys((*before, *after)):
            if key in before and key in after:
                yield from _differences(before[key], after[key], tolerance, f"{where}/{key}")
            else:
                yield math.inf, f"{where}/{key}: only {'before' if key in before else 'after'}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for number, pair in enumerate(zip(before, after, strict=True)):
            yield from _differences(*pair, tolerance, f"{where}/{number}")
    elif isinstance(before, int | float) and isinstance(after, int | float):
        size = abs(after - before) / max(abs(before), abs(after), 1e-300)
        if size > tolerance:
            yield size, f"{where}: {before!r} -> {after!r}"
    elif before != after:
        yield math.inf, f"{where}: {before!r} -> {after!r}"[:300]


def _command(*arguments: str | Path) -> str:
    """What a command prints on both streams, with its exit code."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = scaleproof.main([str(argument) for argument in arguments])
    return f"{printed.getvalue()}exit {code}"


def _json(*arguments: str | Path) -> Any:
    """The JSON that a command prints; its text where it fails."""
    text = _command(*arguments, "--json").rpartition("\nexit ")[0]
    try:
        return json.loads(text[text.index("{") :])
    except ValueError:
        return text


def _scenarios(_: Path) -> Iterator[tuple[str, Any]]:
    for folder in _SHIPPED:
        for name in catalog.names(folder):
            yield name, _json("predict", name)


def _published(_: Path) -> Iterator[tuple[str, Any]]:
    """Rows that are spread evenly over the published training runs."""
    names = [row["id"] for row in tables.read_table(tables.find_table(Path(_TRAINING)))[1]]
    for name in names[:: max(1, len(names) // _ROWS)]:
        yield name, _json("predict", f"published:{name}")


def _plans(_: Path) -> Iterator[tuple[str, Any]]:
    for name, gpus in _PLANNED.items():
        plan = _json("plan", name, "--gpus", str(gpus), "--top", "10")
        yield name, {**plan, "plans": [_without(_MEASURED, one) for one in plan["plans"]]}


def _without(names: Collection[str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def _study(_: Path) -> Iterator[tuple[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder) / "study.yaml", Path(folder) / "out"
        path.write_text(yaml.safe_dump(_STUDY, sort_keys=False))
        _command("sweep", path, "--intervals", "--out", out)
        tables = [pq.read_table(part).to_pylist() for part in out.glob("*.parquet")]
        yield "points", sorted((row for rows in tables for row in rows), key=lambda row: row["point"])


def _scores(_: Path) -> Iterator[tuple[str, Any]]:
    yield "scores", _json("score")


def _captures(_: Path) -> Iterator[tuple[str, Any]]:
    """Events, work and memory of each class of ranks, without the host's times."""
    with tempfile.TemporaryDirectory() as folder:
        for script in sorted((ROOT / "examples" / "captured").glob("*.py")):
            out = Path(folder) / f"{script.stem}.zip"
            text = _command("capture", "--ranks", "8", "--device", "h100-80gb-sxm", "--out", out, "--", sys.executable, script)
            if out.exists():
                yield script.stem, {one.name: _recorded(one) for one in Capture.read(out).classes}
            else:
                yield script.stem, text


def _recorded(one: RecordedRanks) -> dict[str, float]:
    """Numbers of events of each kind, work, and peak memory of a class."""
    counts = {kind.name: len(one.rows(kind)) for kind in EventKind}
    sums = {name: float(one.columns[name].sum()) for name in ("flops", "bytes_read", "bytes_written", "size")}
    return counts | sums | {"peak_bytes": float(LiveMemory.from_allocations(*allocations_of(one)).live_bytes.sum(axis=0).max())}


def _constants(folder: Path) -> Iterator[tuple[str, Any]]:
    """Cluster files that are fitted to measured points; those that are missing are measured."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, options in _CALIBRATIONS.items():
        points = folder / f"{name}.points.parquet"
        if not points.exists():
            text = _command("calibrate", "--on", "local", *options, "--out", folder / f"{name}.yaml")
            assert points.exists(), text
        with tempfile.TemporaryDirectory() as out:
            copied, fitted = Path(out) / points.name, Path(out) / f"{name}.yaml"
            shutil.copy(points, copied)
            text = _command("calibrate", "--from", copied, "--out", fitted)
            yield name, yaml.safe_load(fitted.read_text()) if fitted.exists() else text


def _console(_: Path) -> Iterator[tuple[str, Any]]:
    done = subprocess.run([sys.executable, ROOT / "docs" / "scripts" / "console.py", "--check"], capture_output=True, text=True)
    yield "blocks", {"exit": done.returncode, "differs": done.stdout if done.returncode else ""}


PARTS: Final = {
    "scenarios": Part(_scenarios, 1e-9),
    "published": Part(_published, 1e-9),
    "plans": Part(_plans, 1e-9),
    "study": Part(_study, 1e-9),
    "scores": Part(_scores, 1e-9),
    "captures": Part(_captures, 0.0),
    "constants": Part(_constants, 1e-6),
    "console": Part(_console, 0.0),
}

if __name__ == "__main__":
    raise SystemExit(main())
