"""Captured scripts against scenarios of the same training.

For each pair, rows have the captured and the described value and their ratio: time of a step, FLOPs, bytes of each kind of
collective, and peak memory as predicted, as the replica of the allocator has it for both, and of tensors alone. Captures replay
the allocator for predictions too, where scenarios assume a share for fragmentation.

Run: python benchmarks/captured_against_described.py [--keep DIR] [WORD …] (pairs whose names have all words; all without any)
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from scaleproof.simulator.common.units import format_bytes, format_number, format_time_s
from scaleproof.simulator.memory.allocator import allocator_use
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.run import Run
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

_FOLDER: Final = Path(__file__).parent
_EXAMPLES: Final = _FOLDER.parent / "examples" / "captured"
# Collectives of fewer bytes than this, such as norms of gradients, are not in scenarios.
_LEAST_BYTES: Final = 2**20
_TIMEOUT_S: Final = 900

_GPT: Final = {
    "kind": "gpt", "layers": 16, "hidden": 2048, "heads": 16, "vocabulary": 50304, "sequence": 1024, "flash": True,
}  # fmt: skip
# 1.1 billion parameters: the model, and the arguments of torchtitan_llama.py.
_LLAMA: Final[dict[str, Any]] = {
    "kind": "llama", "layers": 16, "hidden": 2048, "heads": 16, "key_heads": 16, "feedforward": 8192, "vocabulary": 32000,
    "sequence": 4096, "flash": True,
}  # fmt: skip
_TITAN: Final = (
    "--layers 16 --width 2048 --heads 16 --key-heads 16 --hidden 8192 --vocabulary 32000 --length 4096 --batch 2 "
    "--recompute none"
)
_ADAM: Final[dict[str, Any]] = {"optimizer": "adam", "clip_gradients": False}


class Pair(NamedTuple):
    """A script with its arguments on a number of ranks, and the scenario of the same training. notes: what the script really
    does otherwise."""

    name: str
    script: Path
    arguments: str
    ranks: int
    scenario: Mapping[str, Any]
    notes: str = ""


def _gpt(arguments: str, ranks: int, precision: str, scenario: dict[str, Any]) -> tuple[Path, str, int, dict[str, Any]]:
    """The parts of a pair of `scripts/gpt.py`."""
    usual: dict[str, Any] = {
        "model": _GPT, "cluster": "dgx-h100", "strategy": {"kind": "data_parallel", "workers": ranks},
        "batch": {"per_worker": 8}, "training": {"precision": precision, **_ADAM},
    }  # fmt: skip
    training = usual["training"] | scenario.get("training", {})
    return _FOLDER / "scripts" / "gpt.py", arguments, ranks, usual | scenario | {"training": training}


def _llama(workers: int, strategy: dict[str, Any], framework: str | dict[str, Any]) -> dict[str, Any]:
    """The scenario of a Llama."""
    return {
        "model": _LLAMA, "cluster": "dgx-h100", "framework": framework, "batch": {"per_worker": 2},
        "strategy": {"kind": "data_parallel", "workers": workers} | strategy,
        "training": {"precision": "bf16", "optimizer": "adam", "zero": 3},
    }  # fmt: skip


_FSDP2_WITH_EXPERTS: Final = {"base": "pytorch-fsdp2", "supports": ["data_parallel", "zero_3", "expert"]}
_TITAN_SCRIPT: Final = _FOLDER / "scripts" / "torchtitan_llama.py"
_PIPELINE: Final[dict[str, Any]] = {"kind": "pipeline", "stages": 4, "microbatches": 16}
_NO_AUTOCAST: Final = {"base": "pytorch-ddp", "autocast": {"usual": False}}

PAIRS: Final = (
    Pair(
        "GPT, DDP, fp32", *_gpt("", 16, "fp32", {}),
    ),
    Pair("GPT, DDP, bf16 by autocast", *_gpt("--autocast", 16, "bf16", {})),
    Pair(
        "GPT, DDP, bf16 with masters",
        *_gpt(
            "--dtype bfloat16 --master", 16, "bf16",
            {"framework": _NO_AUTOCAST, "training": {"autocast": False, "clip_gradients": True}},
        ),
    ),
    Pair(
        "GPT, ZeRO 1, bf16 by autocast",
        *_gpt("--parallel zero_1 --autocast", 16, "bf16", {"framework": "pytorch-ddp", "training": {"zero": 1}}),
    ),
    Pair(
        "GPT, FSDP1, bf16",
        *_gpt("--parallel fsdp1", 16, "bf16", {"framework": "pytorch-fsdp1", "training": {"zero": 3}}),
    ),
    Pair(
        "GPT, 1F1B, bf16",
        *_gpt(
            "--parallel 1f1b --dtype bfloat16 --batch 16", 4, "bf16",
            {
                "strategy": _PIPELINE, "batch": {"per_worker": 16}, "framework": _NO_AUTOCAST,
                "training": {"autocast": False, "master": False},
            },
        ),
    ),
    Pair(
        "GPT, interleaved 1F1B, bf16",
        *_gpt(
            "--parallel interleaved --dtype bfloat16 --batch 16", 4, "bf16",
            {
                "strategy": _PIPELINE | {"schedule": "interleaved_1f1b", "chunks": 2}, "batch": {"per_worker": 16},
                "framework": _NO_AUTOCAST, "training": {"autocast": False, "master": False},
            },
        ),
    ),
    Pair("Llama, FSDP2, bf16", _TITAN_SCRIPT, _TITAN, 64, _llama(64, {}, "pytorch-fsdp2")),
    Pair(
        "Llama, FSDP2 without resharding (ZeRO 2), bf16", _TITAN_SCRIPT, f"{_TITAN} --keep-gathered", 64,
        _llama(64, {"reshard": False}, "pytorch-fsdp2"),
    ),
    Pair("Llama, FSDP2, bf16, compiled", _TITAN_SCRIPT, f"{_TITAN} --compile", 64, _llama(64, {}, "torchtitan-compiled")),
    Pair(
        "Llama, FSDP2 and TP with sequence parallelism, bf16", _TITAN_SCRIPT, f"{_TITAN} --tensor 4", 32,
        _llama(8, {"kind": "hybrid", "tensor": 4, "sequence_parallel": True}, "pytorch-fsdp2"),
    ),
    Pair(
        "Llama with 32 experts, EP, bf16", _FOLDER / "scripts" / "mixture.py", "", 8,
        _llama(8, {"kind": "hybrid", "expert": 8}, _FSDP2_WITH_EXPERTS) | {
            "model": _LLAMA | {"layers": 8, "experts": {"count": 32, "active": 4, "feedforward": 2048}},
            "training": {"precision": "bf16", "optimizer": "adam", "zero": 3, "clip_gradients": False},
        },
    ),
    Pair(
        "Llama, FSDP2 and CP, bf16", _FOLDER / "scripts" / "context.py", "", 8,
        _llama(2, {"kind": "hybrid", "context": 4}, "pytorch-fsdp2") | {
            "model": _LLAMA | {"layers": 8, "sequence": 16384}, "batch": {"per_worker": 1},
            "training": {"precision": "bf16", "optimizer": "adam", "zero": 3, "clip_gradients": False},
        },
        notes="gradients of keys and values return by all-to-alls, which scenarios call reduce-scatters; scenarios count all "
        "scores of causal attention, captures those of the parts that are computed",
    ),
    Pair(
        "Llama, LoRA by PEFT, bf16", _EXAMPLES / "lora_peft.py", "", 8,
        {
            # the script has transformers' modules without a Trainer, which reads the loss back after each microbatch
            "model": _LLAMA | {"heads": 32, "key_heads": 8, "sequence": 2048},
            "cluster": "dgx-h100", "framework": {"base": "hf-trainer", "host": {"microbatch": "0 s"}},
            "strategy": {"kind": "data_parallel", "workers": 8}, "batch": {"per_worker": 4},
            "training": {
                "precision": "bf16", "optimizer": "adam", "clip_gradients": True,
                "adapters": {"kind": "lora", "rank": 16, "targets": "all-linear"},
            },
        },
    ),
)  # fmt: skip


def capture(pair: Pair, folder: Path) -> Path:
    """The capture of a pair's script, made if the folder has none of the same script and arguments."""
    key = hashlib.sha256(f"{pair.script.read_text()} {pair.arguments} {pair.ranks}".encode()).hexdigest()[:12]
    file = folder / f"{pair.script.stem}-{key}.zip"
    if not file.exists():
        options = ["--ranks", str(pair.ranks), "--cluster", "dgx-h100", "--out", str(file), "--timeout", str(_TIMEOUT_S)]
        script = ["python", str(pair.script), *pair.arguments.split()]
        command = [sys.executable, "-m", "scaleproof", "capture", *options, "--", *script]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return file


