"""Seconds and memory of capturing the scripts of examples/captured: `python benchmarks/capture.py [SCRIPT …] [--ranks N …]`.

Prints a table: rank classes that were found, ranks that were played, seconds in all, seconds of processors, and the most memory
of a process, which includes pages that players share. Scripts whose packages are not installed are left out. Compiled:
`python benchmarks/capture.py gpt_ddp --arguments=--compile` (GPT-2 with 124 million parameters).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import resource
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from scaleproof.commands.text.tables import table
from scaleproof.simulator.common.errors import ScaleproofError
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.scenario.read import load_device
from scaleproof.validator.capture.capture import CaptureOptions, capture
from scaleproof.validator.capture.job import CaptureJob, DeviceProperties, Script

SCRIPTS: Final = Path(__file__).parents[1] / "examples" / "captured"
DEVICE: Final = "h100-80gb-sxm"
NEEDS: Final = {"hugging_face_trainer": "transformers", "lightning_fabric": "lightning"}
STEPS: Final = 3


def main() -> int:
    """Captures scripts and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    names = sorted(path.stem for path in SCRIPTS.glob("*.py"))
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help=f"names among {', '.join(names)} (all)")
    parser.add_argument("--ranks", nargs="+", type=int, default=[8, 1024], help="numbers of ranks (8 1024)")
    parser.add_argument("--arguments", default="", help="arguments of the scripts")
    options = parser.parse_args()
    device = DeviceProperties.of(load_device(DEVICE))
    rows = [("script", "ranks", "classes", "played", "seconds", "of processors", "memory of a process")]
    failed = 0
    for name in options.scripts or names:
        if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
            print(f"{name}: {NEEDS[name]} is not installed", file=sys.stderr)
            continue
        for ranks in options.ranks:
            script = Script(str(SCRIPTS / f"{name}.py"), tuple(options.arguments.split()))
            job = CaptureJob(script, ranks, min(8, ranks), device, STEPS, "balanced")
            print(f"{name} on {ranks} ranks", file=sys.stderr, flush=True)
            before_s = _processors_s()
            try:
                captured, costs = capture(job, CaptureOptions(DEVICE), lambda _: None)
            except ScaleproofError as error:
                print(error, file=sys.stderr)
                failed = 1
                continue
            classes, played = str(len(captured.classes)), str(costs.played)
            seconds = f"{costs.spent_s:.1f}", f"{_processors_s() - before_s:.1f}"
            rows.append((name, str(ranks), classes, played, *seconds, format_bytes(costs.memory_bytes)))
    print(f"{datetime.now(UTC):%d %B %Y}, {len(os.sched_getaffinity(0))} cores")
    print("\n".join(table(rows)))
    return failed


def _processors_s() -> float:
    """Seconds of processors of all processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
