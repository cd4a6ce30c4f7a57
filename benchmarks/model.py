"""Models: building GPT-3's layers in process, and the model table of a 405B configuration as a whole process.

Run: python benchmarks/model.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from scaleproof.simulator.model.layers import Shard
from scaleproof.simulator.scenario.read import load_model

_RUNS = 20
_PROCESSES = 7


def fastest_s(run: Callable[[], object], times: int) -> float:
    """Seconds of the fastest of several runs."""
    best_s = float("inf")
    for _ in range(times):
        start_s = time.perf_counter()
        run()
        best_s = min(best_s, time.perf_counter() - start_s)
    return best_s


def main() -> None:
    """Prints a line for each measurement."""
    for name in ("gpt3-175b", "llama-3-405b", "deepseek-v3"):
        model = load_model(name)
        whole_s = fastest_s(model.build_layers, _RUNS)
        shared_s = fastest_s(partial(model.build_layers, Shard(tensor=8, sequence=True)), _RUNS)
        read_s = fastest_s(partial(load_model, name), _RUNS)
        print(f"{name:<14} read {1e3 * read_s:.2f} ms, layers {1e3 * whole_s:.2f} ms, of 8 ranks {1e3 * shared_s:.2f} ms")
    command = [sys.executable, "-m", "scaleproof", "model", "llama-3-405b"]
    process_s = fastest_s(lambda: subprocess.run(command, check=True, capture_output=True), _PROCESSES)
    print(f"scaleproof model llama-3-405b, whole process {process_s:8.2f} s")


if __name__ == "__main__":
    main()