def sides(pair: Pair, folder: Path) -> tuple[Scenario, Scenario]:
    """The captured and the described training."""
    name = "".join(letter if letter.isalnum() else "-" for letter in pair.name)
    written = {"name": name, **pair.scenario}
    changes = {"cluster": "dgx-h100", "framework": written.get("framework", "pytorch-ddp")}
    return load(capture(pair, folder), changes), load(written)


def rows(pair: Pair, folder: Path) -> Iterator[tuple[str, str, str, float]]:
    """Quantities with both sides and their ratio."""
    scenarios = sides(pair, folder)
    runs = [predict(scenario, interval=False) for scenario in scenarios]
    sent = [_collectives_bytes(run) for run in runs]
    uses = [allocator_use(scenario) for scenario in scenarios]
    quantities: list[tuple[str, Callable[[float], str], list[float]]] = [
        ("step time", format_time_s, [run.step_time_s for run in runs]),
        ("FLOPs", format_number, [run.hardware_flops or run.model_flops or 0.0 for run in runs]),
        *((name, format_bytes, [one.get(name, 0.0) for one in sent]) for name in sorted(sent[0] | sent[1])),
        ("peak memory", format_bytes, [run.memory_bytes_per_rank or 0.0 for run in runs]),
        ("peak memory, replayed", format_bytes, [use.total_bytes for use in uses]),
        ("tensors at the peak", format_bytes, [use.allocated_bytes + use.outside_bytes.get("workspace", 0.0) for use in uses]),
    ]
    for name, written, (captured, described) in quantities:
        yield name, written(captured), written(described), captured / described if described else float("inf")


def _collectives_bytes(run: Run) -> dict[str, float]:
    """Bytes of large collectives, and of messages, in a step and rank by their names."""
    result: defaultdict[str, float] = defaultdict(float)
    for part in run.communication:
        if part.size_bytes >= _LEAST_BYTES:
            result[part.collective] += part.size_bytes
    return result


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder in which captures are kept")
    parser.add_argument("words", nargs="*")
    options = parser.parse_args()
    print("| training | ranks | quantity | captured | described | ratio |\n|---|---|---|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as temporary:
        place = options.keep or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        for pair in PAIRS:
            if all(word.lower() in pair.name.lower() for word in options.words):
                for name, captured, described, ratio in rows(pair, place):
                    texts = (pair.name, str(pair.ranks), name, captured, described, f"{ratio:.3f}")
                    print(f"| {' | '.join(texts)} |", flush=True)
                if pair.notes:
                    print(f"{pair.name}: {pair.notes}", file=sys.stderr)


if __name__ == "__main__":
    main()
