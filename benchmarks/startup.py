"""How long whole commands take, as multiples of starting Python itself. Run: python benchmarks/startup.py"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

_RUNS = 7
_COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "scaleproof --help": ["-m", "scaleproof", "--help"],
    "scaleproof predict resnet50-ring-p100": ["-m", "scaleproof", "predict", "resnet50-ring-p100"],
    "scaleproof predict llama-2-7b-fsdp-a100": ["-m", "scaleproof", "predict", "llama-2-7b-fsdp-a100"],
    "scaleproof predict megatron-175b-3d-selene": ["-m", "scaleproof", "predict", "megatron-175b-3d-selene"],
}


def _seconds(arguments: list[str]) -> float:
    start_s = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
    return time.perf_counter() - start_s


def main() -> None:
    """Prints the median of each command over interleaved runs, and its ratio to an empty Python."""
    times: dict[str, list[float]] = {name: [] for name in _COMMANDS}
    for _ in range(_RUNS):
        for name, arguments in _COMMANDS.items():
            times[name].append(_seconds(arguments))
    empty_s = statistics.median(times["python -c pass"])
    print(f"{'command':<48} {'median':>8} {'ratio':>7}")
    for name, seconds in times.items():
        median_s = statistics.median(seconds)
        print(f"{name:<48} {median_s:>7.2f}s {median_s / empty_s:>6.1f}x")


if __name__ == "__main__":
    main()
