"""Published runs of torchtitan as captured scripts: errors of their step times, next to those of scenarios of the same runs.

`scripts/torchtitan_llama.py` is captured for each run without FP8, with its model, GPUs, batch, sequence, recomputation, tensor
parallelism and compiler, and predicted on its cluster with torchtitan's costs of the host.

Run: python benchmarks/captured_torchtitan.py [--keep DIR]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from scaleproof.simulator.predict import timed
from scaleproof.simulator.published.tables import folder, read_table
from scaleproof.simulator.published.training_runs import row_scenario
from scaleproof.simulator.scenario.load import load

Row = Mapping[str, str]
_SCRIPT: Final = Path(__file__).parent / "scripts" / "torchtitan_llama.py"
_SET: Final = "torchtitan"
# Training software of the script: its costs of the host.
_FRAMEWORK: Final = "torchtitan"
_ARGUMENTS: Final = {
    "layers": "layers", "width": "hidden", "heads": "heads", "key-heads": "kv_heads", "hidden": "ffn_hidden",
    "vocabulary": "vocab", "length": "seq_len", "batch": "microbatch_seqs", "tensor": "tp", "recompute": "recompute",
}  # fmt: skip
_TIMEOUT_S: Final = 1800


class Errors(NamedTuple):
    """Signed relative errors of a row's step time as a captured script and as a scenario. captured: None where no script has
    the row's training."""

    captured: float | None
    scenario: float


def not_expressed(row: Row) -> str:
    """Why the script cannot do what a row did; "" if it can."""
    if row["precision"] == "fp8":
        return "FP8: its casts are fused by the compiler, and would be kernels of their own"
    if row["cp"] != "1":
        return "context parallelism: the script has none"
    return ""


def about(row: Row) -> str:
    """A row in a few words."""
    words = [row["model"], f"{row['gpus']} GPUs", row["precision"], f"batch {row['microbatch_seqs']}"]
    words += [f"TP {row['tp']}"] if row["tp"] != "1" else []
    words += [f"CP {row['cp']}"] if row["cp"] != "1" else []
    words.append(f"recompute {row['recompute']}")
    return ", ".join(words)


def compiled(row: Row) -> bool:
    """Whether a row ran with torch.compile."""
    return "compile=True" in row["software"]


class Captures:
    """Captures of the script, each made once."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def of(self, row: Row) -> Path:
        """The capture of a row's training."""
        cluster = row_scenario(row).scenario.cluster.name
        arguments = [text for name, column in _ARGUMENTS.items() for text in (f"--{name}", row[column])]
        arguments += ["--compile"] if compiled(row) else []
        name = "-".join([cluster, row["gpus"], *(argument.lstrip("-") for argument in arguments)])
        path = self._place / f"{name}.zip"
        if not path.exists():
            capture = [
                "capture",
                "--ranks",
                row["gpus"],
                "--cluster",
                cluster,
                "--out",
                str(path),
                "--timeout",
                str(_TIMEOUT_S),
            ]
            command = [sys.executable, "-m", "scaleproof", *capture, "--", "python", str(_SCRIPT), *arguments]
            subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL)
        return path


def errors(row: Row, captures: Captures) -> Errors:
    """Errors of a row's step time."""
    measured_s = float(row["step_time_s"])
    of_scenario = timed(row_scenario(row).scenario).step_time_s / measured_s - 1
    if not_expressed(row):
        return Errors(None, of_scenario)
    captured = load(captures.of(row), [f"framework={_FRAMEWORK}"])
    return Errors(timed(captured).step_time_s / measured_s - 1, of_scenario)


def rows() -> Iterator[Row]:
    """Rows of torchtitan that have a step time."""
    return (
        row for row in read_table(folder() / "transformer_training.csv")[1] if row["source_set"] == _SET and row["step_time_s"]
    )


def main() -> None:
    """Prints one line of Markdown per row."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder in which captures are kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        captures = Captures(place)
        print("| row | run | compiled | measured | captured | scenario |\n|---|---|---|--:|--:|--:|")
        for row in rows():
            found = errors(row, captures)
            captured = not_expressed(row) if found.captured is None else f"{found.captured:+.1%}"
            shown = "yes" if compiled(row) else "no"
            measured = f"{float(row['step_time_s']):.3g} s"
            print(f"| {row['id']} | {about(row)} | {shown} | {measured} | {captured} | {found.scenario:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
