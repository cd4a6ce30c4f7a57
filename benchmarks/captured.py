"""Captured scripts against hand-written scenarios of the same training.

For each script, the table has the ratio of the captured prediction to that of the scenario: step time, FLOPs, bytes of all
collectives, and allocated bytes, which both replay through the replica of PyTorch's caching allocator.

Run: python benchmarks/captured.py [NUMBER …]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.memory.allocator import allocator_use
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load

_FOLDER: Final = Path(__file__).parent
_GPT_SCRIPT: Final = _FOLDER / "scripts" / "gpt_with_masters.py"
_LLAMA_SCRIPT: Final = _FOLDER.parent / "examples" / "captured" / "llama_fsdp2.py"
# Collectives of fewer bytes than this, such as norms of gradients, are not in scenarios.
_LEAST_BYTES: Final = 2**20
_TIMEOUT_S: Final = 600

_GPT: Final = {
    "model": {
        "kind": "gpt", "layers": 12, "hidden": 1024, "heads": 16, "vocabulary": 50304, "sequence": 1024, "flash": True,
    },
    "cluster": "dgx-h100", "strategy": {"kind": "data_parallel", "workers": 16}, "batch": {"per_worker": 8},
}  # fmt: skip
_LLAMA: Final = {
    "model": {
        "kind": "llama", "layers": 8, "hidden": 4096, "heads": 32, "key_heads": 8, "feedforward": 14336, "vocabulary": 32000,
        "sequence": 4096, "flash": True,
    },
    "cluster": "dgx-h100", "strategy": {"kind": "data_parallel", "workers": 64}, "batch": {"per_worker": 2},
    "training": {"precision": "bf16", "optimizer": "adam", "zero": 3},
}  # fmt: skip
# The same model, sharded over all ranks.
_LLAMA_ARGUMENTS: Final = (
    "--layers", "8", "--width", "4096", "--heads", "32", "--kv-heads", "8", "--hidden", "14336", "--vocabulary", "32000",
    "--length", "4096", "--batch", "2", "--shards", "64", "--no-recompute",
)  # fmt: skip


class Case(NamedTuple):
    """A script with its arguments, the number of ranks, and the scenario of the same training."""

    name: str
    script: Path
    arguments: tuple[str, ...]
    ranks: int
    scenario: dict[str, Any]


CASES: Final = (
    Case("GPT, DDP, fp32", _GPT_SCRIPT, (), 16, _GPT | {"training": {"precision": "fp32", "optimizer": "adam"}}),
    Case(
        "GPT, DDP, bf16 with masters", _GPT_SCRIPT, ("--dtype", "bfloat16", "--master"), 16,
        _GPT | {"training": {"precision": "bf16", "optimizer": "adam"}},
    ),
    Case("Llama, FSDP2, bf16", _LLAMA_SCRIPT, _LLAMA_ARGUMENTS, 64, _LLAMA),
    Case(
        "Llama, FSDP2, bf16, compiled", _LLAMA_SCRIPT, (*_LLAMA_ARGUMENTS, "--compile"), 64,
        _LLAMA | {"framework": "torchtitan-compiled"},
    ),
)  # fmt: skip


def ratios(case: Case, folder: Path) -> dict[str, float]:
    """Ratios of the captured prediction to the scenario's."""
    file = folder / f"{case.script.stem}-{CASES.index(case)}.zip"
    capture = ["capture", "--ranks", str(case.ranks), "--cluster", "dgx-h100", "--out", str(file), "--"]
    command = [sys.executable, "-m", "scaleproof", *capture, "python", str(case.script), *case.arguments]
    subprocess.run(command, check=True, timeout=_TIMEOUT_S, stdout=subprocess.DEVNULL)
    written, captured = load({"name": "written", **case.scenario}), load(file)
    runs = predict(captured, interval=False), predict(written, interval=False)
    allocated = [allocator_use(scenario).allocated_bytes for scenario in (captured, written)]
    return {
        "step time": runs[0].step_time_s / runs[1].step_time_s,
        "FLOPs": (runs[0].model_flops or 0.0) / (runs[1].model_flops or 1.0),
        "volume": _volume_bytes(runs[0]) / _volume_bytes(runs[1]),
        "allocated": allocated[0] / allocated[1],
    }


def _volume_bytes(run: Run) -> float:
    """Bytes of all large collectives of a step."""
    return sum(part.size_bytes for part in run.communication if part.size_bytes >= _LEAST_BYTES)


if __name__ == "__main__":
    # numbers of cases may be given
    chosen = [CASES[int(number)] for number in sys.argv[1:]] or list(CASES)
    with tempfile.TemporaryDirectory() as path:
        for case in chosen:
            print(case.name, *(f"{name} {ratio:.3f}" for name, ratio in ratios(case, Path(path)).items()), sep="  ", flush=True)
