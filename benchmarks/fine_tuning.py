"""Tokens per second, memory and bottleneck of fine-tuning on machines from one RTX 3090 to two nodes of eight H100.

LoRA, QLoRA and full fine-tuning of two models of 8B and one of 70B, 8 samples of 2,048 tokens for each GPU in the largest
microbatches (MBS) that fit, in bf16 with AdamW and recomputation of all blocks. Weights are replicated (hf-trainer) where they
fit so, else sharded (hf-trainer-fsdp). Where neither fits, a row has the need of a GPU, and a remedy with the tokens per second
that it leaves. Nothing is measured.

Run: python benchmarks/fine_tuning.py > docs/measured/fine-tuning.txt
"""

from __future__ import annotations

from typing import Any, Final

from scaleproof.proof.published import parallel_map
from scaleproof.simulator.common.units import format_bytes
from scaleproof.simulator.memory import memory
from scaleproof.simulator.memory.remedies import fitting
from scaleproof.simulator.predict import predict
from scaleproof.simulator.run.bottleneck import bound
from scaleproof.simulator.scenario.load import load
from scaleproof.simulator.scenario.schema import Scenario

_MODELS: Final = ("llama-3.1-8b", "qwen3-8b", "llama-3.1-70b")
_LORA: Final = {"training.adapters": {"kind": "lora", "rank": 16}}
_METHODS: Final[dict[str, dict[str, Any]]] = {
    "LoRA": _LORA,
    "QLoRA": _LORA | {"training.base_precision": "nf4", "training.double_quantization": True},
    "full": {},
}
# By machine, its cluster and number of GPUs.
_MACHINES: Final[dict[str, tuple[str | dict[str, Any], int]]] = {
    "1 RTX 3090": ("rtx-3090", 1),
    "2 RTX 3090": ("workstation-2x3090", 2),
    "4 RTX 3090, NVLink pairs": ("4x3090-nvlink-pairs", 4),
    "1 RTX 4090": ("rtx-4090", 1),
    "2 RTX 4090": ("workstation-2x4090", 2),
    "2 hosts of 1 RTX 4090, 10 GbE": ({"base": "rtx-4090", "nodes": 2, "network": "10-gbe"}, 2),
    "2 hosts of 2 RTX 4090, 10 GbE": ({"base": "workstation-2x4090", "nodes": 2, "network": "10-gbe"}, 4),
    "2 hosts of 2 RTX 4090, 100 GbE": ({"base": "workstation-2x4090", "nodes": 2, "network": "100-gbe"}, 4),
    "4 RTX 4090": ("8x4090-pcie", 4),
    "8 A100": ("dgx-a100", 8),
    "8 H100": ("dgx-h100", 8),
    "2 x 8 H100, 10 GbE": ({"base": "dgx-h100", "network": "10-gbe"}, 16),
    "2 x 8 H100, 100 GbE": ({"base": "dgx-h100", "network": "100-gbe"}, 16),
    "2 x 8 H100, InfiniBand": ("dgx-h100", 16),
}
_SAMPLES: Final = 8


def _scenario(model: str, method: str, machine: str) -> Scenario:
    """The job with weights replicated, or sharded where only that may fit, in the largest microbatches that fit, else of 1."""
    cluster, gpus = _MACHINES[machine]
    common = _METHODS[method] | {
        "cluster": cluster, "gpus": gpus, "model.sequence": 2048, "training.recompute": "full", "batch.per_worker": _SAMPLES,
    }  # fmt: skip
    sharded = {"framework": "hf-trainer-fsdp", "strategy": "fsdp"}
    for software in ({"framework": "hf-trainer"}, *([sharded] if gpus > 1 else [])):
        for microbatches in (1, 2, 4, _SAMPLES):
            found = load(model, common | software | {"strategy.microbatches": microbatches})
            if memory(found).fits:
                return found
    return found


def _row(job: tuple[str, str, str]) -> str:
    """The machine, the method and the results of a job in one line."""
    model, method, machine = job
    scenario = _scenario(model, method, machine)
    used = memory(scenario)
    remedy = None if used.fits else fitting(scenario)
    sharded = "FSDP" if scenario.training.zero == 3 else ""
    size = scenario.samples_per_worker // scenario.strategy.microbatches
    begin = f"{machine:<30}  {method:<6}  {sharded:<4}  {size:>3}  {format_bytes(used.worst.total_bytes):>8}"
    if not used.fits and remedy is None:
        return f"{begin}  {'-':>8}  does not fit, and no setting tried makes it fit"
    run = predict(scenario if remedy is None else remedy.scenario, interval=False)
    tokens_per_s, exposed = (run.tokens or 0) / run.step_time_s, run.breakdown_s["exposed_communication"] / run.step_time_s
    limits = f"{bound(run).removesuffix('-bound').lower()}, {exposed:.0%} exposed communication"
    with_remedy = "" if used.fits else f"; does not fit, these are tokens/s with {remedy}"
    return f"{begin}  {tokens_per_s:>8,.0f}  {limits}{with_remedy}"


def main() -> None:
    """Prints a table for each model."""
    jobs = [(model, method, machine) for model in _MODELS for machine in _MACHINES for method in _METHODS]
    rows = dict(zip(jobs, parallel_map.each(_row, jobs), strict=True))
    for model in _MODELS:
        print(f"{model}\n{'machine':<30}  method  {'':<4}  MBS  {'memory':>8}  tokens/s  limit")
        print("\n".join(row for job, row in rows.items() if job[0] == model), end="\n\n")


if __name__ == "__main__":
    main()
