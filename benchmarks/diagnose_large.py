"""Seconds and memory of `diagnose` for the traces of 16 ranks.

Run from the repository: python -m benchmarks.diagnose_large [MEGABYTES]   (200 MB of JSON; half a minute on a quiet core)
"""

from __future__ import annotations

import gzip
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

from scaleproof.validator.diagnosis.diagnose import diagnose
from tests.validator.diagnosis.jobs import Job

_STEPS = 10
# Bytes of a layer's events in each step and rank.
_LAYER_BYTES = 2_000


def _write(folder: Path, layers: int) -> None:
    """Writes traces of ranks, of which one is slow."""
    for path in Job(layers=layers, steps=_STEPS, compute=_slowdown).write(folder):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def _slowdown(rank: int, step: int) -> float:
    return 1.25 if rank == 11 else 1.0


def main() -> None:
    """Prints what was found, and what it took."""
    megabytes = float(sys.argv[1]) if len(sys.argv) > 1 else 200.0
    layers = max(1, round(1e6 * megabytes / (16 * _STEPS * _LAYER_BYTES)))
    with tempfile.TemporaryDirectory() as folder:
        # in another process, whose memory does not count
        writer = multiprocessing.get_context("spawn").Process(target=_write, args=(Path(folder), layers))
        writer.start()
        writer.join()
        size = sum(path.stat().st_size for path in Path(folder).iterdir())
        began_s, cpu_s = time.perf_counter(), time.process_time()
        found, _ = diagnose([Path(folder)], lambda _: None)
        cpu_s, elapsed_s = time.process_time() - cpu_s, time.perf_counter() - began_s
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(found.headline)
    print(f"{size / 1e6:.0f} MB: {cpu_s:.1f} s of a core, {elapsed_s:.1f} s elapsed, {size / 1e6 / cpu_s:.1f} MB/s")
    print(f"peak memory {peak / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
